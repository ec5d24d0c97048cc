r"""Every coordinate bent by itself: a hyperbola with slopes $e^{-\epsilon}$ far to the left and $e^{\epsilon}$ far to
the right,

$$ x = e^a \left( u \cosh\epsilon + \left( \sqrt{1 + u^2} - c \right) \sinh\epsilon \right) + b
     = e^a \left( \sinh(\operatorname{arsinh} u + \epsilon) - c \sinh\epsilon \right) + b . $$

Counts and answers leave skewed coordinates, each a few thousandths of a nat from a normal, and many of them are nats.
Autoregressive layers, affine in each coordinate, can make one skewed only by means of others; this takes three numbers
a coordinate, and the same again to go back: $\epsilon$ with the opposite sign. With $c = E\sqrt{1 + u^2}$ the mean of
$x$ is $b$, so that skewness and location are learned apart. (Jones and Pewsey 2009, at their tail weight of one.)
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

_Numbers = Array | np.ndarray
_MEAN_ROOT = 1.3545308064813157
"""Of sqrt(1 + u^2) for a standard normal u."""
_MOST_SKEWED = 2.0
"""The largest |epsilon|."""


class Skew(eqx.Module):
    """The numbers of the map, one of each kind a coordinate."""

    skew: Float[_Numbers, " dim"]
    scale: Float[_Numbers, " dim"]
    shift: Float[_Numbers, " dim"]

    def look(self, u: Float[Array, "*num dim"]) -> "SkewLook":
        epsilon = _MOST_SKEWED * jnp.tanh(self.skew / _MOST_SKEWED)
        root = jnp.sqrt(1 + u**2)
        return SkewLook(u, root, jnp.sinh(epsilon), jnp.cosh(epsilon), jnp.exp(self.scale))

    def move(self, u: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        """Where points go, and the log determinant of the way."""
        at = self.look(u)
        return at.grown * at.core + self.shift, jnp.sum(jnp.log(at.slope) + self.scale, axis=-1)

    def back(self, x: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        """Where points come from, and the log determinant of the way here."""
        at = self.look(jnp.zeros_like(self.skew))
        w = (x - self.shift) / at.grown + _MEAN_ROOT * at.sinh
        u = w * at.cosh - jnp.sqrt(1 + w**2) * at.sinh
        return u, self.move(u)[1]

    def score(self, u: Float[Array, "num dim"]) -> Float[Array, "num dim"]:
        """That of the moved standard normal, where it has moved `u` to."""
        at = self.look(u)
        return (-u - at.curve) / (at.grown * at.slope)

    def pulled(
        self, u: Float[Array, "num dim"], slopes: Float[Array, "num dim"], rise: Float[ArrayLike, ""]
    ) -> tuple["Skew", Float[Array, "num dim"]]:
        """Of the sum of `slopes * moved` and of `rise` times the log determinant, the gradient by the numbers, and by
        the points."""
        at = self.look(u)
        by_core = at.grown * slopes
        turned = by_core * (u * at.sinh + (at.root - _MEAN_ROOT) * at.cosh)
        by_epsilon = turned + rise * (at.sinh + at.cosh * u / at.root) / at.slope
        bounded = 1 - jnp.tanh(self.skew / _MOST_SKEWED) ** 2
        by_numbers = Skew(
            bounded * jnp.sum(by_epsilon, axis=0), jnp.sum(by_core * at.core + rise, axis=0), jnp.sum(slopes, axis=0)
        )
        return by_numbers, by_core * at.slope + rise * at.curve


class SkewLook(NamedTuple):
    """What the map makes of points `u`."""

    u: Float[Array, "*num dim"]
    root: Float[Array, "*num dim"]
    sinh: Float[Array, " dim"]
    cosh: Float[Array, " dim"]
    grown: Float[Array, " dim"]

    @property
    def core(self) -> Float[Array, "*num dim"]:
        """x, not yet scaled and shifted."""
        return self.u * self.cosh + (self.root - _MEAN_ROOT) * self.sinh

    @property
    def slope(self) -> Float[Array, "*num dim"]:
        """The derivative of `core`."""
        return self.cosh + self.sinh * self.u / self.root

    @property
    def curve(self) -> Float[Array, "*num dim"]:
        """The derivative of the logarithm of `slope`."""
        return self.sinh / (self.root**3 * self.slope)


def no_skew(dim: int, dtype) -> Skew:
    """The map that moves nothing."""
    return Skew(*(np.zeros(dim, dtype) for _ in range(3)))

r"""Mean-field normals truncated to one box, $[-b, b]^d$: components with a common bounded support.

Theory that needs densities bounded away from zero (Locatello, Khanna, Ghosh and Rätsch 2018) has no other normals. In
each coordinate, with $\alpha = (-b - m)/\sigma \le 0 \le \beta = (b - m)/\sigma$,

$$ s(z) = \frac{\varphi((z - m)/\sigma)}{\sigma\,(\Phi(\beta) - \Phi(\alpha))} \quad\text{for } |z| \le b. $$

Locations stay in the box and scales below $b$, so that the normal has more than 0.47 of its mass there in every
coordinate: nothing is ever divided by a small number, and float32 will do.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from relbo.families.base import AbstractFamily

_NARROWEST = 1e-4
"""The smallest scale, in units of the bound."""


class TruncatedNormalParams(eqx.Module):
    """Location and log scale of the normal before it was cut."""

    loc: Float[Array, "*stack dim"]
    log_scale: Float[Array, "*stack dim"]


class TruncatedNormal(AbstractFamily):
    """Independent normals on [-bound, bound] in every (whitened) coordinate, of density zero outside."""

    bound: float = eqx.field(static=True, default=10.0)

    def __check_init__(self):
        if not 0 < self.bound < math.inf:
            raise ValueError(f"bound must be positive and finite, got {self.bound}.")

    def init(self, loc, factor):
        scale = factor if factor.ndim == 1 else jnp.linalg.norm(factor, axis=1)
        return self.project(TruncatedNormalParams(loc, jnp.log(scale)))

    def sample(self, key, params, num_draws):
        """By the inverse distribution function, each half of the law from its own tail.

        The derivative with respect to the parameters is written out: at a fixed level $u$ of the distribution function
        and with $t = (z - m)/\\sigma$, that of $z$ by $m$ is $1 - (1-u) e^{(t^2 - \\alpha^2)/2} - u e^{(t^2 -
        \\beta^2)/2}$, and that by $\\sigma$ is the same with $t$, $\\alpha$ and $\\beta$ as factors of the terms.
        """
        dtype, dim = params.loc.dtype, params.loc.shape[0]
        level = jax.random.uniform(key, (num_draws, dim), dtype)
        level = level + 0.5 * jnp.finfo(dtype).eps  # strictly between 0 and 1
        loc, scale = params.loc, jnp.exp(params.log_scale)
        low, high = jax.lax.stop_gradient(self._edges(loc, scale))
        below, above = ndtr(low), ndtr(-high)
        mass = 1 - below - above
        from_left, from_right = below + level * mass, above + (1 - level) * mass
        noise = jnp.where(from_left < 0.5, ndtri(jnp.minimum(from_left, 0.5)), -ndtri(jnp.minimum(from_right, 0.5)))
        noise = jnp.clip(jax.lax.stop_gradient(noise), low, high)
        left, right = (1 - level) * jnp.exp(0.5 * (noise**2 - low**2)), level * jnp.exp(0.5 * (noise**2 - high**2))
        along_loc, along_scale = 1 - left - right, noise - low * left - high * right
        point = jax.lax.stop_gradient(loc + scale * noise)
        moved = point + along_loc * _only_slope(loc) + along_scale * _only_slope(scale)
        return jnp.clip(moved, -self.bound, self.bound)

    def log_prob(self, params, point):
        noise = (point - params.loc) * jnp.exp(-params.log_scale)
        log_scale = params.log_scale + self._log_mass(params.loc, jnp.exp(params.log_scale))
        inside = jnp.sum(-0.5 * noise**2 - 0.5 * jnp.log(2 * jnp.pi) - log_scale)
        return jnp.where(jnp.any(jnp.abs(point) > self.bound), -jnp.inf, inside)

    def location(self, params):
        return params.loc

    def move(self, params, loc, log_factor):
        return self.project(TruncatedNormalParams(loc, params.log_scale + log_factor))

    def project(self, params):
        loc = jnp.clip(params.loc, -self.bound, self.bound)
        most = math.log(self.bound)
        return TruncatedNormalParams(loc, jnp.clip(params.log_scale, most + math.log(_NARROWEST), most))

    @property
    def has_inner(self):
        return True

    def log_inner(self, params, other):
        """The product of two normals is a third, times a constant; its location lies between theirs."""
        one, two = jnp.exp(2 * params.log_scale), jnp.exp(2 * other.log_scale)
        both = one + two
        loc, scale = (params.loc * two + other.loc * one) / both, jnp.sqrt(one * two / both)
        log_whole = -0.5 * (params.loc - other.loc) ** 2 / both - 0.5 * jnp.log(2 * jnp.pi * both)
        masses = [self._log_mass(p.loc, jnp.exp(p.log_scale)) for p in (params, other)]
        return jnp.sum(log_whole + self._log_mass(loc, scale) - masses[0] - masses[1])

    def _edges(self, loc, scale):
        return (-self.bound - loc) / scale, (self.bound - loc) / scale

    def _log_mass(self, loc, scale):
        low, high = self._edges(loc, scale)
        return jnp.log1p(-(ndtr(low) + ndtr(-high)))


def _only_slope(value):
    """Zero, with the derivative of `value`."""
    return value - jax.lax.stop_gradient(value)

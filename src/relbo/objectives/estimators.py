r"""Gradient estimators: three ways to differentiate $E_s[r(z)]$ with respect to the parameters of $s$.

All have the same mean (see `residual.py` for what is held fixed). Each exists in two forms: a scalar to differentiate,
for any family, and the natural statistics $(g, G)$ of `families/natural.py`, for normal components.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.families.natural import AbstractGeometry


class AbstractEstimator(eqx.Module):
    """`needs_gradient` says whether the log density must be differentiable."""

    needs_gradient: eqx.AbstractClassVar[bool]

    @abstractmethod
    def surrogate(self, slope, log_prob, point, entropy_weight) -> Array:
        """For one draw: a scalar whose gradient is the estimate's contribution.

        `slope` is the gradient of the residual at the draw, a constant; `log_prob` and the draw `point` depend on the
        parameters.
        """

    @abstractmethod
    def natural(
        self,
        geometry: AbstractGeometry,
        noise: Float[Array, "num dim"],
        values: Float[Array, " num"],
        slopes: Float[Array, "num dim"],
        entropy_weight: Float[Array, ""],
    ) -> tuple[Array, Array]:
        """Slope g and curvature G from residuals `values` and their gradients `slopes` with respect to the noise."""


class StickingTheLanding(AbstractEstimator):
    """The path derivative alone (Roeder, Wu and Duvenaud 2017): zero variance where q equals p. The default."""

    needs_gradient = True

    def surrogate(self, slope, log_prob, point, entropy_weight):
        return jnp.sum(slope * point)

    def natural(self, geometry, noise, values, slopes, entropy_weight):
        return slopes.mean(0), -geometry.outer(noise, slopes)


class Reparameterized(AbstractEstimator):
    """The path derivative with the score of s kept in, as plain automatic differentiation gives it."""

    needs_gradient = True

    def surrogate(self, slope, log_prob, point, entropy_weight):
        return jnp.sum(slope * point) - entropy_weight * log_prob(jax.lax.stop_gradient(point))

    def natural(self, geometry, noise, values, slopes, entropy_weight):
        spread = geometry.outer(noise, noise) - geometry.identity(noise.shape[1], noise.dtype)
        return (slopes - entropy_weight * noise).mean(0), entropy_weight * spread - geometry.outer(noise, slopes)


class ScoreFunction(AbstractEstimator):
    """Values only, for targets without gradient, with the leave-one-out mean of the other draws as control variate."""

    needs_gradient = False

    def surrogate(self, slope, log_prob, point, entropy_weight):
        # The leave-one-out baseline couples the draws: `combine` applies it to these scores.
        return log_prob(jax.lax.stop_gradient(point))

    def natural(self, geometry, noise, values, slopes, entropy_weight):
        advantage = leave_pair_out(values)
        spread = geometry.outer(noise, noise * advantage[:, None]) - advantage.mean() * geometry.identity(
            noise.shape[1], noise.dtype
        )
        return (noise * advantage[:, None]).mean(0), -spread


def leave_pair_out(values: Float[Array, " num"]) -> Float[Array, " num"]:
    """Each value less the mean of the others, its antithetic partner (half the batch away) left out too.

    With the partner in, the baseline would depend on the draw's own noise, and the estimate be biased.
    """
    num = values.shape[0]
    pairs = values + jnp.roll(values, num // 2)
    return values - (values.sum() - pairs) / max(num - 2, 1)


def combine(estimator: AbstractEstimator, scalars: Float[Array, " num"], values: Float[Array, " num"]):
    """The scalar to differentiate for a whole batch of draws; draws with a non-finite residual are skipped."""
    finite = jnp.isfinite(values)
    count = jnp.maximum(finite.sum(), 1)
    if estimator.needs_gradient:
        return jnp.sum(jnp.where(finite, scalars, 0.0)) / count
    centered = jnp.where(finite, values - jnp.sum(jnp.where(finite, values, 0.0)) / count, 0.0)
    return jnp.sum(jax.lax.stop_gradient(centered) * scalars) / jnp.maximum(count - 1, 1)


ESTIMATORS: dict[str, AbstractEstimator] = {
    "sticking_the_landing": StickingTheLanding(),
    "reparameterized": Reparameterized(),
    "score": ScoreFunction(),
}

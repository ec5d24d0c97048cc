"""Moving components uphill: the inner loop that oracle and refinement share.

An oracle moves a few proposals, each alone against the mixture so far; refinement moves every component of the mixture
together, and the weights with them. Both follow the gradient of a residual (see `objectives/residual.py`) at draws from
the components that move. An ascent is a compiled `scan` over steps: no host synchronisation, no growing shapes.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Key, PyTree

from relbo.families import AbstractFamily
from relbo.mixture import Mixture
from relbo.objectives import AbstractEstimator, AbstractObjective, log_ratio
from relbo.objectives.evaluate import log_density
from relbo.targets import AbstractTarget

_MAX_WEIGHT_MOVE = 2.0


class AbstractAscent(eqx.Module):
    """How components are moved. `num_steps` and `num_draws` (per component and step) set the cost."""

    num_steps: eqx.AbstractVar[int]
    num_draws: eqx.AbstractVar[int]

    @abstractmethod
    def check(self, family: AbstractFamily) -> None:
        """Raise a ValueError if this ascent cannot move components of `family`."""

    @abstractmethod
    def annealed(self, round_index: int) -> "AbstractAscent":
        """The same ascent (the same compiled program) with steps fit for round `round_index` >= 1 of polishing."""

    @abstractmethod
    def improve(
        self,
        key: Key[Array, ""],
        target: AbstractTarget,
        mixture: Mixture,
        objective: AbstractObjective,
        estimator: AbstractEstimator,
        params: PyTree,
        iteration: Int[Array, ""],
    ) -> "Improved":
        """Move each of a stack of proposals alone against `mixture`."""

    @abstractmethod
    def refine(
        self, key: Key[Array, ""], target: AbstractTarget, mixture: Mixture, estimator: AbstractEstimator
    ) -> tuple[Mixture, Int[Array, ""]]:
        """Move all components and weights together on ELBO(q); also the number of NaN draws met."""


class Improved(eqx.Module):
    """Proposals that were moved; the objective of each, averaged over the last steps, with its standard error."""

    params: PyTree
    value: Float[Array, " stack"]
    std_err: Float[Array, " stack"]
    num_nan: Int[Array, ""]

    def best(self) -> Int[Array, ""]:
        """The proposal with the largest objective."""
        return jnp.argmax(jnp.where(jnp.isfinite(self.value), self.value, -jnp.inf))


def improved(params: PyTree, values: Float[Array, "steps stack"], std_errs, num_nan) -> Improved:
    """Average the objective over the last quarter of the steps, where it hardly changes any more."""
    last = max(1, values.shape[0] // 4)
    finite = jnp.isfinite(values[-last:])
    count = finite.sum(0)
    value = jnp.where(count > 0, jnp.sum(jnp.where(finite, values[-last:], 0.0), 0) / count, jnp.nan)
    variance = jnp.sum(jnp.where(finite, std_errs[-last:] ** 2, 0.0), 0) / jnp.maximum(count, 1) ** 2
    return Improved(params, value, jnp.sqrt(variance), num_nan.sum())


def proposal_residual(target, mixture, objective, params, iteration):
    """The residual of a proposal as a function of a point, the proposal's own parameters held fixed."""
    frozen = jax.lax.stop_gradient(params)

    def residual(point):
        log_s = mixture.family.log_prob(frozen, point)
        return objective.residual(log_density(target, point), mixture.log_prob(point), log_s, iteration)

    return residual


def mixture_residual(target, mixture):
    """log p - log q as a function of a point, the mixture's parameters held fixed."""
    frozen = jax.lax.stop_gradient(mixture)
    return lambda point: log_ratio(target, frozen, point)


def step_weights(
    mixture: Mixture, values: Float[Array, " capacity"], rate: Float[Array, ""]
) -> Float[Array, " capacity"]:
    """A mirror-descent step on the weights; `values` estimates E_k[log p - log q] for each slot.

    Rate 1 descends for exact values; smaller rates average out their noise. A slot whose values are all broken stays.
    """
    usable = mixture.active & jnp.isfinite(values)
    values = jnp.where(usable, values, 0.0)
    weights = jnp.where(usable, jnp.exp(mixture.log_weights), 0.0)
    mean = jnp.sum(weights * values) / jnp.maximum(jnp.sum(weights), jnp.finfo(values.dtype).tiny)
    move = jnp.where(usable, jnp.clip(values - mean, -_MAX_WEIGHT_MOVE, _MAX_WEIGHT_MOVE), 0.0)
    moved = mixture.log_weights + rate * move
    return moved - logsumexp(moved)


def masked_mean(values: Float[Array, " num"]) -> Float[Array, ""]:
    """The mean of the finite values; NaN if there are none."""
    finite = jnp.isfinite(values)
    return jnp.sum(jnp.where(finite, values, 0.0)) / finite.sum()


def masked_std_err(values: Float[Array, " num"]) -> Float[Array, ""]:
    """The standard error of `masked_mean`."""
    finite = jnp.isfinite(values)
    spread, count = jnp.where(finite, values - masked_mean(values), 0.0), finite.sum()
    return jnp.sqrt(jnp.sum(spread**2) / jnp.maximum(count * (count - 1), 1))


def choose(condition, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where `condition` (a scalar, or one for each of a stack) holds, `no` elsewhere."""

    def pick(one, other):
        return jnp.where(jnp.reshape(condition, condition.shape + (1,) * (one.ndim - condition.ndim)), one, other)

    return jax.tree.map(pick, yes, no)

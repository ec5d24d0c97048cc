"""Moving components uphill: the inner loop that oracle and refinement share.

An oracle moves a few proposals, each alone against the mixture so far; refinement moves every component of the mixture
together, and the weights with them. Both follow the gradient of a residual (see `objectives/residual.py`) at draws from
the components that move. A step is one call of the door at all draws and one compiled program, which moves the
components and makes the next draws; the host drives it, and waits for results only to ask whether the climb still pays.
"""

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Key, PyTree

from relbo.families import AbstractFamily
from relbo.mixture import Mixture, Numbers
from relbo.model.door import Door, Seen
from relbo.objectives import AbstractEstimator, AbstractObjective

WINDOW = 10
"""Steps between two looks at whether a climb still gains: enough draws to tell, few enough to stop soon."""
_MAX_WEIGHT_MOVE = 2.0  # nats a step: a log ratio met far out must not take all weight from a component


class AbstractAscent(eqx.Module):
    """How components are moved. `num_steps` at most and `num_draws` (per component and step) set the cost."""

    num_steps: eqx.AbstractVar[int]
    num_draws: eqx.AbstractVar[int]
    fits_alone: eqx.AbstractClassVar[bool]
    """Whether `refine` fits a first component from coordinates that a race has found, and `improve` need not."""

    def with_draws(self, least: int) -> "AbstractAscent":
        """The same ascent with at least so many draws, as estimates without gradients need."""
        return dataclasses.replace(self, num_draws=max(self.num_draws, least))

    @abstractmethod
    def check(self, family: AbstractFamily) -> None:
        """Raise a ValueError if this ascent cannot move components of `family`."""

    @abstractmethod
    def annealed(self, round_index: int) -> "AbstractAscent":
        """The same ascent (the same compiled program) with steps fit for round `round_index` >= 1 of polishing."""

    @abstractmethod
    def patient(self) -> "AbstractAscent":
        """The same ascent (the same compiled program) that looks longer before it gives up, for a second try."""

    @abstractmethod
    def improve(self, key: Key[Array, ""], door: Door, aim: "Aim", params: PyTree) -> "Improved":
        """Move each of a stack of proposals alone."""

    @abstractmethod
    def refine(
        self, key: Key[Array, ""], door: Door, mixture: Mixture, estimator: AbstractEstimator
    ) -> tuple[Mixture, int]:
        """Move all components and weights together on ELBO(q); also the number of NaN draws met."""


@dataclass(frozen=True)
class Aim:
    """What proposals are moved for: `objective` against `mixture`, its gradient by `estimator`."""

    mixture: Mixture
    objective: AbstractObjective
    estimator: AbstractEstimator
    iteration: int = 0

    @property
    def lasting(self) -> tuple[Mixture, AbstractObjective, AbstractEstimator]:
        return self.mixture, self.objective, self.estimator

    @property
    def time(self) -> np.ndarray:
        """The iteration as an array, so that all of them meet one program."""
        return np.asarray(self.iteration, np.int32)


class Drawn(NamedTuple):
    """The draws of a step: noise, or the key that they are made with; log p there; where they are."""

    noise: Any
    seen: Seen
    points: Float[Numbers, "all dim"] | None = None


@dataclass(frozen=True)
class Improved:
    """Proposals that were moved; the objective of each, averaged over the last steps, with its standard error."""

    params: PyTree
    value: np.ndarray
    std_err: np.ndarray
    num_draws: int
    """Of each, behind `value`."""
    num_nan: int

    def order(self) -> np.ndarray:
        """The proposals by their objective, the largest first; those without a finite one are left out."""
        ranked = np.argsort(-np.where(np.isfinite(self.value), self.value, -np.inf), kind="stable")
        return ranked[np.isfinite(self.value[ranked])]


class Tally(eqx.Module):
    """The objective of each of a stack over the last steps, kept on the device."""

    total: Float[Numbers, " stack"]
    variance: Float[Numbers, " stack"]
    count: Float[Numbers, " stack"]
    num_nan: Int[Numbers, ""]

    def add(self, values, std_errs, num_nan, fresh) -> "Tally":
        """One step more; `fresh` begins the sums anew. Steps without a finite value do not count."""
        finite = jnp.isfinite(values) & jnp.isfinite(std_errs)
        old = jnp.where(fresh, 0.0, 1.0).astype(values.dtype)
        return Tally(
            old * self.total + jnp.where(finite, values, 0.0),
            old * self.variance + jnp.where(finite, std_errs**2, 0.0),
            old * self.count + finite,
            (self.num_nan + num_nan).astype(jnp.int32),
        )

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Averages and their standard errors, on the host."""
        total, variance, count = (np.asarray(part, np.float64) for part in (self.total, self.variance, self.count))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(count > 0, total / count, np.nan), np.sqrt(variance) / np.maximum(count, 1)


def first_settled(num_steps: int) -> int:
    """The step from which on a tally counts: the last quarter of a climb, where the objective hardly changes."""
    return num_steps - max(1, num_steps // 4)


def empty_tally(num: int, dtype) -> Tally:
    zeros = np.zeros(num, dtype)
    return Tally(zeros, zeros, zeros, np.zeros((), np.int32))


def step_weights(
    mixture: Mixture, values: Float[Array, " capacity"], rate: Float[Array, ""]
) -> Float[Numbers, " capacity"]:
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


def masked_mean(values: Float[Array, "*stack num"]) -> Float[Array, "*stack"]:
    """The mean of the finite values; NaN if there are none."""
    finite = jnp.isfinite(values)
    return jnp.sum(jnp.where(finite, values, 0.0), axis=-1) / finite.sum(-1)


def masked_std_err(values: Float[Array, "*stack num"]) -> Float[Array, "*stack"]:
    """The standard error of `masked_mean`."""
    finite = jnp.isfinite(values)
    spread, count = jnp.where(finite, values - masked_mean(values)[..., None], 0.0), finite.sum(-1)
    return jnp.sqrt(jnp.sum(spread**2, axis=-1) / jnp.maximum(count * (count - 1), 1))


def choose(condition, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where `condition` (a scalar, or one for each of a stack) holds, `no` elsewhere."""

    def pick(one, other):
        return jnp.where(jnp.reshape(condition, condition.shape + (1,) * (one.ndim - condition.ndim)), one, other)

    return jax.tree.map(pick, yes, no)

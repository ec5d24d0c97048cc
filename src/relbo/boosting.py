r"""Boosting: the mixture grows by one component an iteration.

    booster = relbo.make_booster(target)
    state, record = booster.init(key)                # whiten, fit the first component
    state, record = booster.step(key, state)         # propose, measure the gap, weigh, refine, keep or reject

An iteration is a pure function of its key and state, made of four compiled programs (propose, weigh, refine, measure),
each compiled once per capacity. Decisions between them are the host's.
"""

import dataclasses
import math
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from relbo._compiled import compiled, host_split, start_compiling
from relbo.ascent import AbstractAscent, NaturalAscent
from relbo.budgets import FEW, budget
from relbo.estimate import Estimate
from relbo.families import AbstractFamily
from relbo.mixture import Mixture, empty_mixture
from relbo.objectives import (
    ELBO,
    AbstractEstimator,
    AbstractObjective,
    Comparison,
    Evaluation,
    compare,
)
from relbo.oracles import AbstractOracle, find_modes, mode_evaluations
from relbo.precondition import Preconditioner, Whitened, find_map, identity_map
from relbo.steps import AbstractStep, WeightUpdate
from relbo.targets import AbstractTarget, limited
from relbo.trace import Record

_POLISH_ROUNDS = 5
_FAR = 20.0  # a duality gap of so many nats means that a far mode was found, and there may be more


class State(eqx.Module):
    """What the next iteration needs."""

    target: Whitened
    mixture: Mixture
    modes: PyTree
    """Components at the modes found so far: starts for the oracle."""
    memory: PyTree
    """What the step rule remembers."""
    elbo: Estimate
    iteration: int
    explore: bool
    """Whether the next iteration looks for modes anew: after a rejection, and while far ones keep turning up."""


class Booster(eqx.Module):
    """The settings of a fit, every part an object. `relbo.make_booster` fills in defaults and understands names."""

    target: AbstractTarget
    family: AbstractFamily
    objective: AbstractObjective
    oracle: AbstractOracle
    step_rule: AbstractStep
    estimator: AbstractEstimator
    first_ascent: AbstractAscent
    refinement: AbstractAscent | None
    preconditioner: Preconditioner
    min_improvement: float = 1e-4
    """Nats by which a component must improve the mixture to be kept; -inf keeps them all."""
    num_measure: int = eqx.field(static=True, default=FEW.measure_draws)
    """Draws, over all slots, for ELBO, gap and the test whether a component is kept."""
    points_at_once: int | None = eqx.field(static=True, default=None)
    """At how many points the target is evaluated side by side; None for no limit."""
    missing: tuple[str, ...] = eqx.field(static=True, default=())
    """Settings that the file from which this was loaded could not hold; they stand at their defaults."""

    def init(self, key: Key[Array, ""], *, alone: bool = False) -> tuple[State, Record]:
        """Find the affine map, fit the first component (plain black-box VI), look for modes.

        `alone` says that no iteration will follow, whose programs would have to be compiled.
        """
        begun = time.perf_counter()
        if not alone:
            self._start_compiling(key)
        map_key, first_key, mode_key, measure_key = host_split(key, 4)
        target, evaluations = find_map(map_key, self.limited_target(), self.preconditioner, self.estimator)
        mixture, num_nan, first_evaluations = self._first(first_key, target)
        modes, modes_evaluations = self.find_modes(mode_key, target)
        measured = self.measure(measure_key, target, mixture, mixture, _some_component(mixture)).elbo
        evaluations += first_evaluations + modes_evaluations + self._measure_evaluations(mixture, mixture)
        elbo_now = measured.estimate.to_host()
        if not np.isfinite(elbo_now.value):
            raise ValueError(
                f"The first component could not be fitted: its ELBO is {elbo_now.value}. The log density is not finite "
                "where the component lies. Start from a better example, or check the log density for overflow."
            )
        state = State(target, mixture, modes, self.step_rule.init(target.dtype), elbo_now, 0, False)
        record = self._record(state, "first", True, 1.0, None, None, None, measured, [num_nan], evaluations, begun)
        return state, record

    def step(self, key: Key[Array, ""], state: State) -> tuple[State, Record]:
        """One iteration. A component that does not improve the mixture by `min_improvement` is rejected."""
        begun = time.perf_counter()
        keys = host_split(key, 5)
        iteration = np.asarray(state.iteration + 1, np.int32)
        old, slot = _with_room(state.mixture)
        modes, evaluations = self.find_modes(keys[0], state.target) if state.explore else (state.modes, 0)
        proposal = self.oracle.propose(keys[1], state.target, old, modes, self.objective, self.estimator, iteration)
        update, memory, new = _weigh(
            keys[2], self.step_rule, state.target, old, proposal.params, slot, iteration, state.memory
        )
        num_nan = [proposal.num_nan, update.num_nan]
        if self.refinement is not None:
            new, refine_nan = _refine(keys[3], self.refinement, state.target, new, self.estimator)
            num_nan.append(refine_nan)
            evaluations += _ascent_evaluations(self.refinement, new)
        seen = self.measure(keys[4], state.target, old, new, proposal.params)
        improvement = seen.improvement.to_host()
        gap, objective = seen.gap.estimate.to_host(), proposal.objective.to_host()
        accepted = bool(improvement.value > self.min_improvement)
        evaluations += self.oracle.num_evaluations(old) + self._measure_evaluations(old, new)
        evaluations += (_num_active(old) + 1) * self.step_rule.num_draws
        after = State(
            state.target,
            new if accepted else old,
            modes,
            memory,
            seen.elbo.estimate.to_host() if accepted else state.elbo,
            state.iteration + 1,
            bool(not accepted or gap.value > _FAR),
        )
        kind = self.step_rule.kinds[int(update.kind)]
        args = (float(update.step_size), improvement, gap, objective, seen.elbo, num_nan, evaluations, begun)
        record = self._record(after, kind, accepted, *args)
        # Of what was rejected, a component with NaN among its parameters says nothing of the model. And a model that
        # broke since the last iteration leaves nothing of the new mixture to be measured, but shows in the old one.
        share = int(seen.num_nan_before) / (self._num_each(old) * _num_active(old))
        share = max(record.nan_fraction, share) if accepted else share
        return after, dataclasses.replace(record, nan_fraction=share)

    def polish(self, key: Key[Array, ""], state: State) -> tuple[State, Record]:
        """Refinement with falling steps, for the end of a fit; kept only if it improves the mixture."""
        begun = time.perf_counter()
        if self.refinement is None:
            raise ValueError("This booster does not refine, so it cannot polish.")
        new, num_nan = state.mixture, []
        for round_index in range(1, _POLISH_ROUNDS + 1):
            ascent = self.refinement.annealed(round_index)
            new, more = _refine(jax.random.fold_in(key, round_index), ascent, state.target, new, self.estimator)
            num_nan.append(more)
        seen = self.measure(key, state.target, state.mixture, new, _some_component(new))
        improvement = seen.improvement.to_host()
        accepted = bool(improvement.value > 0)
        after = eqx.tree_at(lambda s: s.mixture, state, new if accepted else state.mixture)
        if accepted:
            after = eqx.tree_at(lambda s: s.elbo, after, seen.elbo.estimate.to_host())
        evaluations = _POLISH_ROUNDS * _ascent_evaluations(self.refinement, new)
        evaluations += self._measure_evaluations(state.mixture, new)
        args = (after, "polish", accepted, 0.0, improvement, None, None, seen.elbo, num_nan, evaluations, begun)
        return after, self._record(*args)

    def measure(self, key: Key[Array, ""], target: Whitened, old: Mixture, new: Mixture, params: PyTree) -> Comparison:
        """ELBO of `new`, improvement over `old`, and the gap of `old` at the component `params`, with their errors.

        The one program that measures, in iterations and in `diagnose`. Where nothing is proposed, `params` is any
        component, and its gap is not read.
        """
        return _measure(key, target, old, new, params, self._num_each(old))

    def find_modes(self, key: Key[Array, ""], target: Whitened) -> tuple[PyTree, int]:
        """Components at modes of the target, to start the oracle from, and the evaluations spent on finding them.

        None, for nothing, where the oracle wants no such starts.
        """
        starts = self.oracle.starts
        if not starts.num_modes:
            return None, 0
        return find_modes(key, target, self.family, starts), mode_evaluations(target, starts)

    def limited_target(self) -> AbstractTarget:
        """The target, never evaluated at more points at once than memory allows."""
        return limited(self.target, self.points_at_once)

    def _start_compiling(self, key) -> None:
        """Compile the programs of the iterations while `init` is at work, from arguments of the right shapes."""
        target = identity_map(self.limited_target(), self.preconditioner.kind)
        mixture = _nothing(self.family, target)
        params, number = _some_component(mixture), np.asarray(0, np.int32)
        num_modes = self.oracle.starts.num_modes
        modes = jax.tree.map(lambda leaf: np.repeat(leaf[None], num_modes, axis=0), params)
        memory = self.step_rule.init(target.dtype)
        if self.refinement is not None:
            start_compiling(_refine, key, self.refinement, target, mixture, self.estimator)
        args = (key, target, mixture, modes if num_modes else None, self.objective, self.estimator, number)
        start_compiling(self.oracle.propose, *args)
        start_compiling(_measure, key, target, mixture, mixture, params, self._num_each(mixture))
        start_compiling(_weigh, key, self.step_rule, target, mixture, params, number, number, memory)

    def _first(self, key, target: Whitened) -> tuple[Mixture, Array, int]:
        """The mixture of one component, the number of NaN draws met, and the evaluations spent.

        After the race of `find_map` a standard member of the family is nearly there, and the program that refines
        iterations does the rest: a program less to compile.
        """
        ascent = self.first_ascent
        mixture = _nothing(self.family, target)
        if isinstance(self.refinement, NaturalAscent) and self.preconditioner.kind != "none":
            alone = np.where(np.arange(mixture.capacity) == 0, 0.0, -np.inf).astype(target.dtype)
            mixture = eqx.tree_at(lambda m: m.log_weights, mixture, jax.device_put(alone))
            mixture, num_nan = _refine(key, self.refinement, target, mixture, self.estimator)
            return mixture, num_nan, _ascent_evaluations(self.refinement, mixture)
        mixture, num_nan = _first(key, ascent, target, mixture, self.estimator)
        return mixture, num_nan, ascent.num_steps * ascent.num_draws

    def _num_each(self, mixture: Mixture) -> int:
        return max(2, self.num_measure // mixture.capacity)

    def _measure_evaluations(self, old: Mixture, new: Mixture) -> int:
        return self._num_each(old) * (_num_active(old) + _num_active(new) + old.capacity // 2)

    def _record(
        self, state, kind, accepted, step_size, improvement, gap, objective, measured: Evaluation, num_nan,
        evaluations, begun,
    ) -> Record:  # fmt: skip
        weights = np.exp(np.asarray(state.mixture.log_weights))
        weights = weights[weights > 0]
        measured_nan = int(measured.num_nan)
        return Record(
            iteration=state.iteration,
            kind=kind,
            accepted=accepted,
            num_components=len(weights),
            weights=weights,
            step_size=step_size,
            elbo=state.elbo,
            improvement=improvement,
            gap=gap,
            objective=objective,
            seconds=time.perf_counter() - begun,
            evaluations=evaluations,
            num_nan=sum(int(number) for number in num_nan) + measured_nan,
            num_zero=int(measured.num_zero),
            # Draws of empty slots are made, but not looked at.
            nan_fraction=measured_nan * state.mixture.capacity / (measured.estimate.num_draws * max(1, len(weights))),
        )


def _with_room(mixture: Mixture) -> tuple[Mixture, np.ndarray]:
    """The mixture with at least one empty slot, doubled if it had none, and that slot."""
    log_weights = np.asarray(mixture.log_weights)
    if np.all(log_weights > -np.inf):
        return mixture.grow(2 * mixture.capacity), np.asarray(mixture.capacity, np.int32)
    return mixture, np.asarray(np.argmin(log_weights), np.int32)


def _some_component(mixture: Mixture) -> PyTree:
    """On the host: small programs that take an array apart are slow to compile, too."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], mixture.params)


@partial(compiled, runs_once=True)
def _nothing(family, target):
    return empty_mixture(family, target.dim, budget(target.dim).capacity, target.dtype)


def _num_active(mixture: Mixture) -> int:
    return int((np.asarray(mixture.log_weights) > -np.inf).sum())


def _ascent_evaluations(ascent: AbstractAscent, mixture: Mixture) -> int:
    """Of a refinement, which works on slots by the group and skips empty groups."""
    at_once = budget(mixture.dim).slots_at_once
    return math.ceil(_num_active(mixture) / at_once) * at_once * ascent.num_steps * ascent.num_draws


@compiled
def _first(key, ascent, target, mixture, estimator):
    start = jax.tree.map(lambda leaf: leaf[:1], mixture.params)
    nothing = empty_mixture(mixture.family, target.dim, 1, target.dtype)
    found = ascent.improve(key, target, nothing, ELBO(), estimator, start, jnp.asarray(0))
    return mixture.place(0, jax.tree.map(lambda leaf: leaf[0], found.params), 0.0), found.num_nan


@compiled
def _weigh(key, rule, target, mixture, params, slot, iteration, memory):
    placed = mixture.place(slot, params, -jnp.inf)
    update: WeightUpdate
    update, memory = rule.update(key, target, placed, slot, iteration, memory)
    return update, memory, placed.reweight(update.log_weights)


@compiled
def _refine(key, ascent, target, mixture, estimator):
    return ascent.refine(key, target, mixture, estimator)


@compiled
def _measure(key, target, old, new, params, num_each):
    return compare(key, target, old, new, params, num_each)

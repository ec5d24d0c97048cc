r"""Boosting: the mixture grows by a few components an iteration.

    booster = relbo.make_booster(target)
    state, record = booster.init(key)                # whiten, fit the first component
    state, record = booster.step(key, state)         # propose, measure the gap, weigh, refine, keep or reject
    state, record = booster.learn(key, state)        # learn coordinates, and begin anew in them

An iteration is a pure function of its key and state. Every part of it evaluates the model through the door
(`model/door.py`), and what it computes besides are a few small programs, the same for all models, and arithmetic on
the host.
"""

import dataclasses
import math
import time
from collections import Counter
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from relbo.ascent import AbstractAscent, Aim
from relbo.boosting.state import State
from relbo.budgets import ENOUGH, FEW, MIN_IMPROVEMENT, budget
from relbo.coordinates.learning import can_learn, covers, is_bent, learn_flow
from relbo.coordinates.race import Preconditioner, find_map
from relbo.families import AbstractFamily
from relbo.mixture import Mixture, log_densities, nothing, num_active, put, weights_of, with_weights
from relbo.model.door import Door, anchored
from relbo.model.whitening import Whitened, identity_map
from relbo.objectives import AbstractEstimator, AbstractObjective, Evaluation, FiniteStep
from relbo.objectives.measuring import measure, measure_one
from relbo.oracles import AbstractOracle, Cloud, Proposals, find_modes, make_cloud
from relbo.oracles.modes import disagree
from relbo.oracles.starts import draw_own
from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.runtime.compiling import compile_seconds, host_split
from relbo.runtime.threads import on_one_blas_thread
from relbo.steps import AbstractStep, WeightUpdate
from relbo.steps.base import weight_problem
from relbo.targets import AbstractTarget

_ROUGH_DRAWS = 32  # the budget is spent: enough to see that the ELBO is finite, and roughly where
_NOTHING_LEFT = 0.2 * ENOUGH  # nats: a refinement would gain less than its noise
_FAR = 20.0  # a duality gap of so many nats means that a far mode was found, and there may be more


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
    min_improvement: float = MIN_IMPROVEMENT
    """Nats by which an iteration must improve the mixture to be kept; -inf keeps them all."""
    num_measure: int = eqx.field(static=True, default=FEW.measure_draws)
    """Draws, over all slots, for ELBO, gap and the test whether a component is kept, at the most."""
    points_at_once: int | None = eqx.field(static=True, default=None)
    """At how many points the target is evaluated side by side, at the most; None where memory sets no limit."""
    points_over: Any = eqx.field(static=True, default=None)
    """A mesh over whose devices points are divided; None where they are not."""
    missing: tuple[str, ...] = eqx.field(static=True, default=())
    """Settings that the file from which this was loaded could not hold; they stand at their defaults."""

    @on_one_blas_thread
    def init(self, key: Key[Array, ""], may_learn: bool = False, spent: Counter | None = None) -> tuple[State, Record]:
        """Find the affine map, fit the first component (plain black-box VI), look for modes.

        Where that component is far from normal, and coordinates may be learned next, the map alone will do: the first
        iteration refines it, if it comes to that. So it will where there is nothing to refine. `spent`, here and below,
        are evaluations that were made since the last record: the new one counts them in.
        """
        map_key, first_key, mode_key, measure_key, flow_key = host_split(key, 5)
        door = self.door(identity_map(self.target, self.preconditioner.kind), spent)
        cost = Cost(door)
        door = find_map(map_key, door, self.preconditioner, self.estimator)
        if self.preconditioner.kind == "flow":
            door = door.through(door.target.with_flow(learn_flow(flow_key, door).flow))
        if may_learn and can_learn(door):
            mixture = self._alone(door)
            seen = measure_one(measure_key, door, mixture, self.num_measure)
            if np.isfinite(seen.estimate.value) and (is_bent(seen.spread) or 0.5 * seen.spread**2 < _NOTHING_LEFT):
                return self._begun(door, mixture, self.find_modes(mode_key, door), seen, cost)
        mixture = cost.of(self._first_component(first_key, door))
        modes = self.find_modes(mode_key, door)
        seen = measure_one(measure_key, door, mixture, self.num_measure)
        if not np.isfinite(seen.estimate.value):
            raise ValueError(
                f"The first component could not be fitted: its ELBO is {seen.estimate.value}. The log density is not "
                "finite where the component lies. Start from a better example, or check the log density for overflow."
            )
        return self._begun(door, mixture, modes, seen, cost)

    @on_one_blas_thread
    def rough(self, key: Key[Array, ""], target: Whitened, elbo: Estimate | None) -> tuple[State, Record]:
        """What there is before the first component: a standard member of the family in the best coordinates so far.

        Without an ELBO that is known already it is measured, on a few draws.
        """
        door = self.door(target)
        cost, mixture = Cost(door), self._alone(door)
        seen = Evaluation(elbo, 0, 0) if elbo is not None else measure_one(key, door, mixture, _ROUGH_DRAWS)
        if not np.isfinite(seen.estimate.value):
            raise ValueError(f"The log density is not finite around the start: its ELBO is {seen.estimate.value}.")
        modes = self._at_center(mixture) if self.oracle.starts.num_modes else None
        state, record = self._begun(door, mixture, modes, seen, cost)
        return dataclasses.replace(state, explore=int(modes is not None)), record

    def _begun(self, door: Door, mixture: Mixture, modes, seen: Evaluation, cost: "Cost") -> tuple[State, Record]:
        """The first state, and its record."""
        state = State(door.target, mixture, modes, self.step_rule.init(), seen.estimate, 0, 0)
        return state, self._record(state, seen, cost, kind="first", step_size=1.0)

    @on_one_blas_thread
    def step(
        self, key: Key[Array, ""], state: State, most: int | None = None, spent: Counter | None = None
    ) -> tuple[State, Record]:
        """One iteration. What does not improve the mixture by `min_improvement` is rejected.

        `most` components, old and new, are weighed at the most; at least one is proposed in any case.
        """
        mode_key, cloud_key, oracle_key, new_key, refine_key, measure_key = host_split(key, 6)
        door = self.door(state.target, spent)
        cost, old = Cost(door), state.mixture
        if num_active(old) == old.capacity:
            old = old.grow(2 * old.capacity)
        modes = self.find_modes(mode_key, door, state.modes) if state.explore == 1 else state.modes
        cloud = make_cloud(cloud_key, door, old, max(1, self.step_rule.num_draws or FEW.weight_draws), "weights")
        proposals = self._propose(oracle_key, door, cloud, modes, state.iteration + 1, most)
        new, update, memory, unweighed = self._weigh(new_key, door, cloud, proposals, state)
        cost.num_nan += proposals.num_nan + unweighed
        if self.refinement is not None:
            # What did not gain is tried again with more patience: noise may be what limits it.
            refinement = self.refinement.patient() if state.explore else self.refinement
            new = cost.of(refinement.refine(refine_key, door, new, self.estimator))
        seen = measure(measure_key, door, old, new, proposals.best, most=self.num_measure, least=self.min_improvement)
        accepted = self._is_gain(seen.improvement)
        after = State(
            state.target,
            with_weights(new, weights_of(new)) if accepted else old,
            modes,
            memory,
            seen.elbo.estimate if accepted else state.elbo,
            state.iteration + 1,
            int(seen.gap.estimate.value > _FAR) if accepted else state.explore + 1,
            state.other,
        )
        return after, self._record(
            after,
            seen.elbo,
            cost,
            kind=self.step_rule.kinds[update.kind],
            accepted=accepted,
            step_size=update.step_size,
            improvement=seen.improvement,
            gap=seen.gap.estimate,
            objective=proposals.objective,
            # Of what was rejected, a component with NaN among its parameters says nothing of the model. And a model
            # that broke since the last iteration leaves nothing of the new mixture to measure, but shows in the old.
            nan_fraction=max(seen.elbo.nan_fraction, seen.nan_before) if accepted else seen.nan_before,
        )

    def can_learn(self, state: State) -> bool:
        """Whether coordinates may be learned: once, and where the target has gradients."""
        return state.target.flow is None and state.other is None and can_learn(self.door(state.target))

    @on_one_blas_thread
    def learn(
        self, key: Key[Array, ""], state: State, behind: float = 0.0, spent: Counter | None = None
    ) -> tuple[State, Record]:
        """Learn a flow, and begin anew in its coordinates, with one component; the state so far is kept as `other`.

        A flow whose ELBO is more than `behind` nats below, or that has no mass where the mixture has some (one of
        several modes, say), is rejected: boosting would not make up for it.
        """
        flow_key, cover_key, measure_key = host_split(key, 3)
        door = self.door(state.target, spent)
        cost = Cost(door)
        learned = learn_flow(flow_key, door)
        worse = not learned.elbo.value > float(state.elbo.value) - behind
        if worse or not covers(cover_key, door, learned, state.mixture, state.modes):
            seen = Evaluation(state.elbo, 0, 0)
            after = dataclasses.replace(state, iteration=state.iteration + 1)
            return after, self._record(after, seen, cost, kind="flow", accepted=False)
        door = door.through(state.target.with_flow(learned.flow))
        mixture = self._alone(door)  # the very law that the flow was trained for
        modes = None if state.modes is None else self._at_center(mixture)  # whatever was found lies on its one hill
        seen = measure_one(measure_key, door, mixture, self.num_measure)
        memory = self.step_rule.init()
        after = State(door.target, mixture, modes, memory, seen.estimate, state.iteration + 1, 0, state)
        return after, self._record(after, seen, cost, kind="flow", step_size=1.0)

    @on_one_blas_thread
    def polish(self, key: Key[Array, ""], state: State) -> tuple[State, Record]:
        """Refinement with falling steps, for the end of a fit; kept only if it improves the mixture."""
        if self.refinement is None:
            raise ValueError("This booster does not refine, so it cannot polish.")
        door = self.door(state.target)
        cost, ascent = Cost(door), self.refinement.annealed(1)
        new = cost.of(ascent.refine(jax.random.fold_in(key, 1), door, state.mixture, self.estimator))
        seen = measure(key, door, state.mixture, new, None, most=self.num_measure, least=0.0)
        accepted = bool(seen.improvement.value > seen.elbo.rounding)
        after = state
        if accepted:
            after = dataclasses.replace(state, mixture=with_weights(new, weights_of(new)), elbo=seen.elbo.estimate)
        return after, self._record(
            after, seen.elbo, cost, kind="polish", accepted=accepted, improvement=seen.improvement
        )

    def _is_gain(self, improvement: Estimate) -> bool:
        """Whether what was tried is better by enough, and by more than its error: noise and rounding (unless all are
        kept)."""
        if self.min_improvement == -math.inf:
            return not math.isnan(improvement.value)
        return bool(improvement.value > max(self.min_improvement, improvement.std_err))

    def gap(self, key: Key[Array, ""], door: Door, mixture: Mixture, params: PyTree) -> Estimate:
        """The duality gap of a mixture at the component `params`, on fresh draws."""
        return measure(key, door, mixture, mixture, params, most=self.num_measure, least=-math.inf).gap.estimate

    def propose(self, key: Key[Array, ""], state: State, mixture: Mixture) -> Proposals:
        """What the oracle offers a mixture, in the state that a fit was left in."""
        cloud_key, oracle_key = host_split(key, 2)
        door = self.door(state.target)
        cloud = make_cloud(cloud_key, door, mixture, FEW.weight_draws, "weights")
        return self._propose(oracle_key, door, cloud, state.modes, state.iteration + 1)

    def find_modes(self, key: Key[Array, ""], door: Door, known: PyTree | None = None) -> PyTree:
        """Components at modes of the target, to start the oracle from; None where the oracle wants no such starts."""
        if not self.oracle.starts.num_modes:
            return None
        return find_modes(key, door, self.family, self.oracle.starts.num_modes, known)

    @property
    def chunk(self) -> int:
        """How many points the model may constrain, or give likelihoods of, at once."""
        return min(self.target.points_at_once, self.points_at_once or self.target.points_at_once)

    def door(self, target: Whitened, spent: Counter | None = None) -> Door:
        """The door to the target in the coordinates of a state; it counts on in `spent`."""
        return Door(target, self.points_at_once, spent, self.points_over)

    def rebased(self, whitened: Whitened) -> Whitened:
        """This booster's target in given coordinates, its anchor (if it subsamples) where it was."""
        moved = whitened.with_target(self.target)
        anchor = whitened.anchor
        return moved if anchor is None else anchored(self.door(moved), anchor.point).target

    def _first_component(self, key, door: Door) -> tuple[Mixture, int]:
        """The mixture of one component, and the number of NaN draws met.

        After the race of `find_map` a standard member of the family is nearly there, and the program that refines
        iterations does the rest.
        """
        alone = self._alone(door)
        if self.refinement is not None and self.refinement.fits_alone and self.preconditioner.kind != "none":
            return self.refinement.refine(key, door, alone, self.estimator)
        start = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], alone.params)
        empty = nothing(self.family, door.dim, 1, np.dtype(door.dtype))
        improved = self.first_ascent.improve(key, door, Aim(empty, FiniteStep(), self.estimator), start)
        return alone.place(0, jax.tree.map(lambda leaf: leaf[0], improved.params), 0.0), improved.num_nan

    def _at_center(self, mixture: Mixture) -> PyTree:
        """Modes where none was sought: the first component, over and over."""
        num = self.oracle.starts.num_modes
        return jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[:1], num, axis=0), mixture.params)

    def _alone(self, door: Door) -> Mixture:
        """One standard member of the family, with room for more."""
        capacity = budget(door.dim).capacity
        mixture = nothing(self.family, door.dim, capacity, np.dtype(door.dtype))
        return mixture.reweight(np.where(np.arange(capacity) == 0, 0.0, -np.inf).astype(door.dtype))

    def _propose(self, key, door: Door, cloud: Cloud, modes, iteration: int, most: int | None = None) -> Proposals:
        # With several components an iteration the finite step is that of one more among them all.
        room = min(most or cloud.mixture.capacity, cloud.mixture.capacity) - cloud.num_components
        num = max(1, min(self.step_rule.at_once, room))
        time = cloud.num_components if self.step_rule.at_once > 1 else iteration
        aim = Aim(cloud.mixture, self.objective, self.estimator, time)
        return self.oracle.propose(key, door, aim, cloud, modes, num)

    def _weigh(
        self, key, door: Door, cloud: Cloud, proposals: Proposals, state: State
    ) -> tuple[Mixture, WeightUpdate, PyTree, int]:
        """The mixture with the proposals, and all weights found anew by the step rule."""
        old, first = cloud.mixture, cloud.num_components
        slots = first + np.arange(len(proposals))
        placed = put(old, slots, proposals.params)
        num = cloud.num_each if self.step_rule.num_draws else 1
        log_p, log_s = np.full((old.capacity, num), np.nan), np.zeros((old.capacity, num, old.capacity))
        if self.step_rule.num_draws:
            own = draw_own(key, door, cloud, proposals.params, num, placed)
            log_p[slots], log_s[slots], log_p[:first] = own.log_p, own.log_each, cloud.log_p
            at_old = log_densities(old.family, placed.params, cloud.points.reshape(-1, door.dim))
            log_s[:first] = at_old.reshape(first, num, -1)
        problem = weight_problem(cloud.weights.copy(), slots, log_p, log_s)
        update, memory = self.step_rule.update(problem, placed, slots, state.iteration + 1, state.memory)
        num_nan = problem.num_nan if self.step_rule.num_draws else 0
        return with_weights(placed, update.weights), update, memory, num_nan

    def _record(self, state: State, measured: Evaluation, cost: "Cost", **tried: Any) -> Record:
        """Of an iteration that ended in `state`; what is not said was not `tried`."""
        weights = weights_of(state.mixture)
        weights = weights[weights > 0].astype(state.mixture.dtype)
        unsaid: dict[str, Any] = {"accepted": True, "step_size": 0.0, "nan_fraction": measured.nan_fraction}
        unsaid |= {"improvement": None, "gap": None, "objective": None}
        return Record(
            iteration=state.iteration,
            num_components=len(weights),
            weights=weights,
            elbo=state.elbo,
            seconds=time.perf_counter() - cost.begun,
            evaluations=cost.door.num_evaluations,
            num_nan=cost.num_nan + measured.num_nan,
            num_zero=measured.num_zero,
            spread=measured.spread,
            rounding=measured.rounding,
            several_modes=disagree(self.family, state.modes),
            compile_seconds=compile_seconds() - cost.compiled,
            spent=dict(cost.door.spent),
            **unsaid | tried,
        )


class Cost:
    """What an iteration costs, from here on: the clock, the evaluations through its door, draws lost to NaN."""

    def __init__(self, door: Door):
        self.door, self.num_nan, self.begun, self.compiled = door, 0, time.perf_counter(), compile_seconds()

    def of(self, stage: tuple[Mixture, int]) -> Mixture:
        """The result of a stage, whose NaN draws are added."""
        self.num_nan += stage[1]
        return stage[0]

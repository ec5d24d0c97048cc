"""`fit`: the host loop around a booster, with progress, stopping, and nothing lost on Ctrl-C."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from relbo.boosting import Booster, State
from relbo.posterior import Posterior
from relbo.progress import progress
from relbo.settings import make_booster
from relbo.stopping import AbstractStop, GapBelow, MaxComponents, MaxIterations, Stalled
from relbo.targets import as_target
from relbo.trace import Record

MAX_NAN_FRACTION = 0.1
"""A fit stops, with what it has, when a larger share of the draws has a NaN log density."""
_POLISH_KEY = 2**31 - 1  # no iteration has this number


def fit(
    target: Any,
    *,
    seed: int = 0,
    max_components: int | None = None,
    stop: AbstractStop | Sequence[AbstractStop] | None = None,
    best_by: Callable[[Posterior], float] | None = None,
    progress_bar: bool = True,
    start: Posterior | None = None,
    **settings: Any,
) -> Posterior:
    r"""Fit a mixture to a target, or to a PyMC model: whiten, boost, stop by the duality gap, polish.

    There are at most `max_components`, 32 by default. `stop` replaces the other rules, `GapBelow()` and `Stalled()` by
    default. `settings` are those of `relbo.make_booster`: family, objective, oracle, step, estimator, refine,
    precondition, min_improvement. With a step rule that is not monotone (the fixed step) the best iterate is returned,
    by ELBO or by `best_by(posterior)`, larger being better. `start` continues a posterior with more components. Ctrl-C
    returns the posterior so far, with a warning. The same seed gives the same result on the same machine.

    >>> import jax.numpy as jnp, relbo
    >>> target = relbo.from_log_density(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), jnp.zeros(2))
    >>> relbo.fit(target, seed=0).num_components
    1
    """
    _check_settings(settings)
    limit = _checked_limit(max_components)
    target = as_target(target)
    if start is not None and not settings:
        booster = eqx.tree_at(lambda b: b.target, start.booster, target)
    else:
        booster = make_booster(target, **settings)
    rules = [*_checked_rules(stop), MaxComponents(limit), MaxIterations(3 * limit + 10)]
    run = _Run(booster, rules, jax.random.key(seed), best_by)
    try:
        with progress(progress_bar) as report:
            run.go(report, start, target)
    except KeyboardInterrupt:
        if run.state is None:
            raise
        run.reason = "it was interrupted"
        warnings.warn(f"Interrupted: returning the posterior after {len(run.records)} iterations.", stacklevel=2)
    return run.posterior()


class _Run:
    """One fit in progress: whatever happens, `posterior()` gives what there is."""

    def __init__(self, booster: Booster, rules: list[AbstractStop], key, best_by):
        self.booster, self.rules, self.key, self.best_by = booster, rules, key, best_by
        self.state: State | None = None
        self.records: list[Record] = []
        self.reason = "it was interrupted"
        self.final: State | None = None
        self.best: tuple[float, State] | None = None

    @property
    def current(self) -> State:
        if self.state is None:
            raise RuntimeError("The fit has not begun.")
        return self.state

    def go(self, report, start: Posterior | None, target) -> None:
        first_new = 0
        if start is None:
            self._take(*self.booster.init(jax.random.fold_in(self.key, 0)), report)
        else:
            first_new = self._resume(start, target)
        while (reason := self._stop_reason(self.records[first_new:])) is None:
            state = self.current
            self._take(*self.booster.step(jax.random.fold_in(self.key, state.iteration + 1), state), report)
        self.reason = reason
        if self.booster.refinement is not None and self.records[-1].num_components > 1:
            self.final, record = self.booster.polish(jax.random.fold_in(self.key, _POLISH_KEY), self.current)
            self.records.append(record)
            report(record)

    def _resume(self, start: Posterior, target) -> int:
        """Take the state before polishing, so that a continued fit equals one that never stopped."""
        if (target.dim, target.dtype) != (start.target.dim, start.target.dtype):
            raise ValueError(
                f"start is a posterior in {start.target.dim} dimensions ({start.target.dtype}), the target has "
                f"{target.dim} ({target.dtype}): pass the target that start was fitted to."
            )
        self.state = eqx.tree_at(lambda state: state.target.target, start.state, target)
        self.records = [record for record in start.trace if record.kind != "polish"]
        return len(self.records) - 1

    def _take(self, state: State, record: Record, report) -> None:
        self.state = state
        self.records.append(record)
        if not self.booster.step_rule.monotone:
            self._keep_best()
        report(record)

    def _keep_best(self) -> None:
        state = self.current
        value = float(self.best_by(self._posterior(state)) if self.best_by is not None else state.elbo.value)
        if self.best is None or value > self.best[0]:
            self.best = (value, state)

    def _stop_reason(self, records: list[Record]) -> str | None:
        if records[-1].nan_fraction > MAX_NAN_FRACTION:
            return (
                f"{records[-1].nan_fraction:.0%} of the draws had a NaN log density (the limit is "
                f"{MAX_NAN_FRACTION:.0%}): check the model there"
            )
        return next((reason for rule in self.rules if (reason := rule.reason(records)) is not None), None)

    def posterior(self) -> Posterior:
        """The polished mixture, or the best iterate of a rule that is not monotone, or the last one."""
        return self._posterior(self.final or (self.best[1] if self.best is not None else self.current))

    def _posterior(self, shown: State) -> Posterior:
        return Posterior(
            shown.mixture, shown.target, shown.elbo, list(self.records), self.reason, self.booster, self.current
        )


def _check_settings(settings: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(make_booster).parameters if name != "target"]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise TypeError(f"fit has no setting {', '.join(unknown)}. It takes {', '.join(known)}, and those of its own.")


def _checked_limit(max_components: int | None) -> int:
    if max_components is None:
        return 32
    if isinstance(max_components, bool) or not isinstance(max_components, int) or max_components < 1:
        raise ValueError(f"max_components must be an integer of at least 1, got {max_components!r}.")
    return max_components


def _checked_rules(stop) -> list[AbstractStop]:
    if stop is None:
        return [GapBelow(), Stalled()]
    rules = [stop] if isinstance(stop, AbstractStop) else list(stop)
    for rule in rules:
        if not isinstance(rule, AbstractStop):
            raise ValueError(f"stop takes rules such as relbo.GapBelow(0.01), got {rule!r}.")
    return rules

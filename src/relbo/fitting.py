"""`fit`: the host loop around a booster, with progress, stopping and checkpoints. Whatever happens, nothing is lost."""

import contextlib
import inspect
import logging
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from relbo._compiled import compiled
from relbo.boosting import Booster, State
from relbo.interrupts import Terminated, terminable
from relbo.posterior import Posterior
from relbo.progress import progress
from relbo.settings import make_booster
from relbo.stopping import AbstractStop, GapBelow, MaxComponents, MaxIterations, Stalled
from relbo.storage.checkpoint import Checkpoint, check_same_fit, fingerprint, locked
from relbo.storage.files import check_alike
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
    checkpoint: str | os.PathLike | None = None,
    start: Posterior | None = None,
    **settings: Any,
) -> Posterior:
    r"""Fit a mixture to a target, or to a PyMC model: whiten, boost, stop by the duality gap, polish.

    There are at most `max_components`, 32 by default. `stop` replaces the other rules, `GapBelow()` and `Stalled()` by
    default. `settings` are those of `relbo.make_booster`: family, objective, oracle, step, estimator, refine,
    precondition, min_improvement, max_memory. With a step rule that is not monotone (the fixed step) the best iterate
    is returned, by ELBO or by `best_by(posterior)`, larger being better. `start` continues a posterior with more
    components.

    `checkpoint` is the path of a file that is written after every iteration. The same call, after the process was
    killed, goes on from there, and its result is the same to the last bit as if nothing had happened. The file of a
    finished fit gives its result at once, or goes on if more components are allowed. `relbo.load` reads it, too.

    Ctrl-C and SIGTERM return the posterior so far, with a warning; with a checkpoint, SIGTERM ends the process. So does
    a log density that raises, or is NaN too often, in the middle of a fit. The same seed gives the same result on the
    same machine.

    >>> import jax.numpy as jnp, relbo
    >>> target = relbo.from_log_density(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), jnp.zeros(2))
    >>> relbo.fit(target, seed=0).num_components
    1
    """
    _check_settings(settings)
    limit = _checked_limit(max_components)
    target = as_target(target)
    booster = _checked_booster(target, start, settings)
    rules = [*_checked_rules(stop), MaxComponents(limit), MaxIterations(3 * limit + 10)]
    with contextlib.ExitStack() as stack:
        file = None if checkpoint is None else stack.enter_context(locked(checkpoint))
        run = _Run(booster, rules, seed, best_by, file)
        run.begin(start)
        try:
            with terminable(), progress(progress_bar) as report:
                run.go(report)
        except KeyboardInterrupt:
            if run.state is None:
                raise
            run.stopped_by("Interrupted")
        except Terminated:
            if run.state is not None:
                run.stopped_by("Terminated (SIGTERM)")
            if run.state is None or file is not None:
                raise SystemExit(128 + signal.SIGTERM) from None
        except Exception as error:
            if run.state is None:
                raise
            run.failed_by(error)
        return run.posterior()


class _Run:
    """One fit in progress: whatever happens, `posterior()` gives what there is."""

    def __init__(self, booster: Booster, rules: list[AbstractStop], seed: int, best_by, file: Checkpoint | None):
        self.booster, self.rules, self.seed, self.best_by, self.file = booster, rules, seed, best_by, file
        self.key = jax.random.key(seed)
        self.state: State | None = None
        self.records: list[Record] = []
        self.first_new = 0
        """The stopping rules read the trace from here on."""
        self.reason = "it was interrupted"
        self.final: State | None = None
        self.best: tuple[float, State] | None = None
        self.about: dict[str, Any] = {}

    @property
    def current(self) -> State:
        if self.state is None:
            raise RuntimeError("The fit has not begun.")
        return self.state

    def begin(self, start: Posterior | None) -> None:
        """Take up what there is: the checkpoint, or else the posterior to start from."""
        if start is not None:
            self._resume(start)
            self.first_new = len(self.records) - 1
        if self.file is None:
            return
        self.about = fingerprint(self.booster, self.seed, np.asarray(_at_starts(self.booster.target)))
        found = self.file.read(self.booster)
        if found is None:
            return
        check_same_fit(found, self.booster, self.about, self.file.path)
        posterior, about = found[0], found[1]["fit"]
        self._resume(posterior)
        self.first_new = min(about["first_new"], len(self.records) - 1)
        shown = eqx.tree_at(lambda s: (s.mixture, s.elbo), self.current, (posterior.mixture, posterior.elbo))
        if about["best"] is not None:
            self.best = (float(about["best"]), shown)
        if about["finished"] and self._stop_reason() == posterior.stop_reason:
            self.final, self.reason, self.records = shown, posterior.stop_reason, list(posterior.trace)

    def go(self, report) -> None:
        if self.final is not None:
            return
        if self.state is None:
            self._take(*self.booster.init(jax.random.fold_in(self.key, 0), alone=self._only_one()), report)
        while (reason := self._stop_reason()) is None:
            state = self.current
            self._take(*self.booster.step(jax.random.fold_in(self.key, state.iteration + 1), state), report)
        self.reason = reason
        if self.booster.refinement is not None and self.records[-1].num_components > 1:
            final, record = self.booster.polish(jax.random.fold_in(self.key, _POLISH_KEY), self.current)
            self.final, self.records = final, [*self.records, record]
            report(record)
        if self.file is not None:
            self._write(self.file, finished=True)

    def _only_one(self) -> bool:
        return any(isinstance(rule, MaxComponents) and rule.num == 1 for rule in self.rules)

    def _resume(self, start: Posterior) -> None:
        """Take the state before polishing, so that a continued fit equals one that never stopped."""
        whitened = start.state.target.with_target(self.booster.limited_target())
        self.state = eqx.tree_at(lambda state: state.target, start.state, whitened)
        self.records = [record for record in start.trace if record.kind != "polish"]

    def _take(self, state: State, record: Record, report) -> None:
        self.state, self.records = state, [*self.records, record]
        if not self.booster.step_rule.monotone:
            self._keep_best()
        if self.file is not None:
            self._write(self.file, finished=False)
        report(record)

    def _write(self, file: Checkpoint, finished: bool) -> None:
        best = None if self.best is None else self.best[0]
        about = {"first_new": self.first_new, "best": best, "finished": finished}
        file.write(self.posterior(), self.about | about)
        if finished:
            file.finish()

    def _keep_best(self) -> None:
        state = self.current
        value = float(self.best_by(self._posterior(state)) if self.best_by is not None else state.elbo.value)
        if self.best is None or value > self.best[0]:
            self.best = (value, state)

    def _stop_reason(self) -> str | None:
        records = self.records[self.first_new :]
        if records[-1].nan_fraction > MAX_NAN_FRACTION:
            return (
                f"{records[-1].nan_fraction:.0%} of the draws had a NaN log density (the limit is "
                f"{MAX_NAN_FRACTION:.0%}): check the model there"
            )
        return next((reason for rule in self.rules if (reason := rule.reason(records)) is not None), None)

    def stopped_by(self, what: str) -> None:
        self.reason = "it was interrupted"
        self._warn(what)

    def failed_by(self, error: Exception) -> None:
        """The model raised in the middle of the fit."""
        logging.getLogger("relbo").error("the fit ended early", exc_info=error)
        self.reason = f"it failed: {_last_line(error)}"
        hint = " (set max_memory, or use a smaller family)" if _is_memory(error) else ""
        self._warn(f"{_last_line(error)}{hint}")

    def _warn(self, what: str) -> None:
        text = f"{what}: returning the posterior after {len(self.records)} iterations."
        if self.file is None:
            text += " To go on: fit(target, start=posterior)."
        elif self.file.problem is None:
            text += f" The checkpoint {self.file.path} holds it, too: the same call goes on from there."
        else:
            text += f" The checkpoint could not be written ({self.file.problem}): relbo.save it elsewhere."
        warnings.warn(text, stacklevel=4)

    def posterior(self) -> Posterior:
        """The polished mixture, or the best iterate of a rule that is not monotone, or the last one."""
        return self._posterior(self.final or (self.best[1] if self.best is not None else self.current))

    def _posterior(self, shown: State) -> Posterior:
        return Posterior(
            shown.mixture, shown.target, shown.elbo, list(self.records), self.reason, self.booster, self.current
        )


@compiled
def _at_starts(target):
    return jax.vmap(target.log_density)(target.initial[:1])


def _last_line(error: Exception) -> str:
    """The error in one line. A callback's comes as a traceback in the text of JAX's own, its last line being it."""
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    inner = [line.strip() for line in lines if line.strip() and not line.startswith(" ") and "Error" in line]
    return (inner[-1] if inner else lines[0])[:300]


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _checked_booster(target, start: Posterior | None, settings: dict[str, Any]) -> Booster:
    if start is None:
        return make_booster(target, **settings)
    check_alike(start.target, target, "start")
    if not settings:
        if start.booster.missing:
            raise ValueError(
                f"start comes from a file, which could not hold {', '.join(start.booster.missing)}, of your own "
                "making. Give the settings of the fit again, and it goes on."
            )
        return eqx.tree_at(lambda b: b.target, start.booster, target)
    booster = make_booster(target, **settings)
    if booster.family != start.state.mixture.family:
        raise ValueError(
            f"start is a mixture of {start.state.mixture.family}, and family={booster.family} was asked for. A mixture "
            "has components of one family: leave family out, or begin anew."
        )
    return booster


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

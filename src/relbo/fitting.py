"""`fit`: the host loop around a booster, with progress, stopping and checkpoints. Whatever happens, nothing is lost."""

import contextlib
import dataclasses
import inspect
import logging
import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np

from relbo._warn import warn
from relbo.boosting import Booster, State
from relbo.budgets import budget
from relbo.choices import did_you_mean, seed_number, whole_number
from relbo.door import BudgetSpent, watched
from relbo.estimate import Estimate
from relbo.interrupts import Terminated, interruption_in, terminable
from relbo.mixture import Mixture
from relbo.posterior import Posterior
from relbo.progress import progress
from relbo.settings import make_booster
from relbo.stopping import AbstractStop, GapBelow, MaxComponents, MaxEvaluations, MaxIterations, Near, Stalled
from relbo.storage.checkpoint import Checkpoint, check_same_fit, fingerprint, locked
from relbo.storage.files import check_alike
from relbo.storage.layouts import decode_estimate, encode_estimate
from relbo.storage.objects import encode_number
from relbo.targets import as_target
from relbo.trace import Record

MAX_NAN_FRACTION = 0.1
"""A fit stops, with what it has, when a larger share of the draws has a NaN log density."""
_COARSE = 0.01
"""Nats; a last digit that is worth more is warned of."""
_FAR = 0.2
"""Nats by which log p - log q spreads where a mixture is still far from its target: 0.02 nats of divergence."""
_POLISH_KEY = 2**31 - 1  # no iteration has these numbers
_MODES_KEY = 2**31 - 2


def fit(
    target: Any = None,
    *,
    seed: SupportsIndex = 0,
    max_components: int | None = None,
    max_evaluations: int | None = None,
    stop: AbstractStop | Sequence[AbstractStop] | None = None,
    best_by: Callable[[Posterior], float] | None = None,
    progress_bar: bool = True,
    checkpoint: str | os.PathLike | None = None,
    start: Posterior | None = None,
    **settings: Any,
) -> Posterior:
    r"""Fit a mixture to a target, or to a PyMC model: whiten, boost, stop by the duality gap, polish.

    Without a target inside `with model:`, the PyMC model is meant, as it is in PyMC's own functions.

    There are at most `max_components`, 32 by default, and at most `max_evaluations` of the log density, for a model
    that is dear. `stop` replaces the other rules, `Near()`, `GapBelow()` and `Stalled()` by default. `settings` are
    those of `relbo.make_booster`: family, objective, oracle, step, estimator, refine, precondition, min_improvement,
    num_measure, max_memory. With a step rule that is not monotone (the fixed step) the best iterate is returned, by
    ELBO or by `best_by(posterior)`, larger being better. `start` continues a posterior with more components.

    `checkpoint` is the path of a file that is written after every iteration. The same call, after the process was
    killed, goes on from there, and its result is the same to the last bit as if nothing had happened. The file of a
    finished fit gives its result at once, or goes on if more components are allowed. `relbo.load` reads it, too.

    Ctrl-C returns the posterior so far, with a warning; so does a log density that raises, or is NaN too often, in the
    middle of a fit. SIGTERM ends the process (with status 143), after a message that says whether a checkpoint holds
    the fit; so does a log density that calls `sys.exit`. The same seed gives the same result on the same machine.

    >>> import jax.numpy as jnp, relbo
    >>> target = relbo.from_log_density(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), jnp.zeros(2))
    >>> relbo.fit(target, seed=0).num_components
    1
    """
    _check_settings(settings)
    _check_objects(start, best_by, checkpoint)
    limit = 32 if max_components is None else whole_number("max_components", max_components, 1)
    seed = seed_number(seed)
    target = as_target(target)
    booster = _checked_booster(target, start, settings)
    rules = [*_checked_rules(stop, booster), MaxComponents(limit), MaxIterations(3 * limit + 10)]
    if max_evaluations is not None:
        rules.append(MaxEvaluations(max_evaluations))
    with contextlib.ExitStack() as stack:
        file = None if checkpoint is None else stack.enter_context(locked(checkpoint))
        run = _Run(booster, rules, seed, best_by, file)
        run.begin(start)
        try:
            with terminable(), progress(progress_bar) as report, watched(run.watch):
                run.go(report)
        except BudgetSpent as spent:
            run.end_spent(str(spent))
        except (Exception, KeyboardInterrupt, Terminated) as error:
            run.end_early(error)
        posterior = run.posterior()
        _warn_of_rounding(posterior)
        return posterior


class _Run:
    """One fit in progress: whatever happens, `posterior()` gives what there is."""

    def __init__(self, booster: Booster, rules: list[AbstractStop], seed: int, best_by, file: Checkpoint | None):
        self.booster, self.rules, self.seed, self.best_by, self.file = booster, rules, seed, best_by, file
        self.most = min(rule.num for rule in rules if isinstance(rule, MaxComponents))
        self.budgets = [rule for rule in rules if type(rule).exceeded is not AbstractStop.exceeded]
        self.key = jax.random.key(seed)
        self.state: State | None = None
        self.records: list[Record] = []
        self.first_new = 0
        """The stopping rules read the trace from here on."""
        self.num_old = 0
        """So many records were made before this call."""
        self.reason = "it was interrupted"
        self.watched, self.begun, self.num_now = -1, 0.0, 0
        """Of the iteration that is going on: how many went before, when it began, its evaluations and those before."""
        self.is_continued = False
        """Whether it goes on from a posterior that was finished before."""
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
            self.first_new, self.is_continued = len(self.records) - 1, True
            if not self.booster.step_rule.monotone:  # what there was competes with what will be
                self.best = (self._value(start), _showing(self.current, start.mixture, start.elbo))
        if self.file is None:
            return
        self.about = fingerprint(self.booster, self.seed, start)
        found = self.file.read(self.booster)
        if found is None:
            return
        check_same_fit(found, self.booster, self.about, self.file.path)
        posterior, about = found.posterior, found.header["fit"]
        self.about["start"] = about["start"]
        self._resume(posterior)
        self.first_new = min(about["first_new"], len(self.records) - 1)
        if about["best"] is not None:
            best = found.best or self.current.mixture
            self.best = (float(about["best"]), _showing(self.current, best, decode_estimate(about["best_elbo"])))
        if about["finished"] and self._stop_reason() == posterior.stop_reason:
            self.final = _showing(self.current, posterior.mixture, posterior.elbo)
            self.reason, self.records = posterior.stop_reason, list(posterior.trace)

    def watch(self, num: int) -> None:
        """Called before every evaluation, with how many points it has: budgets hold within an iteration, too."""
        if self.watched != len(self.records):
            before = self.records[self.num_old :]
            self.watched, self.num_now = len(self.records), sum(record.evaluations for record in before)
            self.begun = time.perf_counter() - sum(record.seconds for record in before)
        self.num_now += num
        for rule in self.budgets:
            if (reason := rule.exceeded(time.perf_counter() - self.begun, self.num_now - 1)) is not None:
                raise BudgetSpent(reason)

    def end_spent(self, reason: str) -> None:
        """A budget was spent in the middle of an iteration: keep what there was before it."""
        if self.state is None:
            raise ValueError(f"The fit has no result: {reason} before the first component was fitted. Give it more.")
        self.reason = reason
        if self.file is not None:
            self._write(self.file, finished=True)

    def go(self, report) -> None:
        if self.final is not None:
            if self.file is not None:
                self.file.finish()
            return
        if self.state is None:
            self._take(*self.booster.init(jax.random.fold_in(self.key, 0)), report)
        while (reason := self._stop_reason()) is None:
            state = self.current
            key = jax.random.fold_in(self.key, state.iteration + 1)
            self._take(*self.booster.step(key, state, self.most), report)
        self.reason = reason
        if self._is_broken():
            self._explain(f"The fit stopped: {reason}")
            return
        # Near the target polishing has next to nothing to gain.
        near = any(isinstance(rule, Near) and rule.reason(self.records) == reason for rule in self.rules)
        if self.booster.refinement is not None and self.records[-1].num_components > 1 and not near:
            begun = self.current if self.best is None else self.best[1]
            final, record = self.booster.polish(jax.random.fold_in(self.key, _POLISH_KEY), begun)
            self.final, self.records = final, [*self.records, record]
            report(record)
        if self.file is not None:
            self._write(self.file, finished=True)

    def _resume(self, start: Posterior) -> None:
        """Take the state before polishing, so that a continued fit equals one that never stopped."""
        booster, state = self.booster, start.state
        whitened = booster.rebased(state.target)
        fresh = booster.step_rule.init()
        shape: Any = jax.tree.structure(fresh)
        if jax.tree.structure(state.memory) != shape:  # the memory of another rule, or a bare one from a file
            leaves = jax.tree.leaves(state.memory)
            fits = len(leaves) == shape.num_leaves and "step_rule" in start.booster.missing
            state = dataclasses.replace(state, memory=jax.tree.unflatten(shape, leaves) if fits else fresh)
        num_modes = 0 if state.modes is None else jax.tree.leaves(state.modes)[0].shape[0]
        if num_modes != booster.oracle.starts.num_modes:
            modes = booster.find_modes(jax.random.fold_in(self.key, _MODES_KEY), booster.door(whitened))
            state = dataclasses.replace(state, modes=modes)
        self.state = dataclasses.replace(state, target=whitened)
        self.records = [record for record in start.trace if record.kind != "polish"]
        self.num_old = len(self.records)

    def _take(self, state: State, record: Record, report) -> None:
        self.state, self.records = state, [*self.records, record]
        if not self.booster.step_rule.monotone:
            self._keep_best()
        if self.file is not None:
            self._write(self.file, finished=False)
        report(record)

    def _write(self, file: Checkpoint, finished: bool) -> None:
        value, best = self.best or (None, None)
        about = {
            "first_new": self.first_new,
            "best": None if value is None else encode_number(value),
            "best_elbo": None if best is None else encode_estimate(best.elbo),
            "finished": finished,
        }
        file.write(self.posterior(), self.about | about, best)
        if finished:
            file.finish()

    def _keep_best(self) -> None:
        value = self._value(self._posterior(self.current))
        if self.best is None or math.isnan(self.best[0]) or value > self.best[0]:
            self.best = (value, self.current)

    def _value(self, posterior: Posterior) -> float:
        return float(self.best_by(posterior) if self.best_by is not None else posterior.elbo.value)

    def _is_broken(self) -> bool:
        """Whether the last iteration met too many NaN; one that was made before this call may have been mended."""
        return len(self.records) > self.num_old and self.records[-1].nan_fraction > MAX_NAN_FRACTION

    def _stop_reason(self) -> str | None:
        records = self.records[self.first_new :]
        if self._is_broken():
            return (
                f"{records[-1].nan_fraction:.0%} of the draws had a NaN log density (the limit is "
                f"{MAX_NAN_FRACTION:.0%}): check the model there"
            )
        # A fit that is continued was near enough before, and is asked for more.
        rules = [rule for rule in self.rules if not (self.is_continued and isinstance(rule, Near))]
        return next((reason for rule in rules if (reason := rule.reason(records)) is not None), None)

    def end_early(self, error: BaseException) -> None:
        """Say what happened and what there is. Where there is nothing, or nothing but to obey, raise."""
        interruption = interruption_in(error) if isinstance(error, Exception) else error
        if isinstance(interruption, SystemExit):
            raise interruption from error
        if isinstance(interruption, Terminated):
            warn(f"Terminated (SIGTERM) after {len(self.records)} iterations: the process ends. {self._kept()}")
            raise SystemExit(128 + signal.SIGTERM)
        if self.state is None:
            raise interruption or error
        if interruption is None:
            logging.getLogger("relbo").error("the fit ended early", exc_info=error)
            self.reason = f"it failed: {_last_line(error)}"
            hint = " (set max_memory, or use a smaller family)" if _is_memory(error) else ""
            self._explain(f"{_last_line(error)}{hint}")
            return
        self.reason = "it was interrupted"
        self._explain("Interrupted")

    def _kept(self) -> str:
        """What is left of a fit whose process ends."""
        if self.file is None:
            return "Nothing of the fit is kept: fit(checkpoint=path) would keep it, and go on from there."
        if self.state is None:
            return "There was nothing to keep yet."
        if self._is_on_disk(self.file):
            return f"The checkpoint {self.file.path} holds the fit: the same call goes on from there."
        return f"The checkpoint could not be written ({self.file.problem})."

    def _is_on_disk(self, file: Checkpoint) -> bool:
        """Whether the file holds all iterations; one whose writing was interrupted is written again."""
        if file.last_written != len(self.records):
            self._write(file, finished=False)
        return file.problem is None and file.last_written == len(self.records)

    def _explain(self, what: str) -> None:
        text = f"{what}: returning the posterior after {len(self.records)} iterations."
        if self.file is None:
            warn(f"{text} To go on: fit(target, start=posterior).")
        elif self._is_on_disk(self.file):
            warn(f"{text} The checkpoint {self.file.path} holds it, too: the same call goes on from there.")
        else:
            warn(f"{text} The checkpoint could not be written ({self.file.problem}): relbo.save it elsewhere.")

    def posterior(self) -> Posterior:
        """The polished mixture, or the best iterate of a rule that is not monotone, or the last one."""
        return self._posterior(self.final or (self.best[1] if self.best is not None else self.current))

    def _posterior(self, shown: State) -> Posterior:
        return Posterior(
            shown.mixture, shown.target, shown.elbo, list(self.records), self.reason, self.booster, self.current
        )


def _showing(state: State, mixture: Mixture, elbo: Estimate) -> State:
    return dataclasses.replace(state, mixture=mixture, elbo=elbo)


def _last_line(error: BaseException) -> str:
    """The error in one line. A callback's comes as a traceback in the text of JAX's own, its last line being it."""
    text = "".join(traceback.format_exception_only(error)).partition("\n--------------------\n")[0]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "#", "("))]
    return (lines[-1] if lines else type(error).__name__)[:300]


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _warn_of_rounding(posterior: Posterior) -> None:
    """Where a log density is so large that its last digit is more than what is left to improve."""
    dtype = posterior.target.dtype
    unit = float(np.finfo(dtype).eps) * abs(float(posterior.elbo.value))
    if dtype == np.float32 and unit > _COARSE:
        warn(
            f"A log density of {posterior.elbo.value:.3g} is rounded to {unit:.2g} nats in float32, so that smaller "
            'differences were noise to this fit. Compute in float64: jax.config.update("jax_enable_x64", True) before '
            "the target is made."
        )


_FIELDS = {
    "objective": ("objective",),
    "oracle": ("oracle", "first_ascent"),
    "step": ("step_rule", "min_improvement"),
    "estimator": ("estimator",),
    "refine": ("refinement",),
    "precondition": ("preconditioner",),
    "min_improvement": ("min_improvement",),
    "num_measure": ("num_measure",),
    "max_memory": ("points_at_once", "num_measure"),
}
"""What of a booster each setting decides."""


def _checked_booster(target, start: Posterior | None, settings: dict[str, Any]) -> Booster:
    """Of the settings, or of those of `start` with the given ones in their place."""
    if start is None:
        return make_booster(target, **settings)
    check_alike(start.target, target, "start")
    old = dataclasses.replace(start.booster, target=target)
    given = [field for name in settings for field in _FIELDS.get(name, ())]
    missing = [field for field in old.missing if field not in given]
    if missing:
        raise ValueError(
            f"start comes from a file, which could not hold {', '.join(missing)}, of your own making. Give those "
            "settings of the fit again, and it goes on."
        )
    if not settings:
        return old
    booster = make_booster(target, **{"family": old.family, **settings})
    if booster.family != old.family:
        raise ValueError(
            f"start is a mixture of {old.family}, and family={booster.family} was asked for. A mixture has components "
            "of one family: leave family out, or begin anew."
        )
    kept = {field for fields in _FIELDS.values() for field in fields} - set(given)
    return dataclasses.replace(booster, **{field: getattr(old, field) for field in kept})


def _check_settings(settings: dict[str, Any]) -> None:
    signatures = (inspect.signature(fit).parameters, inspect.signature(make_booster).parameters)
    known = [name for names in signatures for name in names if name not in ("target", "settings")]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise TypeError(f"fit has no setting {', '.join(unknown)}. {hint}It takes {', '.join(known)}.")


def _check_objects(start: Any, best_by: Any, checkpoint: Any) -> None:
    if start is not None and not isinstance(start, Posterior):
        raise ValueError(
            f"start must be a posterior, what fit returned, got {type(start).__name__}. relbo.load(path) reads one."
        )
    if best_by is not None and not callable(best_by):
        raise ValueError(f"best_by must be a function of a posterior, larger being better, got {best_by!r}.")
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a file, got {checkpoint!r}.")


def _checked_rules(stop, booster: Booster) -> list[AbstractStop]:
    if stop is None:
        several = booster.step_rule.at_once > 1  # components an iteration: fewer iterations in vain say as much
        return [Near(), GapBelow(), Stalled(2 if several else 5, budget(booster.target.dim).min_gain, _FAR)]
    rules = list(stop) if isinstance(stop, list | tuple) else [stop]
    for rule in rules:
        if not isinstance(rule, AbstractStop):
            raise ValueError(f"stop takes rules such as relbo.GapBelow(0.01), got {rule!r}.")
    return rules

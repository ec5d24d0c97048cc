"""`fit`: what was asked for is checked, and a run is made of it. Whatever happens to that, its result is kept."""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, SupportsIndex

from relbo.boosting.booster import Booster
from relbo.boosting.stopping import (
    AbstractStop,
    GapBelow,
    MaxComponents,
    MaxEvaluations,
    MaxIterations,
    MaxSeconds,
    Near,
    Stalled,
)
from relbo.budgets import MOST_COMPONENTS, budget
from relbo.loop.cautions import caution
from relbo.loop.progress import progress
from relbo.loop.running import Run
from relbo.loop.together import Crew
from relbo.model.door import BudgetSpent, watched
from relbo.model.placing import placed
from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import did_you_mean, seed_number, whole_number
from relbo.runtime.interrupts import Terminated, terminable
from relbo.settings.names import make_booster
from relbo.storage.checkpoint import locked
from relbo.storage.files import check_alike
from relbo.targets import as_target

_FAR = 0.2
"""Nats by which log p - log q spreads where a mixture is still far from its target: 0.02 nats of divergence."""
_TILED = 2
"""Dimensions in which normals tile any bend sooner than a flow learns it (a banana: to 0.007 nats, and to 0.014)."""


def fit(
    target: Any = None,
    *,
    seed: SupportsIndex = 0,
    max_components: int | None = None,
    max_evaluations: int | None = None,
    max_seconds: float | None = None,
    stop: AbstractStop | Sequence[AbstractStop] | None = None,
    best_by: Callable[[Posterior], float] | None = None,
    callback: Callable[[Posterior], None] | None = None,
    progress_bar: bool = True,
    checkpoint: str | os.PathLike | None = None,
    start: Posterior | None = None,
    mesh: Any = None,
    shard: str = "auto",
    **settings: Any,
) -> Posterior:
    r"""Fit a mixture to a target, or to a PyMC model: find coordinates, boost, stop by the duality gap, polish.

    Arguments:
        target: what a `relbo.from_...` made, or a PyMC model. Inside `with model:` it may be left out, as in PyMC.
        seed: the same seed gives the same result on the same machine.
        max_components: 32 by default; 1 is a single normal, plain variational inference.
        max_evaluations, max_seconds: budgets, for an expensive model; the fit ends with what it has.
        stop: rules in place of the default ones, `Near()`, `GapBelow()` and `Stalled()`.
        best_by: a number for a posterior, larger being better. By it, or by the ELBO, the best iterate is chosen where
            the step rule is not monotone (the fixed step).
        callback: called with every iterate as a posterior, the first component's first and the polished one last: to
            watch a fit, or to measure it. An error in it ends the fit, as one of the log density does.
        checkpoint: the path of a file that is written after every iteration. The same call, after the process was
            killed, goes on from there, and its result is the same to the last bit as if nothing had happened. The file
            of a finished fit gives its result at once, or goes on if more components are allowed. `load` reads it.
        start: a posterior to continue, with more components.
        mesh: a `jax.sharding.Mesh` that divides the work among devices, also of several processes
            (`relbo.distributed.init`): every process makes the same call and gets the same posterior, and the first of
            them writes the checkpoint. Data that lie on several devices already need none.
        shard: what it divides, the rows of the data ("data") or the points at which the model is evaluated ("points");
            by default whichever suits the size of the data.
        settings: those of `relbo.make_booster`: family, objective, oracle, step, estimator, refine, precondition,
            min_improvement, num_measure, max_memory.

    Ctrl-C does not raise: the posterior so far is returned, with a warning. The same happens if the log density raises,
    or is NaN too often, in the middle of a fit. SIGTERM ends the process, with status 143: of the fit only its
    checkpoint is left, and a message says so, or that there is none. A log density that calls `sys.exit` ends it, too.

    >>> import jax.numpy as jnp, relbo
    >>> target = relbo.from_log_density(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), jnp.zeros(2))
    >>> relbo.fit(target, seed=0).num_components
    1
    """
    check_settings(settings)
    _check_objects(start, best_by, callback, checkpoint)
    limit = MOST_COMPONENTS if max_components is None else whole_number("max_components", max_components, 1)
    seed = seed_number(seed)
    target, points_over = placed(as_target(target), mesh, shard)
    booster = dataclasses.replace(_checked_booster(target, start, settings), points_over=points_over)
    rules = [*_checked_rules(stop, booster), MaxComponents(limit), MaxIterations(3 * limit + 10)]
    if max_evaluations is not None:
        rules.append(MaxEvaluations(max_evaluations))
    if max_seconds is not None:
        rules.append(MaxSeconds(max_seconds))
    crew = Crew(booster)
    crew.check(booster, rules, seed, checkpoint is not None)
    with contextlib.ExitStack() as stack:
        file = None if checkpoint is None else stack.enter_context(locked(checkpoint, crew.together))
        run = Run(booster, rules, seed, best_by, file, crew)
        run.may_learn = stop is None and limit > 1 and _may_learn(booster)
        run.show = run.show if callback is None else partial(_shown, callback)
        run.begin(start)
        try:
            shown = progress(progress_bar and crew.is_first)
            with terminable(), crew.listening(), shown as report, watched(report.watching(run.watch), run.note):
                run.go(report)
        except BudgetSpent as spent:
            run.end_spent(spent.stop)
        except (Exception, KeyboardInterrupt, Terminated) as error:
            run.end_early(error)
        posterior = run.posterior()
        with watched(run.watch):
            caution(posterior)
        return posterior


def _shown(callback: Callable[[Posterior], None], posterior: Posterior) -> None:
    """What it evaluates is not the fit's: no budget counts it."""
    with watched(lambda num, purpose: None):
        callback(posterior)


def _may_learn(booster: Booster) -> bool:
    """Whether a flow may be tried as the map: one is trained for normal components, and kept where it is better."""
    if booster.preconditioner.kind != "auto" or booster.family.geometry is None:
        return False
    return booster.step_rule.monotone and booster.target.dim > _TILED


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


def check_settings(settings: dict[str, Any]) -> None:
    signatures = (inspect.signature(fit).parameters, inspect.signature(make_booster).parameters)
    known = [name for names in signatures for name in names if name not in ("target", "settings")]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise TypeError(f"fit has no setting {', '.join(unknown)}. {hint}It takes {', '.join(known)}.")


def _check_objects(start: Any, best_by: Any, callback: Any, checkpoint: Any) -> None:
    if start is not None and not isinstance(start, Posterior):
        raise ValueError(
            f"start must be a posterior, what fit returned, got {type(start).__name__}. relbo.load(path) reads one."
        )
    if best_by is not None and not callable(best_by):
        raise ValueError(f"best_by must be a function of a posterior, larger being better, got {best_by!r}.")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of a posterior, got {callback!r}.")
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a file, got {checkpoint!r}.")


def _checked_rules(stop, booster: Booster) -> list[AbstractStop]:
    if stop is None:
        several = booster.step_rule.at_once > 1  # components an iteration: fewer iterations in vain say as much
        afford = budget(booster.target.dim)
        return [Near(), GapBelow(), Stalled(2 if several else 5, afford.min_gain, _FAR, afford.min_share)]
    rules = list(stop) if isinstance(stop, list | tuple) else [stop]
    for rule in rules:
        if not isinstance(rule, AbstractStop):
            raise ValueError(f"stop takes rules such as relbo.GapBelow(0.01), got {rule!r}.")
    return rules

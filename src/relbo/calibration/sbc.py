r"""`calibrate`: is the whole fit right, on average over data that the model itself draws?

Simulation-based calibration (Talts et al. 2018): $\theta \sim p(\theta)$, $y \sim p(y \mid \theta)$, fit, and rank
$\theta$ among the draws of the fit. For an exact fit the ranks are uniform, see `ranks.py`.

At one data set $y$ (posterior SBC, Säilynoja et al. 2025): $\theta \sim q(\theta) \approx p(\theta \mid y)$ is drawn
from the posterior at hand, $y' \sim p(y' \mid \theta)$, and the fit is to $p(\theta \mid y, y') \propto p(\theta,
y)\, p(y' \mid \theta)$. If $q$ is exact, $(\theta, y')$ is a draw from the joint law of parameters and new data given
$y$, whose conditional law of $\theta$ is the density that is fitted: for exact fits the ranks are uniform. So non-
uniform ranks prove that $q$ or the fits near it are wrong, for data of the kind that matter, where a vague prior may
mostly draw data that nobody will see. One could put $q$ in the place of $p(\theta, y)$ as well; then the ranks are
uniform for any $q$, and only the fits are tested. What it cannot see: a mode that $q$ and the fits both lack. And
what is too narrow in both alike is seen only in part: for a normal posterior, with sds at 0.7 of the truth, true
values scatter 1.2 times as far as claimed, where they do 1.4 times with draws from the prior.
"""

import os
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from functools import singledispatch
from importlib import import_module
from typing import Any

import numpy as np

from relbo.calibration.result import Calibration
from relbo.calibration.trial import AbstractExperiment, FitWith, Outcomes, Ranks, SimulatorExperiment, Trial, from_entry
from relbo.loop.progress import count_up
from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import whole_number
from relbo.runtime.journal import Journal
from relbo.runtime.require import require
from relbo.runtime.workers import run_jobs
from relbo.storage.objects import encode_or_text
from relbo.targets import AbstractTarget, from_numpyro

_HOPELESS = 10  # failures without one success: the other simulations would fail, too


def calibrate(
    model: Any,
    /,
    *args: Any,
    make_target: Callable[[Any], Any] | None = None,
    fit: Callable[[AbstractTarget, int], Posterior] | dict[str, Any] | None = None,
    num_simulations: int = 100,
    num_draws: int = 999,
    seed: int = 0,
    num_processes: int | None = None,
    progress_bar: bool = True,
    level: float = 0.01,
    checkpoint: str | os.PathLike | None = None,
    **kwargs: Any,
) -> Calibration:
    """Simulation-based calibration: draw parameters and data, fit, rank the parameters among the fit's draws.

    Arguments:
        model: one of
            - a NumPyro model, with its arguments in `args` and `kwargs`, or a target made by `relbo.from_numpyro`.
              Parameters and data come from its prior. The data given say what is observed and in which shape.
            - a posterior of such a target: calibration at its own data. Parameters come from it, a second set of data
              is drawn given them, and the fits are to both sets.
            - a function `simulate(rng) -> (params, data)` of a NumPy generator, with `make_target(data)`, which gives
              a relbo target or a PyMC model. `params` has the target's names and shapes, or some of them.
        fit: what is calibrated: settings of `relbo.fit` as a dict, or any function `fit(target, seed) -> Posterior`.
        num_simulations: each takes a fit. 100 find gross errors, 1000 subtle ones; the verdict says how subtle.
        num_draws: from every posterior; they are independent, and ranks lie in 0..num_draws.
        num_processes: by default one for every core, fewer if there are few fits; 1 stays in this process. The result
            is the same for any number of them. Inside `with joblib.parallel_config("dask")`, or another of joblib's
            backends, simulations run there.
        level: the probability of a false alarm, over all quantities together.
        checkpoint: the path of a file with a line for every simulation that is done. The same call, after it was
            stopped, goes on from there; simulations that failed are not tried again.

    A fit that raises, or whose process dies, is counted in `failures` and never hidden. Ctrl-C gives the result so far,
    with a warning.

    >>> result = relbo.calibrate(model, X, y=y, fit={"max_components": 8})  # doctest: +SKIP
    >>> print(result)  # doctest: +SKIP
    >>> relbo.plots.ranks(result)[0, 0].figure.savefig("calibration.png")  # doctest: +SKIP
    """
    _check_numbers(num_simulations, num_draws, level)
    begun = time.perf_counter()
    experiment = _experiment(model, args, kwargs, make_target, num_simulations, seed)
    trial = Trial(experiment, _checked_fit(fit), num_draws, seed)
    journal = None if checkpoint is None else _journal(checkpoint, trial, num_simulations)
    outcomes, interrupted = Outcomes(), False
    jobs = dict(enumerate(experiment.jobs(num_simulations)))
    for entry in journal.entries if journal is not None else ():
        from_entry(entry).add_to(outcomes)
        del jobs[entry["simulation"]]
    if outcomes.failures:
        _check_hope(outcomes, num_simulations)
    try:
        with count_up(progress_bar, "calibrating", len(jobs)) as report:
            _collect(run_jobs(trial, jobs, num_processes), outcomes, num_simulations, report, journal)
    except KeyboardInterrupt:
        if len(outcomes.ranks) < 2:
            raise
        interrupted = True
        warnings.warn(f"Interrupted: returning the ranks of {outcomes.num} simulations.", stacklevel=2)
    names, ranks = _stack(outcomes.ranks)
    failures = sorted(outcomes.failures, key=lambda failure: failure.simulation)
    seconds = time.perf_counter() - begun
    return Calibration(names, ranks, num_draws, num_simulations, failures, seconds, seed, level, interrupted)


def _experiment(model, args, kwargs, make_target, num_simulations: int, seed: int) -> AbstractExperiment:
    if make_target is not None:
        if not callable(model) or not callable(make_target) or args or kwargs:
            raise TypeError(
                "with make_target, calibrate takes a function simulate(rng) -> (params, data) and no arguments for it: "
                "bind them with functools.partial."
            )
        return SimulatorExperiment(model, make_target, seed)
    if callable(model):
        model, args, kwargs = from_numpyro(model, *args, **kwargs), (), {}
    if args or kwargs:
        raise TypeError(f"calibrate takes no arguments of a model beside a {type(model).__name__}, which has them.")
    draw_seed, data_seed = (int(state) for state in np.random.SeedSequence(seed).generate_state(2) >> 1)
    return _simulations(model, num_simulations, draw_seed, data_seed)


@singledispatch
def _simulations(model, num_simulations: int, draw_seed: int, data_seed: int) -> AbstractExperiment:
    raise TypeError(
        f"calibrate takes a NumPyro model, a target or a posterior of one, or simulate and make_target; got "
        f"{type(model).__name__}. For a PyMC model write simulate(rng) and make_target(data)."
    )


@_simulations.register
def _(model: AbstractTarget, num_simulations: int, draw_seed: int, data_seed: int) -> AbstractExperiment:
    return _numpyro_models().from_prior(model, num_simulations, draw_seed)


@_simulations.register
def _(model: Posterior, num_simulations: int, draw_seed: int, data_seed: int) -> AbstractExperiment:
    return _numpyro_models().from_posterior(model, num_simulations, draw_seed, data_seed)


def _numpyro_models() -> Any:
    require("numpyro", extra="numpyro")
    return import_module("relbo.calibration.numpyro_models")


def _checked_fit(fit) -> Callable[[AbstractTarget, int], Posterior]:
    if fit is None or isinstance(fit, dict):
        return FitWith(fit or {})
    if not callable(fit):
        raise TypeError(f"fit must be a dict of settings or a function fit(target, seed), got {type(fit).__name__}.")
    return fit


def _check_numbers(num_simulations: int, num_draws: int, level: float) -> None:
    whole_number("num_simulations", num_simulations, 2)
    whole_number("num_draws", num_draws, 1)
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}.")


def _journal(path: str | os.PathLike, trial: Trial, num_simulations: int) -> Journal:
    """Of this calibration, as far as a file can tell: a function is known by its name."""
    fit = trial.fit
    settings = {name: encode_or_text(value) for name, value in fit.settings.items()} if isinstance(fit, FitWith) else {}
    told = getattr(fit, "__qualname__", type(fit).__qualname__)
    numbers = {"num_simulations": num_simulations, "num_draws": trial.num_draws, "seed": trial.seed}
    experiment = type(trial.experiment).__name__
    return Journal(path, "a calibration", {**numbers, "experiment": experiment, "fit": told, "settings": settings})


def _collect(trials: Generator, outcomes: Outcomes, num_simulations: int, report, journal: Journal | None) -> None:
    """Outcomes as they come; whatever happens, the processes are ended."""
    with warnings.catch_warnings(), closing(trials):
        warnings.filterwarnings("ignore", message=".*tasks which were still being processed")  # ended early, as we mean
        for _, outcome in trials:
            outcome.add_to(outcomes)
            if journal is not None:
                journal.add(outcome.as_entry())
            report(len(outcomes.failures))
            _check_hope(outcomes, num_simulations)


def _check_hope(outcomes: Outcomes, num_simulations: int) -> None:
    """Stop where nothing works, rather than fail a hundred times."""
    failures = outcomes.failures
    if len(failures) == outcomes.num >= min(_HOPELESS, num_simulations) or len(failures) >= num_simulations - 1:
        raise RuntimeError(
            f"{len(failures)} of {outcomes.num} simulations failed, so there is nothing to test. "
            f"The first: {failures[0].message}"
        )


def _stack(outcomes: list[Ranks]) -> tuple[list[str], np.ndarray]:
    """The ranks in the order of the simulations, of the quantities that all have and that vary."""
    outcomes = sorted(outcomes, key=lambda one: one.simulation)
    shared = set(outcomes[0].names).intersection(*(one.names for one in outcomes))
    names = [name for name in outcomes[0].names if name in shared]
    columns = [[one.names.index(name) for name in names] for one in outcomes]
    ranks = np.array([one.values[chosen] for one, chosen in zip(outcomes, columns, strict=True)])
    truth = np.array([one.truth[chosen] for one, chosen in zip(outcomes, columns, strict=True)])
    varies = (truth != truth[0]).any(axis=0)  # a constant, such as the diagonal of a correlation matrix, has no rank
    return [name for name, kept in zip(names, varies, strict=True) if kept], ranks[:, varies]

"""The fits behind Tables 1 and 2 of the paper, on any data: systems side by side, paired over seeds."""

import dataclasses
import math
from typing import Any

import relbo
from experiments import logistic
from experiments.data import Classification
from experiments.runs import Piece, timed_fit

BBVI, CONTROL, DEFAULT, NORMAL = "BBVI", "BBVI, as many steps", "relbo's default", "one full normal"
PAPER, PAPER_LAST = "boosted, RELBO", "boosted, RELBO, last iterate"
FINITE, LAST = "boosted, finite step", "boosted, finite step, last iterate"
FAMILIES = {"Laplace": "mean_field_laplace", "Gaussian": "mean_field_normal"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The same for every data set. Steps and draws for a component are those of the paper's code."""

    first_steps: int = 3000
    """Of BBVI, where the authors' code takes `lmo_steps`."""
    lmo_steps: int = 600
    lmo_draws: int = 1
    iterations: int = 10
    num_measure: int = 256
    selection_draws: int = 250
    score_draws: int = 1000
    elbo_draws: int = 2000
    default_components: int = 32


QUICK = Settings(200, 100, 1, 2, 256, 100, 250, 500, 2)


def pieces(data: Classification, seeds: range, few: int, families: tuple[str, ...], settings: Settings) -> list[Piece]:
    """Every system on one data set. The default, one full normal and the control run on the first `few` seeds."""
    about = {"data": data.name, "digest": data.digest, **dataclasses.asdict(settings)}
    target = logistic.make_target(data)
    found = []
    for seed in seeds:
        for family in families:
            key = about | {"family": family, "seed": seed}
            found.append(Piece(key | {"part": "boosted"}, boosted, (target, data, family, seed, settings)))
        if seed < few:
            key = about | {"seed": seed}
            found.append(Piece(key | {"part": "default"}, default, (target, data, seed, settings)))
            arguments = (target, data, families[0], seed, settings)
            found.append(Piece(key | {"part": "control", "family": families[0]}, control, arguments))
    return found


def boosted(target, data: Classification, family: str, seed: int, settings: Settings) -> dict[str, Any]:
    """BBVI, and two boosted fits that continue it: one with the paper's objective, one with the finite-step one.

    Of each the iterate with the best train log-likelihood (as in the paper; BBVI competes) and the last one.
    """
    common = relbo.paper("fixed", family=FAMILIES[family]) | {"num_measure": settings.num_measure}
    random = common["oracle"].starts
    near = relbo.Starts(num_residual=4, num_modes=0, num_initial=0)

    def oracle(num_steps, starts):
        draws = settings.lmo_draws
        return relbo.GradientOracle(num_steps=num_steps, num_draws=draws, num_restarts=1, starts=starts)

    first = common | {"oracle": oracle(settings.first_steps, random), "max_components": 1}
    bbvi, seconds = timed_fit(target, seed=seed, **first)
    common |= {"max_components": settings.iterations + 1}
    paper = common | {"oracle": oracle(settings.lmo_steps, random)}
    ours = common | {"oracle": oracle(settings.lmo_steps, near)}
    ours |= {"objective": "finite_step", "estimator": "sticking_the_landing"}

    def score(posterior) -> float:
        value = logistic.train_score(posterior, data, settings.selection_draws, seed)
        return -math.inf if math.isnan(value) else value

    rows = [measured(BBVI, bbvi, data, seed, seconds, settings)]
    for chosen_name, last_name, more in ((PAPER, PAPER_LAST, paper), (FINITE, LAST, ours)):
        iterates = [bbvi]
        posterior, further = timed_fit(target, seed=seed, start=bbvi, callback=iterates.append, **more)
        chosen = max(iterates, key=score)  # the first of equals
        how = {"stop_reason": posterior.stop_reason}
        rows.append(measured(chosen_name, chosen, data, seed, seconds + further, settings) | how)
        rows.append(measured(last_name, iterates[-1], data, seed, seconds + further, settings) | how)
    return {"rows": [{"data": data.name, "family": family, **row} for row in rows]}


def control(target, data: Classification, family: str, seed: int, settings: Settings) -> dict[str, Any]:
    """BBVI with as many steps as the boosted fits have in all, and with their gradients: is it boosting, or steps?"""
    common = relbo.paper("fixed", family=FAMILIES[family]) | {"num_measure": settings.num_measure, "max_components": 1}
    num_steps = settings.first_steps + settings.iterations * settings.lmo_steps
    starts = common["oracle"].starts
    oracle = relbo.GradientOracle(num_steps=num_steps, num_draws=settings.lmo_draws, num_restarts=1, starts=starts)
    common |= {"oracle": oracle, "estimator": "sticking_the_landing"}
    posterior, seconds = timed_fit(target, seed=seed, **common)
    row = measured(CONTROL, posterior, data, seed, seconds, settings)
    return {"rows": [{"data": data.name, "family": family, **row}]}


def default(target, data: Classification, seed: int, settings: Settings) -> dict[str, Any]:
    """relbo's default, and the same with one component: what of its gain is boosting, what is the covariance?"""
    rows = []
    for name, limit in ((NORMAL, 1), (DEFAULT, settings.default_components)):
        posterior, seconds = timed_fit(target, seed=seed, max_components=limit)
        rows.append(measured(name, posterior, data, seed, seconds, settings))
    return {"rows": [{"data": data.name, "family": "full normal", **row} for row in rows]}


def measured(system: str, posterior, data: Classification, seed: int, seconds: float, settings: Settings) -> dict:
    """Measured on draws that took no part in choosing anything."""
    draws = posterior.sample_unconstrained(settings.score_draws, seed=1000 + seed)
    estimate = logistic.elbo(posterior, settings.elbo_draws, seed=2000 + seed)
    return {
        "system": system,
        "seed": seed,
        **logistic.scores(draws, data),
        "elbo": estimate.value,
        "elbo_std_err": estimate.std_err,
        "components": posterior.num_components,
        "evaluations": posterior.num_evaluations,
        "cpu_seconds": seconds,
        "stop_reason": posterior.stop_reason,
    }

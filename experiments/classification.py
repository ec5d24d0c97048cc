"""The paper's Tables 1 and 2, on any data: systems side by side, paired over seeds."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import relbo
from experiments import logistic
from experiments.data import Classification
from experiments.report import Options, Report, Table
from experiments.runs import Runs, timed_fit

BBVI, CONTROL, PAPER, DEFAULT = "BBVI", "BBVI, as many steps", "boosted, RELBO", "relbo's default"
FINITE, LAST = "boosted, finite step", "boosted, finite step, last iterate"
FAMILIES = {"Laplace": "mean_field_laplace", "Gaussian": "mean_field_normal"}
METRICS = ("train_lpd", "train_ll", "test_auroc", "test_lpd", "elbo")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The same for every data set. The numbers of iterations and steps are the paper's or its code's."""

    first_steps: int = 10_000
    lmo_steps: int = 600
    lmo_draws: int = 1
    iterations: int = 35
    num_measure: int = 512
    selection_draws: int = 250
    score_draws: int = 2000
    elbo_draws: int = 10_000
    families: tuple[str, ...] = ("Laplace", "Gaussian")
    default_components: int = 32
    few_seeds: int = 3
    """The default, the control and the model with an intercept run on the first of the seeds only: the default hardly
    depends on them."""
    intercept: bool = True

    @classmethod
    def of(cls, options: Options) -> "Settings":
        if not options.quick:
            return cls()
        return cls(200, 100, 1, 3, 256, 100, 250, 500, ("Laplace",), 2, 1, False)


def run_table(
    title: str,
    sets: Sequence[Classification],
    options: Options,
    runs: Runs,
    paper: Sequence[Table],
    remarks: Sequence[str],
) -> Report:
    """Every system on every data set, with and without intercept, over the seeds."""
    settings, seeds = Settings.of(options), options.seed_range(10)
    results = [row for data in sets for row in _on(data, seeds, settings.few_seeds, settings, runs)]
    if settings.intercept:
        few = seeds[: settings.few_seeds]
        results += [row for data in sets for row in _on(data.with_intercept(), few, 1, settings, runs)]
    tables = [*paper, *(_table(name, results) for name in _names(results)), _paired(results), _elbos(results)]
    return Report(
        title, dataclasses.asdict(settings), tables, results, _figure(results), [*remarks, *_remarks(results)]
    )


def _on(data: Classification, seeds: range, num_default: int, settings: Settings, runs: Runs) -> list[dict[str, Any]]:
    """Every system on one data set: the default and the control on the first seeds only."""
    target = logistic.make_target(data)
    about = {"data": data.name, "digest": data.digest, **dataclasses.asdict(settings)}
    results = []
    for seed in seeds:
        systems = {family: functools.partial(_boosted, family=family) for family in settings.families}
        if seed < num_default:
            systems["full normal"] = _default
            systems |= {
                f"{family}, control": functools.partial(_control, family=family) for family in settings.families
            }
        for name, system in systems.items():
            key = about | {"family": name, "seed": seed}
            found = runs.once(key, lambda: {"rows": system(target, data, seed=seed, settings=settings)})  # noqa: B023
            family = name.removesuffix(", control")
            results += [{"data": data.name, "family": family, "seed": seed, **row} for row in found["rows"]]
    return results


def _boosted(target, data: Classification, *, family: str, seed: int, settings: Settings) -> list[dict[str, Any]]:
    """BBVI, and two boosted fits that continue it: one with the paper's objective, one with the finite-step one."""
    common = relbo.paper("fixed", family=FAMILIES[family]) | {"num_measure": settings.num_measure}
    random = common["oracle"].starts
    near = relbo.Starts(num_residual=4, num_modes=0, num_initial=0)

    def oracle(num_steps, starts):
        draws = settings.lmo_draws
        return relbo.GradientOracle(num_steps=num_steps, num_draws=draws, num_restarts=1, starts=starts)

    first = common | {"oracle": oracle(settings.first_steps, random), "max_components": 1}
    bbvi, seconds = timed_fit(target, seed=seed, **first)
    rows = [_row(BBVI, bbvi, data, seed, seconds, settings)]
    iterates = []

    def train_score(posterior):
        iterates.append(posterior)
        return logistic.train_score(posterior, data, settings.selection_draws, seed)

    common |= {"max_components": settings.iterations + 1, "best_by": train_score}
    paper = common | {"oracle": oracle(settings.lmo_steps, random)}
    ours = common | {"oracle": oracle(settings.lmo_steps, near)}
    ours |= {"objective": "finite_step", "estimator": "sticking_the_landing"}
    for name, more in ((PAPER, paper), (FINITE, ours)):
        posterior, further = timed_fit(target, seed=seed, start=bbvi, **more)
        rows.append(_row(name, posterior, data, seed, seconds + further, settings))
    last = _row(LAST, iterates[-1], data, seed, seconds + further, settings)
    return [*rows, last | {"stop_reason": posterior.stop_reason}]  # an iterate does not know yet how its fit will end


def _control(target, data: Classification, *, family: str, seed: int, settings: Settings) -> list[dict[str, Any]]:
    """BBVI with as many steps as the boosted fits have in all, and with their gradients: is it boosting, or steps?"""
    common = relbo.paper("fixed", family=FAMILIES[family]) | {"num_measure": settings.num_measure, "max_components": 1}
    num_steps = settings.first_steps + settings.iterations * settings.lmo_steps
    starts = common["oracle"].starts
    oracle = relbo.GradientOracle(num_steps=num_steps, num_draws=settings.lmo_draws, num_restarts=1, starts=starts)
    common |= {"oracle": oracle, "estimator": "sticking_the_landing"}
    posterior, seconds = timed_fit(target, seed=seed, **common)
    return [_row(CONTROL, posterior, data, seed, seconds, settings)]


def _default(target, data: Classification, *, seed: int, settings: Settings) -> list[dict[str, Any]]:
    posterior, seconds = timed_fit(target, seed=seed, max_components=settings.default_components)
    return [_row(DEFAULT, posterior, data, seed, seconds, settings)]


def _row(system: str, posterior, data: Classification, seed: int, seconds: float, settings: Settings) -> dict[str, Any]:
    """Measured on draws that took no part in choosing anything."""
    draws = posterior.sample_unconstrained(settings.score_draws, seed=1000 + seed)
    estimate = logistic.elbo(posterior, settings.elbo_draws, seed=2000 + seed)
    return {
        "system": system,
        **logistic.scores(draws, data),
        "elbo": estimate.value,
        "elbo_std_err": estimate.std_err,
        "components": posterior.num_components,
        "seconds": seconds,
        "evaluations": posterior.num_evaluations,
        "stop_reason": posterior.stop_reason,
    }


def _names(results) -> list[str]:
    return list(dict.fromkeys(row["data"] for row in results))


def _of(results, data: str, system: str, family: str | None = None) -> list[dict[str, Any]]:
    rows = [row for row in results if row["data"] == data and row["system"] == system]
    return sorted((row for row in rows if family in (None, row["family"])), key=lambda row: row["seed"])


def _values(rows, metric: str) -> np.ndarray:
    return np.asarray([float(row[metric]) for row in rows])


def _systems(results, data: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["system"], row["family"]) for row in results if row["data"] == data))


def _table(data: str, results) -> Table:
    """Mean and standard deviation over seeds."""
    columns = [
        "system",
        "family",
        "train log pred. density",
        "train E[log lik.]",
        "test AUROC",
        "test log pred. density",
    ]
    columns += ["ELBO", "components", "seconds (median)", "seeds"]
    rows = []
    for system, family in _systems(results, data):
        mine = _of(results, data, system, family)
        cells = [_spread(_values(mine, metric)) for metric in METRICS]
        number = float(np.mean(_values(mine, "components")))
        rows.append([system, family, *cells, number, float(np.median(_values(mine, "seconds"))), len(mine)])
    return Table(f"{data}: mean ± sd over seeds", columns, rows)


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.5g}" + (f" ± {_sd(values):.2g}" if len(values) > 1 else "")


def _paired(results) -> Table:
    """Boosted less BBVI, seed by seed, with the standard error of the mean difference; and the two spreads."""
    rows = []
    for data in _names(results):
        for system, family in _systems(results, data):
            if system == BBVI:
                continue
            for against in [f for s, f in _systems(results, data) if s == BBVI and (system == DEFAULT or f == family)]:
                mine = _of(results, data, system, family)
                base = _of(results, data, BBVI, against)[: len(mine)]
                cells = []
                for metric in ("train_ll", "train_lpd", "test_auroc"):
                    one, other = _values(mine, metric), _values(base, metric)
                    spreads = f"{_sd(one):.2g} / {_sd(other):.2g}" if len(mine) > 1 else "-"
                    cells += [_difference(one - other), spreads]
                rows.append([data, system, against, *cells, len(mine)])
    columns = ["data", "system", "BBVI family"]
    for name in ("train E[log lik.]", "train log pred. density", "test AUROC"):
        columns += [f"{name}: difference", "sd / sd of BBVI"]
    columns.append("seeds")
    return Table("Less BBVI, paired over seeds (mean difference ± its standard error)", columns, rows)


def _sd(values: np.ndarray) -> float:
    """NaN for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else np.nan


def _difference(values: np.ndarray) -> str:
    error = f" ± {_sd(values) / np.sqrt(len(values)):.5f}" if len(values) > 1 else ""
    return f"{values.mean():+.5f}{error}"


def _elbos(results) -> Table:
    """The default's ELBO against the best of the others', seed by seed."""
    rows = []
    for data in _names(results):
        default = _values(_of(results, data, DEFAULT), "elbo")
        others = {pair: _values(_of(results, data, *pair), "elbo") for pair in _systems(results, data)}
        others = {pair: values for pair, values in others.items() if pair[0] != DEFAULT}
        others = {pair: values[: len(default)] for pair, values in others.items()}
        best = max(others, key=lambda pair: others[pair].mean())
        name, their = f"{best[0]}, {best[1]}", others[best]
        rows.append([data, _spread(default), name, _spread(their), _difference(default - their)])
    columns = ["data", "default", "best other system", "its ELBO", "default less it"]
    return Table("ELBO (nats): relbo's default and the best of the others", columns, rows)


def _remarks(results) -> list[str]:
    kept = [row["components"] == 1 for row in results if row["system"] == PAPER]
    return [
        "The boosted fits continue the BBVI fit of the same seed, so that they are paired; the iterate with the best "
        "train log-likelihood is taken, as in the paper, and BBVI itself (the first iterate) competes. All figures are "
        "measured on draws that took no part in the choice.",
        "The train log-likelihood of the paper's code is E_q[log p(y | x, w)] per row; the log predictive density "
        "log E_q[p(y | x, w)] is that of the prediction which a Bayesian makes. Both are shown.",
        "Once the first component has converged, the RELBO of the second is unbounded: a mean-field component has "
        "lighter tails than the posterior somewhere, and log p - log q grows without bound there. The second component "
        "runs away, the fixed step gives it weight 2/3, and the best iterate by train log-likelihood was BBVI itself "
        f"in {sum(kept)} of {len(kept)} fits. The other boosted rows have the same family, fixed step and as many "
        "steps; the objective is the finite-step one, the oracle starts where the residual of the mixture is large, "
        "and gradients stick the landing.",
        f"'{CONTROL}' is one component with as many steps as a boosted fit has in all, and such gradients: what is "
        "gained beyond it is gained by boosting.",
    ]


def _figure(results) -> Figure:
    """One panel a data set: test AUROC against train log predictive density, one dot a seed."""
    names = _names(results)
    columns = min(2, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.8 * lines), layout="constrained")
    axes = np.atleast_1d(figure.subplots(lines, columns)).ravel()
    pairs = list(dict.fromkeys((row["system"], row["family"]) for row in results))
    colors = {
        BBVI: "#999999",
        CONTROL: "#CC79A7",
        PAPER: "#D55E00",
        FINITE: "#56B4E9",
        LAST: "#0072B2",
        DEFAULT: "#000000",
    }
    markers = {"Laplace": "^", "Gaussian": "o", "full normal": "*"}
    for axis, name in zip(axes, names, strict=False):
        for system, family in pairs:
            rows = _of(results, name, system, family)
            style = {"color": colors[system], "marker": markers[family], "s": 60 if system == DEFAULT else 22}
            label = f"{system}, {family}" if system != DEFAULT else system
            axis.scatter(_values(rows, "train_lpd"), _values(rows, "test_auroc"), alpha=0.7, label=label, **style)
        axis.set(title=name, xlabel="train log predictive density (nats a row)", ylabel="test AUROC")
        axis.ticklabel_format(useOffset=False)
        axis.tick_params(axis="x", labelrotation=20)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure

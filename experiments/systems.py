"""The compared systems on one posterior: a table of what each comes to, and how near to the truth that is."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import relbo
from experiments import comparing, logistic
from experiments.comparing import DEFAULT, FLOW, QUICK, TRUTH, Budget
from experiments.data import Classification, breast_cancer, check, find, load_classification
from experiments.palette import COLOURS, tidy
from experiments.report import Options, Report, Table, text_of
from experiments.runs import Piece, Runs

COLUMNS = [
    "system", "components of", "ELBO", "KL to the truth", "train log-lik", "test AUROC", "error of means",
    "error of sds", "components", "CPU s", "evaluations",
]  # fmt: skip
FAMILIES = {
    "Guo et al. 2016": "full normal",
    "Miller et al. 2016": "low-rank normal",
    "Locatello et al. 2018 (AISTATS), fixed step": "truncated mean-field normal",
    "Locatello et al. 2018 (AISTATS), norm-corrective": "truncated mean-field normal",
    DEFAULT: "full normal",
    FLOW: "3 autoregressive flows",
    TRUTH: "draws",
}

QUICK_SYSTEMS = ("BBVI", "the paper, fixed step", "Guo et al. 2016", DEFAULT)


def run(options: Options, runs: Runs) -> Report:
    check(options, ("chemreact10.npz",))
    path = find(options, "chemreact10.npz")
    data = ten_features() if path is None else load_classification(path)
    budget, seeds = QUICK if options.quick else Budget(), options.seed_range(3)
    key = {"data": data.digest, "budget": dataclasses.asdict(budget)}
    target = logistic.make_target(data)
    shown = QUICK_SYSTEMS if options.quick else tuple(comparing.systems(budget))
    names = [(TRUTH, 0), *((name, seed) for seed in seeds for name in shown)]
    results = runs.all(
        [
            Piece(key | {"system": name, "seed": seed}, comparing.compared, (name, target, data, budget, seed))
            for name, seed in names
        ]
    )
    settings = {"data": data.name, "rows": len(data.y_train), "seeds": list(seeds), "seconds": "CPU"}
    return report(results, settings | dataclasses.asdict(budget))


def report(results, settings: dict[str, Any]) -> Report:
    """Everything that is shown, from the raw results."""
    truth = next(result for result in results if result["system"] == TRUTH)
    log_z = next(result["log_z"] for result in results if result["system"] == DEFAULT)
    told = remarks(results, truth, log_z, settings)
    tables = [table(settings, results, truth, log_z)]
    title = f"The compared systems on {settings['data']}"
    return Report(title, settings, tables, results, picture(results, truth, log_z), told)


def ten_features() -> Classification:
    """The breast-cancer data, with its first ten features: as many as chemreact10 has."""
    whole = breast_cancer()
    return dataclasses.replace(whole, x_train=whole.x_train[:, :10], x_test=whole.x_test[:, :10])


def errors(result: dict[str, Any], truth: dict[str, Any]) -> tuple[float, float]:
    """The largest error of a posterior mean and of a standard deviation, in standard deviations of the truth."""
    sd = np.asarray(truth["sd"])
    means, sds = (np.abs(np.asarray(result[name]) - np.asarray(truth[name])) / sd for name in ("mean", "sd"))
    return float(means.max()), float(sds.max())


def table(settings: dict[str, Any], results, truth, log_z) -> Table:
    """A row for every system: means over the seeds, with the spread of seeds beside the measurement's own error."""
    names = list(dict.fromkeys(result["system"] for result in results if result["system"] != TRUTH))
    rows = [row(name, [result for result in results if result["system"] == name], truth, log_z) for name in names]
    own_error = 1 / np.sqrt(truth["smallest_ess"])
    last = [
        TRUTH, FAMILIES[TRUTH], f"log Z {text_of(log_z)}", "-", digits(truth["train_ll"], 5),
        digits(truth["test_auroc"], 4), f"{own_error:.3f} (chance)", f"{own_error:.3f} (chance)", "-",
        f"{truth['seconds']:.0f}", f"{truth['evaluations']:,}",
    ]  # fmt: skip
    size = f"{settings['rows']:,} rows x {len(truth['mean'])}"
    clock = "CPU s" if settings.get("seconds") == "CPU" else "seconds, of a shared machine"
    columns = [clock if name == "CPU s" else name for name in COLUMNS]
    title = f"{settings['data']}, {size}; means over {len(settings['seeds'])} seeds (lowest to highest)"
    return Table(title, columns, [*rows, last])


def row(name: str, mine: list[dict[str, Any]], truth, log_z) -> list[str]:
    elbos = [result["elbo"]["value"] for result in mine]
    std_err = np.sqrt(np.mean([result["elbo"]["std_err"] ** 2 for result in mine]) / len(mine))
    elbo = relbo.Estimate(float(np.mean(elbos)), float(std_err), 0)
    kl = relbo.Estimate(log_z["value"] - elbo.value, float(np.hypot(std_err, log_z["std_err"])), 0)
    spread = f" ({log_z['value'] - max(elbos):.3g} to {log_z['value'] - min(elbos):.3g})" if len(mine) > 1 else ""
    mean_errors, sd_errors = zip(*(errors(result, truth) for result in mine), strict=True)
    return [
        name, FAMILIES.get(name, "mean-field normal"), str(elbo), f"{kl}{spread}",
        digits(np.mean([result["train_ll"] for result in mine]), 5),
        digits(np.mean([result["test_auroc"] for result in mine]), 4),
        f"{np.mean(mean_errors):.3g}", f"{np.mean(sd_errors):.3g}",
        span([result["components"] for result in mine]), span([round(result["seconds"]) for result in mine]),
        f"{np.mean([result['evaluations'] for result in mine]):,.0f}",
    ]  # fmt: skip


def digits(value: float, num: int) -> str:
    return f"{value:.{num}f}"


def span(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


LEAST = 2e-3
"""Nats below which a divergence is not told from zero: the spacing of log p, in single precision."""


def divergences(results, name: str, log_z) -> np.ndarray:
    return np.array([log_z["value"] - result["elbo"]["value"] for result in results if result["system"] == name])


def picture(results, truth, log_z) -> Figure:
    """Systems in order of their divergence, labelled on the axis: KL at the left, errors of moments at the right."""
    names = dict.fromkeys(result["system"] for result in results if result["system"] != TRUTH)
    names = sorted(names, key=lambda name: -divergences(results, name, log_z).mean())
    figure = Figure(figsize=(12, 0.42 * len(names) + 1.3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, name in enumerate(names):
        colour = COLOURS["default"] if name == DEFAULT else COLOURS["blue"]
        values = np.maximum(divergences(results, name, log_z), LEAST)
        left.plot(values, np.full(len(values), place), "o", color=colour, alpha=0.6, markersize=5)
        left.annotate(
            _shown(values.mean()), (values.max(), place), xytext=(7, -3), textcoords="offset points", fontsize=8,
            color=colour,
        )  # fmt: skip
        found = np.array([errors(result, truth) for result in results if result["system"] == name])
        right.plot(found[:, 0], np.full(len(found), place + 0.13), "o", color=colour, alpha=0.7)
        right.plot(found[:, 1], np.full(len(found), place - 0.13), "^", color=colour, alpha=0.7, markerfacecolor="none")
    left.set_yticks(
        range(len(names)), [f"{name}\n{FAMILIES.get(name, 'mean-field normal')}" for name in names], fontsize=7.5
    )
    largest = max(float(divergences(results, name, log_z).max()) for name in names)
    left.set(
        xscale="log",
        xlabel="KL to the posterior, nats (every seed; the label is their mean)",
        xlim=(0.8 * LEAST, max(2.0, 4 * largest)),
    )
    own = 1 / np.sqrt(truth["smallest_ess"])
    right.axvline(own, color="grey", linewidth=0.8)
    right.text(own, len(names) - 0.5, " error of NUTS itself", fontsize=7.5, color="grey", va="top")
    right.set(xscale="log", xlabel="posterior standard deviations")
    right.set_xticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
    right.xaxis.set_minor_formatter(NullFormatter())
    tidy(left, "a", "divergence")
    tidy(right, "b", "largest error of a mean (o) and of an sd (^)")
    for axes in (left, right):
        axes.grid(axis="x", color="0.92", linewidth=0.6)
    return figure


def _shown(value: float) -> str:
    return f"below {LEAST:g}" if value <= LEAST else f"{value:.2g}"


def remarks(results, truth, log_z, settings: dict[str, Any]) -> list[str]:
    """Sentences of method, and those of the results that these results bear out."""
    kept = [
        name
        for name in dict.fromkeys(result["system"] for result in results)
        if name not in (TRUTH, FLOW, DEFAULT, "BBVI")
        and all(result["components"] == 1 for result in results if result["system"] == name)
    ]
    default, draws = [result for result in results if result["system"] == DEFAULT], settings["elbo_draws"]
    numbers = sorted({result["components"] for result in default})
    told = [
        f"{len(settings['seeds'])} seeds each, NUTS once. Held equal for all earlier systems: no whitening, no "
        f"refinement, the "
        "number of iterations, and the number of Adam steps and draws for the first component and for each that "
        "follows, at the learning rate of the presets. BBVI and the flow get the steps of all components in "
        "one go. Guo "
        "et al. take no Adam steps: their first normal comes from our natural gradients. Evaluations of NUTS are those "
        f"after warm-up. Errors of means and standard deviations are from {draws:,} draws, so that "
        f"{2 / np.sqrt(draws):.2f} "
        "is chance.",
        f"The default ends with {' or '.join(map(str, numbers))} component{'s' if numbers != [1] else ''}, "
        f"{_shown(float(divergences(results, DEFAULT, log_z).mean())).replace('below', 'less than')} nats from the "
        "posterior.",
        "log Z, in the row of NUTS, is by importance weights of the default's draws (relbo.diagnose), so the default's "
        "divergence is not checked independently; its means and deviations are.",
    ]
    if abs(log_z["value"]) > 1e4:
        told.append(
            f"log p is summed in single precision, whose spacing near {log_z['value']:,.0f} is "
            f"{np.spacing(np.float32(abs(log_z['value']))):.3f}: divergences below that are rounding, and may come out "
            "negative."
        )
    if kept:
        told.insert(
            1,
            f"These end with their first component alone, whatever they added: {'; '.join(kept)}. Once it has "
            "converged, "
            "the linear objective has its optimum far away (docs/theory.md): rules that search give such components no "
            "weight, and of the fixed step, which must, the best iterate is the first.",
        )
    return told

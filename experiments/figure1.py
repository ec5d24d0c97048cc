"""The paper's Figure 1: two modes, by the paper's three variants and by our default; what each costs.

The target is 0.4 N(-1, 0.5^2) + 0.6 N(1, 0.5^2). It is a mixture of the family, so the best KL is zero.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import vmap
from matplotlib.figure import Figure

import relbo
from experiments import exact
from experiments.figure1_why import SPEC, VARIANTS, above_rounding, draw_reasons, lines, of, others, why, why_table
from experiments.palette import COLOURS, tidy
from experiments.report import Options, Report, Table
from experiments.runs import Piece, Runs

LABELS = {**VARIANTS, "default": "relbo's default"}
_AXIS = np.linspace(-3.2, 3.2, 321)
_WARM = 2  # from this iteration on nothing is compiled any more
_SHOWN = (0, 1, 2, 3, 5, 10, 15, 20)
_FLOOR = 1e-6
"""Nats below which a KL is rounding of single precision."""


def run(options: Options, runs: Runs) -> Report:
    num_iterations = 2 if options.quick else 20
    seeds = options.seed_range(usual=5)
    fits = [
        Piece(
            {"target": SPEC, "system": system, "seed": seed, "iterations": num_iterations},
            exact.fitted,
            (SPEC, system, seed, num_iterations, _AXIS),
        )
        for seed in seeds  # seed by seed, so that what the machine does besides is shared by all systems
        for system in LABELS
    ]
    more = [] if options.quick else others(seeds, num_iterations, _AXIS)
    num_rounds = 2 if options.quick else 15
    pace_piece = Piece(
        {"target": SPEC, "pace": num_iterations, "rounds": num_rounds},
        exact.paced,
        (SPEC, tuple(VARIANTS), num_iterations, num_rounds),
    )
    *results, pace = runs.all([*fits, *more, pace_piece])
    settings = {
        "target": "0.4 N(-1, 0.5^2) + 0.6 N(1, 0.5^2)",
        "iterations": num_iterations,
        "seeds": list(seeds),
        "paper": str(relbo.paper("fixed")),
    }
    return report([*results, {"pace": pace}], settings)


def report(raw: list[dict], settings: dict) -> Report:
    """Everything that is shown, from the raw results."""
    *results, last = raw
    pace = last["pace"]
    tables = [kl_table(results), end_table(results), why_table(results), pace_table(pace), seconds_table(results)]
    said = [*remarks(pace), *why(results)]
    return Report("Figure 1: two modes", settings, tables, raw, draw(results, pace), said)


def median_fit(results: list[dict], system: str) -> dict:
    """The fit whose last KL is the median over the seeds (the better of the two middle ones)."""
    found = sorted(of(results, system), key=lambda result: result["kl"][-1])
    return found[(len(found) - 1) // 2]


def kl_table(results: list[dict]) -> Table:
    """Mean over the seeds with its standard error; the KL of each is exact."""
    longest = max(len(result["kl"]) for result in results)
    rows = [
        [
            iteration,
            *(above_rounding([_at(result["kl"], iteration) for result in of(results, system)]) for system in LABELS),
        ]
        for iteration in range(longest)
        if iteration in _SHOWN
    ]
    title = "KL(q || p) in nats after each iteration, by quadrature: mean over seeds +- its standard error"
    return Table(title, ["iteration (0: BBVI)", *LABELS.values()], rows)


def end_table(results: list[dict]) -> Table:
    rows = []
    for system, label in LABELS.items():
        found = of(results, system)
        middle = median_fit(results, system)
        own = relbo.Estimate(middle["own_kl"][-1], middle["own_std_err"][-1], 0)
        rows.append(
            [
                label,
                above_rounding([result["kl"][-1] for result in found]),
                above_rounding([min(result["kl"]) for result in found]),
                _exact(middle["kl"][-1]),
                own,
                float(np.median([result["components"][-1] for result in found])),
                float(np.median([len(result["kl"]) - 1 for result in found])),
            ]
        )
    columns = ["system", "KL, last iterate", "KL, best iterate", "KL, median seed", "that fit's own estimate"]
    return Table("At the end (nats)", [*columns, "components", "iterations"], rows)


def seconds_table(results: list[dict]) -> Table:
    rows = []
    for system, label in LABELS.items():
        found, warm = of(results, system), _warm_seconds(results, system)
        evaluations = [number for result in found for number in result["evaluations"][_WARM:]]
        pace = "{:.1f} ({:.1f} to {:.1f})".format(*1e3 * np.quantile(warm, [0.5, 0.25, 0.75])) if len(warm) else "-"
        rows.append(
            [
                label,
                found[0]["total_seconds"],
                found[0]["cpu_seconds"],
                float(np.median([result["total_seconds"] for result in found[1:] or found])),
                pace,
                int(np.median(evaluations)) if evaluations else "-",
            ]
        )
    columns = [
        "system", "first fit with compilation, s", "the same, CPU s", "a warm fit, s",
        "warm iteration, ms: median (quartiles)", "evaluations of log p an iteration",
    ]  # fmt: skip
    return Table("Time of the fits, one after the other in one run", columns, rows)


def pace_table(pace: dict) -> Table:
    rows = [
        [label, *(f"{1e3 * value:.1f}" for value in np.quantile(pace[variant], [0.0, 0.5])), ratio_of(pace, variant)]
        for variant, label in VARIANTS.items()
    ]
    columns = ["variant", "fastest, ms", "median, ms", "relative to the fixed step, median of pairs"]
    title = (
        f"One iteration from the same mixture of {pace['components']} components, {len(pace['fixed'])} times in turn"
    )
    return Table(title, columns, rows)


def remarks(pace: dict) -> list[str]:
    return [
        "The KL of every iterate is computed by quadrature, exact to single precision (about 1e-6 nats).",
        "Iteration 0 of the paper's presets is plain black-box VI (BBVI), the same in all three.",
        'The paper calls line search and full correction "dramatically slower" than the fixed step. With the same '
        f"oracle, an iteration takes {ratio_of(pace, 'line_search')} times as long with line search and "
        f"{ratio_of(pace, 'fully_corrective')} times with full correction, with 1,000 draws a component for both: both "
        "search on draws made once.",
        "Programs are shared: the first fit (fixed step) compiles the oracle of all three variants, and the others "
        "only their step rule. The default has an oracle of its own, races for its coordinates and refines.",
        "CPU seconds are those of all threads: on a quiet machine a fit takes hardly longer than these.",
        "The fixed step is not monotone; `relbo.fit` returns its best iterate.",
        "The authors' script uses a standard deviation of 0.6 where the paper says 0.5; this is the paper's target.",
        "The default stops by its own rules; its last iterate is polished. After it has stopped, its KL is carried on.",
    ]


def draw(results: list[dict], pace: dict) -> Figure:
    figure = Figure(figsize=(11, 6.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    densities, curves = top.subplots(1, 2, width_ratios=[1.2, 1])
    reasons, times = bottom.subplots(1, 2, width_ratios=[2.2, 1])
    _draw_densities(densities, results)
    _draw_curves(curves, results)
    draw_reasons(reasons, lines(results))
    _draw_times(times, pace)
    titles = (
        "last iterate, each system's median seed",
        "error by iteration, every seed",
        "one thing changed: KL at the end, every seed",
        "time, same oracle",
    )
    for axes, letter, title in zip((densities, curves, reasons, times), "abcd", titles, strict=True):
        tidy(axes, letter, title)
    return figure


def _draw_densities(axes, results):
    target = exact.normal_mixture(*SPEC)
    truth = np.exp(vmap(target.log_density)(jnp.asarray(_AXIS[:, None], jnp.float32)))
    axes.fill_between(_AXIS, truth, color="0.85", label="target", linewidth=0)
    axes.plot(_AXIS, median_fit(results, "fixed")["first_density"], color="black", linestyle=":", label="BBVI")
    for system, label in LABELS.items():
        style = {"linewidth": 2.2, "linestyle": (0, (4, 2))} if system == "default" else {"linewidth": 1.5}
        axes.plot(_AXIS, median_fit(results, system)["density"], color=COLOURS[system], label=label, **style)
    axes.set(xlabel="z", ylabel="density", xlim=(_AXIS[0], _AXIS[-1]), ylim=(0, 0.72))
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _draw_curves(axes, results):
    longest = max(len(result["kl"]) for result in results)
    for system, label in LABELS.items():
        found = of(results, system)
        num = longest if system != "default" else max(len(result["kl"]) for result in found)
        values = np.maximum([[_at(result["kl"], i) for i in range(num)] for result in found], 1e-6)
        for one in values:
            axes.plot(one, color=COLOURS[system], linewidth=0.6, alpha=0.35)
        axes.plot(np.median(values, axis=0), color=COLOURS[system], linewidth=2, label=label)
    axes.set(xlabel="iteration", ylabel="KL(q || p), nats", yscale="log", xlim=(0, longest - 1), ylim=(8e-7, 1))
    axes.text(0.98, 0.03, "1e-6: rounding", transform=axes.transAxes, ha="right", fontsize=7, color="0.4")


def _draw_times(axes, pace):
    for place, system in enumerate(VARIANTS):
        low, middle, high = 1e3 * np.quantile(pace[system], [0.25, 0.5, 0.75])
        axes.barh(place, middle, color=COLOURS[system], height=0.6)
        axes.plot([low, high], [place, place], color="black", linewidth=1)
    axes.set_yticks(range(len(VARIANTS)), [label.replace(" ", "\n", 1) for label in VARIANTS.values()], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="an iteration, ms")


def _warm_seconds(results, system) -> np.ndarray:
    """Seconds of the iterations that compile nothing, polishing left out."""
    return np.array(
        [
            seconds
            for result in of(results, system)
            for index, (seconds, kind) in enumerate(zip(result["seconds"], result["kind"], strict=True))
            if index >= _WARM and kind != "polish"
        ]
    )


def ratio_of(pace: dict, variant: str) -> relbo.Estimate:
    """The median of the ratios round by round, which what else the machine does hardly touches."""
    ratios = np.array(pace[variant]) / np.array(pace["fixed"])
    middle = float(np.median(ratios))
    deviation = 1.4826 * float(np.median(np.abs(ratios - middle)))  # of a normal law, as is the factor of the next line
    return relbo.Estimate(middle, 1.2533 * deviation / math.sqrt(len(ratios)), len(ratios))


def _at(values: list[float], index: int) -> float:
    """The value at an iteration, or the last one where the fit has stopped."""
    return values[min(index, len(values) - 1)]


def _exact(value: float) -> str:
    return f"below {_FLOOR:.0e}" if abs(value) < _FLOOR else f"{value:.3g}"

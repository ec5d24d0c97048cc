"""The figure of the comparison: a panel for each model, error against CPU seconds."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from peers_tables import OWN, Results

FLOOR = 1e-3
"""Nats: below it, everything is drawn at it."""
NUM_COLUMNS = 5
MARKS = {
    OWN: ("o", "#D55E00"),
    "auto_normal": ("v", "#56B4E9"),
    "auto_mvn": ("s", "#0072B2"),
    "auto_low_rank": ("D", "#0072B2"),
    "auto_iaf": ("^", "#56B4E9"),
    "pathfinder": ("P", "#CC79A7"),
    "pymc_advi": ("v", "#999999"),
    "pymc_full_rank": ("s", "#999999"),
    "flow": ("X", "#009E73"),
}
"""Marker and colour (Okabe and Ito's): NumPyro blue, PyMC grey, and the shape tells methods of one colour apart."""
LINES = {"nuts": ("-", "black"), "nuts_short": (":", "black"), "nutpie": ("--", "#E69F00")}
"""Samplers have no ELBO: their CPU seconds are a vertical line."""


def draw(results: Results) -> Figure:
    num_rows = math.ceil((len(results.measured) + 1) / NUM_COLUMNS)
    figure = Figure(figsize=(2.5 * NUM_COLUMNS, 2.2 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, NUM_COLUMNS, squeeze=False, sharex=True)
    for axes, model in zip(grid.flat, results.measured, strict=False):
        _draw_model(axes, results, model)
    for axes in list(grid.flat)[len(results.measured) :]:
        axes.set_axis_off()
    _draw_legend(grid.flat[len(results.measured)], results)
    figure.supxlabel("CPU seconds to 10,000 draws (samplers: to all draws), with imports and compilation", fontsize=9)
    figure.supylabel("KL(q || p) in nats   (*: below the best ELBO; log Z unknown)", fontsize=9)
    return figure


def _draw_model(axes: Axes, results: Results, model: str) -> None:
    known = (results.models[model]["reference"] or {}).get("log_z") is not None
    for name, (style, colour) in LINES.items():
        if (seconds := results.cpu(model, name)) is not None:
            axes.axvline(seconds, linestyle=style, color=colour, linewidth=1.1, zorder=1)
    errors = []
    for name, (marker, colour) in reversed(MARKS.items()):  # relbo comes last, on top
        seconds, error = results.cpu(model, name), results.error(model, name)
        if seconds is not None and error is not None:
            size, edge = (80, "black") if name == OWN else (30, "white")
            style = {"marker": marker, "edgecolors": edge, "linewidths": 0.7, "zorder": 3}
            axes.scatter(seconds, max(error, FLOOR), size, colour, **style)
            errors.append(error)
    axes.set(xscale="log", yscale="log", xlim=(2, 250), ylim=(FLOOR / 2, 2 * max([0.5, *errors])))
    axes.set_xticks([2, 5, 10, 20, 50, 100, 200], ["2", "5", "10", "20", "50", "100", "200"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_title(f"{model}{'' if known else ' *'}, d = {results.models[model]['dim']}", fontsize=7.5)
    axes.tick_params(labelsize=7)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(axes: Axes, results: Results) -> None:
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, markersize=8 if name == OWN else 6,
               markeredgecolor="black" if name == OWN else "white", label=results.methods[name]["title"])
        for name, (marker, colour) in MARKS.items()
    ] + [
        Line2D([], [], linestyle=style, color=colour, linewidth=1.2, label=results.methods[name]["title"])
        for name, (style, colour) in LINES.items()
    ]  # fmt: skip
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(-0.1, 0.5), fontsize=6.5, frameon=False)

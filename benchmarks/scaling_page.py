"""Figure and tables of `make scaling`, from results/scaling.json (and streaming.json, of `streaming.py`) into
docs/scale.md: no number is written by hand."""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from peers_readme import filled

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- scaling:begin -->", "<!-- scaling:end -->"
AXES = {
    "rows": ("rows (20 columns)", "at most 1"),
    "rows of 100": ("rows (100 columns)", "at most 1"),
    "dimensions": ("dimensions", "at most 2 up to 256, 1.1 beyond"),
    "components": ("components (d = 100), one iteration", "at most 1"),
    "processes": ("processes (200,000 rows)", "0: work is divided, not added"),
}
"""What an axis is called, and what its exponent should be."""
SPLIT = 256
"""Dimensions up to which components have full covariances."""
STYLES = {"relbo": ("o-", "#D55E00"), "relbo, streaming": ("s--", "#D55E00"), "SVI": ("v-", "#0072B2"),
          "NUTS": ("^-", "black")}  # fmt: skip


class Point(NamedTuple):
    size: int
    cpu: float
    """Seconds without compilation, as far as that is known."""
    cell: dict[str, Any]
    compiles: bool = False
    """Whether compilation is in them: of a long fit without a shorter one before it, from which to know."""


class Exponent(NamedTuple):
    value: float
    std_err: float
    """Of the fitted line; infinite for two points."""
    num: int


class Scaling:
    """The measurements, by axis and method."""

    def __init__(self, results: dict[str, Any]):
        self.cells, self.machine = results["cells"], results["machine"]

    def points(self, axis: str, method: str) -> list[Point]:
        cells = [cell for cell in self.cells if (cell["axis"], cell["method"]) == (axis, method)]
        cells = sorted((cell for cell in cells if cell["kind"] == "done"), key=lambda cell: cell["size"])
        found: list[Point] = []
        compiling: float | None = None
        for cell in cells:
            if "run_cpu" in cell:
                compiling = max(0.0, cell["cold_cpu"] - cell["run_cpu"])
            # A long fit is not made twice: what compiling took at the size before is taken off.
            once = cell["cold_cpu"] - (compiling or 0.0)
            found.append(Point(cell["size"], cell.get("run_cpu", once), cell, compiling is None))
        return found

    def methods(self, axis: str) -> list[str]:
        present = {cell["method"] for cell in self.cells if cell["axis"] == axis}
        return [method for method in STYLES if method in present]

    def ended(self, axis: str, method: str) -> str:
        """How a ladder ended, if not at its top."""
        bad = [cell for cell in self.cells if (cell["axis"], cell["method"]) == (axis, method)]
        told = {"over the limit": "more than {limit:.0f}", "failed": "failed"}
        return "; ".join(
            f"{cell['size']:,}: {told[cell['kind']].format(**cell)}" for cell in bad if cell["kind"] in told
        )

    @property
    def load(self) -> tuple[float, float]:
        loads = [cell["load"] for cell in self.cells if "load" in cell]
        return min(loads), max(loads)


def exponent(points: list[Point]) -> Exponent | None:
    """The slope of log seconds on log size, by least squares."""
    if len(points) < 2:
        return None
    x, y = (np.log([getattr(point, name) for point in points]) for name in ("size", "cpu"))
    slope, level = np.polyfit(x, y, 1)
    rest = np.sum((y - slope * x - level) ** 2)
    free = len(points) - 2
    std_err = math.sqrt(rest / free / np.sum((x - x.mean()) ** 2)) if free else math.inf
    return Exponent(float(slope), std_err, len(points))


def parts(axis: str, points: list[Point]) -> dict[str, list[Point]]:
    if axis != "dimensions":
        return {"": points}
    beyond = [point for point in points if point.size >= SPLIT]
    return {f"up to {SPLIT}": [point for point in points if point.size <= SPLIT], f"from {SPLIT} on": beyond}


def table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def exponents(scaling: Scaling) -> str:
    rows = []
    for axis, (title, wanted) in AXES.items():
        for method in scaling.methods(axis):
            for points in parts(axis, scaling.points(axis, method)).values():
                slope = exponent(points)
                if slope is not None:
                    span = f"{points[0].size:,} to {points[-1].size:,}"
                    error = f" +- {slope.std_err:.2f}" if math.isfinite(slope.std_err) else " (two points)"
                    should = wanted if method.startswith("relbo") else ""
                    last = f"{exponent(points[-2:]).value:.2f}"  # type: ignore[union-attr]
                    rows.append((title, method, span, f"{slope.value:.2f}{error}", last, should))
    return table(("in", "method", "sizes", "exponent", "between the last two", "should be"), rows)


def seconds(scaling: Scaling) -> str:
    rows = []
    for axis, (title, _) in AXES.items():
        for method in scaling.methods(axis):
            shown = [f"{point.size:,}: {_few(point.cpu)}{_star(point)}" for point in scaling.points(axis, method)]
            ended = scaling.ended(axis, method)
            rows.append((title, method, "; ".join([*shown, *([ended] if ended else [])])))
    return table(("along", "method", "size: CPU seconds, compilation apart (*: with it)"), rows)


def gradients(scaling: Scaling) -> str:
    """What a fit costs beside its gradients."""
    rows = []
    for axis in ("rows", "rows of 100"):
        for point in scaling.points(axis, "relbo"):
            alone = point.cell["evaluations"] * point.cell["gradient_cpu"]
            facts = (
                f"{point.size:,}",
                AXES[axis][0],
                f"{point.cell['evaluations']:,}",
                _few(point.cell["gradient_cpu"]),
            )
            rows.append((*facts, f"{point.cpu / alone:.2f}{_star(point)}", f"{point.cell['beyond_data'] / 1e6:.0f}"))
    heading = ("size", "of", "evaluations", "CPU s a gradient", "fit / its gradients", "MB beyond the data")
    return table(heading, rows)


def on_disk(results: dict[str, Any]) -> str:
    """A fit to rows on disk beside the same fit with the rows in memory, as `streaming.py` has measured it."""
    about = f"{results['rows']:,} x {results['columns']}, {results['bytes'] / 1e6:.0f} MB"
    inside = next(each["cpu"] for each in results["results"] if each["way"] == "memory")
    rows = []
    for each in results["results"]:
        limit = "" if each["way"] == "memory" else f"{results['max_memory'] / 1e6:.1f} MB"
        facts = (f"{each['cpu']:.0f}", f"{each['cpu'] / inside:.2f}", f"{each['peak_mb']:.0f} MB")
        rows.append((each["way"], limit, f"{each['evaluations']:,}", *facts))
    costs = ("CPU s, with compilation", "to that in memory", "largest resident set")
    heading = (about, "max_memory", "evaluations", *costs)
    return table(heading, rows)


ROWS, COLUMNS, MACHINES, CORES = 10**9, 20, 64, 32
LATENCY, BANDWIDTH = 50e-6, 25e9 / 8
"""Assumed of a network between machines: seconds from one to another, bytes a second."""


def on_paper(scaling: Scaling) -> str:
    """What a fit of a billion rows would cost, by the constants of the largest fit that was measured in memory."""
    largest = scaling.points("rows", "relbo")[-1]
    block, num = largest.cell["block"], largest.cell["evaluations"]
    each = largest.cell["gradient_cpu"] / largest.size  # CPU seconds of a row in a gradient
    here = ROWS / MACHINES
    gradient = block * here * each / CORES
    moved = block * (COLUMNS + 1) * 4
    ring = 2 * (MACHINES - 1) * LATENCY + 2 * moved / BANDWIDTH
    calls = math.ceil(num / block)
    overhead = largest.cpu / (num * largest.cell["gradient_cpu"])
    pairs = [cell for cell in scaling.cells if cell["axis"] == "processes" and "all_reduce" in cell]
    told = ", ".join(f"{1e3 * cell['all_reduce']:.2g} ms among {cell['size']}" for cell in pairs)
    rows = [
        ("data on each machine", f"{here * (COLUMNS + 1) * 4 / 1e9:.1f} GB in float32, {here / 1e6:.1f} million rows"),
        ("CPU time of a row in a gradient", f"{1e9 * each:.1f} ns (measured, at {largest.size:,} rows)"),
        ("evaluations of a fit", f"{num:,} (measured, same fit), in {calls:,} blocks of {block} points"),
        ("gradients of a block, on one machine", f"{1e3 * gradient:.0f} ms with {CORES} cores, if they scale"),
        ("moved by a block", f"{moved:,} bytes: values and gradients, not rows"),
        (
            "all-reduce of a block",
            f"{1e3 * ring:.1f} ms: {2 * (MACHINES - 1)} messages of {1e6 * LATENCY:.0f} us (assumed)",
        ),
        ("all-reduce on this machine", f"{told or 'not measured'} (measured, same bytes, processes that share cores)"),
        ("share of the all-reduce", f"{ring / (gradient + ring):.1%}"),
        ("gradients and sums of a fit", f"{calls * (gradient + ring):.0f} s of wall clock"),
        ("with what a fit does beside them", f"{overhead:.2f} times that (measured, same fit), where it is not larger"),
    ]
    return table((f"{ROWS:,} rows x {COLUMNS} on {MACHINES} machines", ""), rows)


def _star(point: Point) -> str:
    return "*" if point.compiles else ""


def _few(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"


def draw(scaling: Scaling) -> Figure:
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    shown = [axis for axis in AXES if axis != "rows of 100"]
    for axes, axis in zip(figure.subplots(1, len(shown)), shown, strict=True):
        for method in scaling.methods(axis):
            points, (style, colour) = scaling.points(axis, method), STYLES[method]
            slopes = [slope for part in parts(axis, points).values() if (slope := exponent(part)) is not None]
            told = ", ".join(f"{slope.value:.2f}" for slope in slopes)
            label = f"{method}: {told}" if told else method
            axes.plot(
                [point.size for point in points], [point.cpu for point in points], style, color=colour, label=label
            )
        axes.set(xscale="log", yscale="log", xlabel=AXES[axis][0])
        low, high = axes.get_ylim()
        if high < 10 * low:  # so that a little noise does not look like a slope
            axes.set_ylim(math.sqrt(low * high / 10), math.sqrt(low * high * 10))
        if axis in ("components", "processes"):
            few = sorted({cell["size"] for cell in scaling.cells if cell["axis"] == axis})
            axes.set_xticks(few, [str(size) for size in few], minor=False)
            axes.set_xticks([], minor=True)
        axes.legend(fontsize=7, title="exponents", title_fontsize=7)
    figure.supylabel("CPU seconds of a fit", fontsize=9)
    return figure


def summary(scaling: Scaling, streaming: dict[str, Any]) -> str:
    low, high = scaling.load
    versions = ", ".join(f"{name} {version}" for name, version in scaling.machine["versions"].items() if version)
    about = (
        f"{scaling.machine['cpu']}, {scaling.machine['num_cores']} cores, with a load of {low:.0f} to {high:.0f} from "
        "other work while it was measured, so that CPU seconds are given, and they are rough; "
        f"Python {scaling.machine['python']}, {versions}."
    )
    picture = (
        "```{image} _static/scaling.png\n:alt: CPU seconds against rows, dimensions, components and processes.\n```"
    )
    tables = [exponents(scaling), seconds(scaling), gradients(scaling), on_disk(streaming), on_paper(scaling)]
    return "\n\n".join([about, picture, *tables])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "scaling.json")
    parser.add_argument("--streaming", type=Path, default=HERE / "results" / "streaming.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "scale.md")
    parser.add_argument("--figure", type=Path, default=HERE.parent / "docs" / "_static" / "scaling.png")
    options = parser.parse_args()
    scaling = Scaling(json.loads(options.json.read_text()))
    draw(scaling).savefig(options.figure, dpi=110)
    told = summary(scaling, json.loads(options.streaming.read_text()))
    options.page.write_text(filled(options.page.read_text(), told, BEGIN, END))
    print(options.page)


if __name__ == "__main__":
    main()

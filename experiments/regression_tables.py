"""Tables and figure of chemreact, icu and wine: differences to BBVI, seed by seed, with the paper's beside them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.palette import COLOURS, tidy
from experiments.regression import BBVI, CONTROL, DEFAULT, FINITE, LAST, NORMAL, PAPER, PAPER_LAST
from experiments.report import Table, difference, mean_of

Row = dict[str, Any]
ORDER = (BBVI, PAPER, PAPER_LAST, FINITE, LAST, CONTROL, NORMAL, DEFAULT)
_COLOUR = {
    BBVI: COLOURS["BBVI"], PAPER: COLOURS["fixed"], PAPER_LAST: COLOURS["fixed"], FINITE: COLOURS["blue"],
    LAST: COLOURS["blue"], CONTROL: COLOURS["grey"], NORMAL: COLOURS["fully_corrective"], DEFAULT: COLOURS["default"],
}  # fmt: skip
_MARKER = {"Laplace": "^", "Gaussian": "o", "full normal": "D"}


def names(results: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["data"] for row in results))


def of(results: Sequence[Row], data: str, system: str, family: str | None = None) -> list[Row]:
    rows = [row for row in results if row["data"] == data and row["system"] == system]
    return sorted((row for row in rows if family in (None, row["family"])), key=lambda row: row["seed"])


def values(rows: Sequence[Row], metric: str) -> np.ndarray:
    return np.asarray([float(row[metric]) for row in rows])


def systems(results: Sequence[Row], data: str) -> list[tuple[str, str]]:
    found = dict.fromkeys((row["system"], row["family"]) for row in results if row["data"] == data)
    return sorted(found, key=lambda pair: (ORDER.index(pair[0]), pair[1] != "Laplace"))


def paired(results: Sequence[Row], data: str, system: str, family: str, metric: str) -> np.ndarray:
    """Less BBVI of the same family (Laplace for full normals, whose seeds are few), seed by seed."""
    mine = of(results, data, system, family)
    against = family if of(results, data, BBVI, family) else "Laplace"
    base = {row["seed"]: row for row in of(results, data, BBVI, against)}
    return np.array([row[metric] - base[row["seed"]][metric] for row in mine])


def table(results: Sequence[Row], data: str) -> Table:
    """Means over seeds with their standard errors; the paper's `+-` is the deviation over seeds, and has a column."""
    columns = [
        "system", "family", "train E[log lik.]", "train log pred. density", "test AUROC", "its sd over seeds",
        "ELBO, nats", "components", "CPU s", "seeds",
    ]  # fmt: skip
    rows = []
    for system, family in systems(results, data):
        mine = of(results, data, system, family)
        means = [mean_of(values(mine, metric)) for metric in ("train_ll", "train_lpd", "test_auroc")]
        spread = f"{values(mine, 'test_auroc').std(ddof=1):.2g}" if len(mine) > 1 else "-"
        rest = [mean_of(values(mine, "elbo")), f"{np.mean(values(mine, 'components')):.1f}"]
        cost = f"{np.median(values(mine, 'cpu_seconds')):.0f}"
        rows.append([system, family, *means, spread, *rest, cost, len(mine)])
    seeds = max(row["seed"] for row in results if row["data"] == data) + 1
    how = f"mean +- standard error over at most {seeds} seeds" if seeds > 1 else "one seed"
    return Table(f"{data}: {how}", columns, rows)


def paired_table(results: Sequence[Row]) -> Table:
    """Less BBVI, seed by seed."""
    rows = []
    for data in names(results):
        for system, family in systems(results, data):
            if system == BBVI:
                continue
            cells = [
                difference(paired(results, data, system, family, metric))
                for metric in ("test_auroc", "train_ll", "train_lpd", "elbo")
            ]
            rows.append([data, system, family, *cells, len(of(results, data, system, family))])
    columns = ["data", "system", "family", "test AUROC", "train E[log lik.]", "train log pred. density", "ELBO, nats"]
    title = (
        "Less BBVI of the same family and seed (full normals: less BBVI, Laplace): mean difference +- standard error"
    )
    return Table(title, [*columns, "seeds"], rows)


def spread_ratio(results: Sequence[Row], data: str, system: str, family: str) -> float | None:
    """The deviation of AUROC over seeds, relative to BBVI's."""
    mine, base = (values(of(results, data, name, family), "test_auroc") for name in (system, BBVI))
    if len(mine) < 3 or not base.std():
        return None
    return float(mine.std(ddof=1) / base.std(ddof=1))


AUROC_RANGE, ELBO_RANGE = (-0.035, 0.03), (-6.0, 200.0)
"""What the panels show; a mean beyond is an arrow at the edge, with its value."""


def figure(results: Sequence[Row], paper: dict[str, tuple[float, float]]) -> Figure:
    """Left: what boosting changes in AUROC. Right: what it gains in ELBO, and what one covariance matrix gains."""
    names_shown = [name for name in names(results) if not name.endswith("intercept")]
    num_lines = sum(len(systems(results, data)) for data in names_shown) + 1.6 * len(names_shown) + len(paper)
    drawn = Figure(figsize=(11.5, 1.6 + 0.19 * num_lines), layout="constrained")
    left, right = drawn.subplots(1, 2, sharey=True)
    ticks, place = [], 0.0
    for name, (mean, error) in paper.items():
        left.errorbar(mean, place, xerr=error, fmt="s", color=COLOURS["paper"], markerfacecolor="white", capsize=2)
        ticks.append((place, f"the paper: {name}", COLOURS["paper"]))
        place += 1
    for data in names_shown:
        place += 0.6
        ticks.append((place, data, "black"))
        place += 1
        for system, family in systems(results, data):
            if system == BBVI:
                continue
            style = {"color": _COLOUR[system], "marker": _MARKER[family]}
            if system in (PAPER_LAST, LAST):
                style["markerfacecolor"] = "white"
            _point(left, paired(results, data, system, family, "test_auroc"), place, AUROC_RANGE, style)
            _point(right, paired(results, data, system, family, "elbo"), place, ELBO_RANGE, style)
            ticks.append((place, system if family == "full normal" else f"{system}, {family}", _COLOUR[system]))
            place += 1
    _finish(left, right, ticks, place)
    return drawn


def _point(axes, changes: np.ndarray, place: float, limits: tuple[float, float], style: dict[str, Any]) -> None:
    mean, error = changes.mean(), changes.std(ddof=1) / math.sqrt(len(changes)) if len(changes) > 1 else 0.0
    if limits[0] < mean < limits[1]:
        axes.errorbar(mean, place, xerr=error, markersize=4.5, capsize=2, **style)
        return
    beyond = {"color": style["color"], "fontsize": 7, "va": "center"}
    if mean < limits[0]:
        axes.text(limits[0], place, f" < {mean:.3g}", ha="left", **beyond)
    else:
        axes.text(limits[1], place, f"{mean:.3g} > ", ha="right", **beyond)


def _finish(left, right, ticks, bottom: float) -> None:
    left.set_yticks([place for place, *_ in ticks], [text for _, text, _ in ticks], fontsize=7.5)
    for label, (*_, colour) in zip(left.get_yticklabels(), ticks, strict=True):
        label.set_color(colour)
        label.set_fontweight("bold" if colour == "black" else "normal")
    left.set_ylim(bottom, -1)
    left.set_xlim(AUROC_RANGE)
    right.set_xscale("symlog", linthresh=1.0)
    right.set_xlim(ELBO_RANGE)
    right.set_xticks([-3, -1, 0, 1, 3, 10, 30, 100], ["-3", "-1", "0", "1", "3", "10", "30", "100"])
    right.minorticks_off()
    tidy(left, "a", "test AUROC less BBVI's")
    tidy(right, "b", "ELBO less BBVI's, nats (linear within 1)")
    for axes in (left, right):
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.grid(axis="x", color="0.92", linewidth=0.6)
        axes.set_axisbelow(True)

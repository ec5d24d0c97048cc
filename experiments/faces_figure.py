"""The figure of the faces: errors by rank and by iteration with the paper's beside them, and the factors as pictures.

No original image is shown: only factors, which are learned from all images together.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.face_fits import BBVI, BOOSTED, DEFAULT, FEW_BBVI, FEW_BOOSTED
from experiments.factorization import NOISES, Matrix
from experiments.palette import COLOURS, tidy

_STYLE = {
    BBVI: ("black", "o"),
    BOOSTED: (COLOURS["blue"], "s"),
    FEW_BBVI: (COLOURS["grey"], "o"),
    FEW_BOOSTED: (COLOURS["fixed"], "s"),
    DEFAULT: (COLOURS["default"], "^"),
}


def figure(
    rows: Sequence[dict[str, Any]],
    factors: dict[tuple[str, str], dict[str, Any]],
    matrices: Sequence[Matrix],
    paper: dict[str, dict[int, float]],
    reference: str,
) -> Figure:
    """Top: held-out errors in both scalings, and by iteration. Bottom: the factors of BBVI."""
    drawn = Figure(figsize=(13, 7), layout="constrained")
    top, bottom = drawn.subfigures(2, 1, height_ratios=(1.9, 1))
    axes, noise = top.subplots(1, 3), NOISES[0]
    for letter, one, matrix in zip("ab", axes, (matrices[-1], matrices[0]), strict=False):  # c is another
        _draw_ranks(one, rows, matrix, noise, paper, reference)
        tidy(one, letter, f"{matrix.name}\nnoise {noise}")
    found = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    axes[1].legend(found.values(), found.keys(), loc=(0.28, 0.4), fontsize=8, frameon=False, title="a, b")
    _draw_iterations(axes[2], rows, paper)
    tidy(axes[2], "c", f"the authors' program, every seed\nrank 3, noise {noise}")
    _draw_factors(bottom, factors)
    return drawn


def _draw_ranks(axes, rows, matrix: Matrix, noise: str, paper, reference) -> None:
    for system, (colour, marker) in _STYLE.items():
        found = [row for row in rows if (row["data"], row["noise"], row["system"]) == (matrix.name, noise, system)]
        ranks = sorted({row["rank"] for row in found})
        means = [np.mean([row["test_mse"] for row in found if row["rank"] == rank]) for rank in ranks]
        if ranks:
            axes.plot(ranks, means, marker=marker, color=colour, label=system, alpha=0.85, markersize=5)
            each = [(row["rank"], row["test_mse"]) for row in found]
            axes.plot(*zip(*each, strict=True), marker, color=colour, alpha=0.3, markersize=3)
    for system, of_rank in paper.items():
        label = f"the paper: {'BBVI' if system == BBVI else 'boosted'}"
        style = {"color": COLOURS["paper"], "markerfacecolor": "white", "linestyle": "--", "linewidth": 1}
        axes.plot(list(of_rank), list(of_rank.values()), marker="o" if system == BBVI else "s", label=label, **style)
    best = {r["rank"]: r["test_mse"] for r in rows if (r["data"], r["system"]) == (matrix.name, reference)}
    if best:
        axes.plot(list(best), list(best.values()), "k:x", label=reference, markersize=4)
    axes.set(xlabel="rank", ylabel="held-out MSE", xticks=sorted({row["rank"] for row in rows}), yscale="log")
    _ticks(axes)


def _ticks(axes) -> None:
    """Few, and as numbers."""
    low, high = axes.get_ylim()
    shown = [tick for tick in (0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5) if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


def _draw_iterations(axes, rows, paper) -> None:
    shown = [row for row in rows if row["system"] == FEW_BOOSTED and row["rank"] == 3]
    names = list(dict.fromkeys(row["data"] for row in shown))
    for row in shown:
        colour = (COLOURS["fixed"], COLOURS["blue"])[names.index(row["data"]) % 2]
        label = row["data"] if row["seed"] == 0 else None
        axes.plot(row["mse_by_iteration"], "o-", color=colour, markersize=3, linewidth=1, label=label)
    for system, of_rank in paper.items():
        axes.axhline(of_rank[3], color=COLOURS["paper"], linestyle="--", linewidth=1)
        label = f"the paper: {'BBVI' if system == BBVI else 'boosted'}"
        side = "bottom" if system == BBVI else "top"
        axes.text(7, of_rank[3], label, color=COLOURS["paper"], fontsize=7.5, va=side, ha="right")
    axes.set(xlabel="iteration (0: the authors' BBVI)", ylabel="held-out MSE", yscale="log")
    _ticks(axes)
    axes.legend(fontsize=7, frameon=False)


def _draw_factors(place, factors) -> None:
    """Each picture scaled by itself; the number is the factor's strength, its share of a grey level."""
    pairs = [(key, number) for key, found in factors.items() for number in range(min(3, len(found["images"])))]
    if not pairs:
        return
    grid = np.atleast_1d(place.subplots(1, len(pairs)))
    for axes, (key, number) in zip(grid, pairs, strict=True):
        image = np.asarray(factors[key]["images"][number])
        side = math.isqrt(len(image))
        order = "F" if side == 19 else "C"
        axes.imshow(image.reshape(side, side, order=order), cmap="gray")
        axes.set_axis_off()
        head = f"{key[0]}\n{key[1]}" if number == 0 else ""
        axes.set_title(f"{head}\nstrength {factors[key]['strength'][number]:.2g}", fontsize=7, loc="left")

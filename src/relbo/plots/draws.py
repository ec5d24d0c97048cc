"""Draws: marginals against a reference, and pairs of parameters coloured by component."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from relbo.plots.canvas import Axes, legend_beside, many_axes, percent, short
from relbo.posterior.posterior import Posterior
from relbo.views.densities import component_densities, grid_of
from relbo.views.palette import COLOURS, FIT, MARKERS, OTHERS, REFERENCE, colour_of
from relbo.views.scalars import Scalars, choose_names, reference_columns, scalars

_COLUMNS = 4  # of panels, on the width of a page
_MOST_PAIRS = 4  # parameters: 16 panels are still legible
_LABEL = 20
"""So many letters fit along the side of one small picture."""


def marginals(
    posterior: Posterior,
    axes: Any = None,
    *,
    reference: Any = None,
    names: str | Sequence[str] | None = None,
    num_draws: int = 4000,
    seed: int = 0,
) -> np.ndarray:
    """The marginal density of parameters, constrained, one Axes each; the first twelve by default.

    `reference` is whatever `relbo.compare` understands: draws of NUTS as InferenceData, a dict of arrays, or another
    posterior. It is drawn as a grey histogram behind the curve of the fit. Returns a flat array of Axes.
    """
    drawn = scalars(posterior, num_draws, seed)
    chosen = choose_names(drawn.names, names, 12)
    against = {} if reference is None else reference_columns(posterior, reference, num_draws, seed + 1)
    columns = min(_COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    if axes is not None:
        rows, columns = len(chosen), 1
    grid = many_axes(axes, rows, columns, 2.7 if len(chosen) > 1 else 5.5, 2.2 if len(chosen) > 1 else 3.4).ravel()
    for each, name in zip(grid, chosen, strict=False):
        _marginal(each, drawn, name, against.get(name))
    for unused in grid[len(chosen) :]:
        unused.set_axis_off()
    if against and axes is None:
        grid[0].figure.legend(*grid[0].get_legend_handles_labels(), frameon=False, ncols=2, loc="outside lower center")
    elif against:
        grid[0].legend(frameon=False, fontsize=8)
    return grid[: len(chosen)]


def _marginal(axes: Axes, drawn: Scalars, name: str, reference: np.ndarray | None) -> None:
    values = drawn.column(name)
    both = values if reference is None else np.concatenate([values, reference])
    points = grid_of(both)
    if reference is not None:
        inside = reference[(reference >= points[0]) & (reference <= points[-1])]
        num_bins = int(np.clip(2 * len(inside) ** (1 / 3), 12, 50))
        counts, edges = np.histogram(inside, num_bins, (points[0], points[-1]))
        heights = counts / (len(reference) * np.diff(edges))
        axes.stairs(heights, edges, fill=True, color=REFERENCE, label="reference")
    density = component_densities(values, drawn.mode_shares, drawn.mode_weights, points).sum(axis=0)
    axes.plot(points, density, color=FIT, lw=1.8, label="fit")
    if reference is None:
        axes.fill_between(points, density, color=FIT, alpha=0.2, lw=0)
    axes.set_ylim(0, None)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_title(short(name), fontsize=10)


def pairs(
    posterior: Posterior,
    axes: Any = None,
    *,
    names: str | Sequence[str] | None = None,
    num_draws: int = 1500,
    seed: int = 0,
) -> np.ndarray:
    """Draws of parameters, two at a time, coloured by the component that most probably made them.

    The six heaviest components have colours and shapes, all others are grey. On the diagonal are the marginals, with
    the components below. The first four parameters by default; an array (n, n) of Axes, whose upper half is empty.
    """
    drawn = scalars(posterior, num_draws, seed)
    chosen = choose_names(drawn.names, names, _MOST_PAIRS)
    num = len(chosen)
    size = 2.4 if num > 2 else 3.2 if num == 2 else 4.5
    grid = many_axes(axes, num, num, size, size * 0.9)
    limits = {name: grid_of(drawn.column(name)) for name in chosen}
    for row, below in enumerate(chosen):
        for column, across in enumerate(chosen):
            each = grid[row, column]
            if column > row:
                each.set_axis_off()
                continue
            if row == column:
                _diagonal(each, drawn, across, limits[across])
            else:
                _scatter(each, drawn, across, below)
                each.set_ylim(*_padded(limits[below]))
            each.set_xlim(*_padded(limits[across]))
            _outer_labels(each, across, below, row == num - 1, column == 0 and row > 0)
    _legend(grid, drawn)
    return grid


def _scatter(axes: Axes, drawn: Scalars, across: str, below: str) -> None:
    labels = drawn.labels
    for number in reversed(range(min(len(drawn.weights), len(COLOURS) + 1))):
        own = labels == number if number < len(COLOURS) else labels >= number
        marker = MARKERS[number] if number < len(COLOURS) else "o"
        x, y = drawn.column(across)[own], drawn.column(below)[own]
        axes.scatter(x, y, s=9, color=colour_of(number), marker=marker, alpha=0.6, linewidths=0, rasterized=True)


def _diagonal(axes: Axes, drawn: Scalars, name: str, points: np.ndarray) -> None:
    each = component_densities(drawn.column(name), drawn.shares, drawn.weights, points)
    named, others = each[: len(COLOURS)], each[len(COLOURS) :]
    for number, density in enumerate(named):
        axes.fill_between(points, density, color=colour_of(number), alpha=0.35, lw=0)
    if len(others):
        axes.fill_between(points, others.sum(axis=0), color=OTHERS, alpha=0.35, lw=0)
    total = component_densities(drawn.column(name), drawn.mode_shares, drawn.mode_weights, points).sum(axis=0)
    axes.plot(points, total, color="black", lw=1.4)
    axes.set_ylim(0, None)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _outer_labels(axes: Axes, across: str, below: str, is_last: bool, is_first: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8, labelbottom=is_last, labelleft=is_first)
    if is_last:
        axes.set_xlabel(short(across, _LABEL))
    if is_first:
        axes.set_ylabel(short(below, _LABEL))


def _legend(grid: np.ndarray, drawn: Scalars) -> None:
    """In the empty half, where there is one."""
    from matplotlib.lines import Line2D

    shown = min(len(drawn.weights), len(COLOURS))
    handles = [
        Line2D(
            [],
            [],
            marker=MARKERS[k],
            color=colour_of(k),
            ls="",
            label=f"component {k + 1}, {percent(drawn.weights[k])}",
        )
        for k in range(shown)
    ]
    rest = drawn.weights[shown:]
    if len(rest):
        handles.append(
            Line2D([], [], marker="o", color=OTHERS, ls="", label=f"{len(rest)} more, {percent(rest.sum())}")
        )
    if len(grid) > 1:
        grid[0, -1].legend(handles=handles, frameon=False, loc="center", fontsize=9)
    else:
        legend_beside(grid[0, 0], handles=handles)


def _padded(points: np.ndarray) -> tuple[float, float]:
    margin = 0.03 * (points[-1] - points[0])
    return float(points[0] - margin), float(points[-1] + margin)

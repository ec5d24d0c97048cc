"""The components of a mixture over the density that they make, in one and two dimensions."""

from collections.abc import Sequence

import numpy as np

from relbo.plots.canvas import QUIET, Axes, legend_beside, one_axes, percent, short
from relbo.posterior.posterior import Posterior
from relbo.views.densities import component_densities, grid_of, level_of, plane_densities
from relbo.views.palette import colour_of
from relbo.views.scalars import by_mode, choose_names, shares_at

_NUM_DRAWS = 20_000  # a density estimate without visible noise
_INSIDE = 0.8
"""The contour of a component in the plane holds so much of it."""
_NAMED = 6  # as many as there are colours


def components(
    posterior: Posterior,
    axes: Axes | None = None,
    *,
    names: str | Sequence[str] | None = None,
    num_draws: int = _NUM_DRAWS,
    seed: int = 0,
) -> Axes:
    """Components, weighted, over the density of the whole mixture, in one or two unconstrained coordinates.

    `names` are one or two of `posterior.target.coordinate_names()`, the first two by default. In one dimension every
    component is an area under the mixture's curve; in two, a contour with 80% of its mass, over the mixture's density.
    If the target itself has no more than these dimensions, and is there, it is drawn as well (dashed).
    """
    known = posterior.target.coordinate_names()
    chosen = choose_names(known, names, 2)
    if len(chosen) > 2:
        raise ValueError(f"components are drawn in one or two coordinates, got {len(chosen)}: {', '.join(chosen)}.")
    axes = one_axes(axes, 7.5, 3.8 if len(chosen) == 1 else 5.0)
    columns = [known.index(name) for name in chosen]
    points = np.asarray(posterior.sample_unconstrained(num_draws, seed=seed), np.float64)
    axes.set_xlabel(_label(posterior, chosen[0]))
    if len(chosen) == 1:
        _draw_line(axes, posterior, points, columns[0])
    else:
        _draw_plane(axes, posterior, points, columns)
        axes.set_ylabel(_label(posterior, chosen[1]))
    legend_beside(axes)
    return axes


def _draw_line(axes: Axes, posterior: Posterior, points: np.ndarray, column: int) -> None:
    grid = grid_of(points[:, column], 400)
    if posterior.dim == 1:
        each = _exact(posterior, grid[:, None])
        total = each.sum(axis=0)
    else:
        shares = shares_at(posterior, points)
        each = component_densities(points[:, column], shares, posterior.weights, grid)
        total = component_densities(points[:, column], *by_mode(posterior, shares), grid).sum(axis=0)
    for number, density in enumerate(each):
        axes.fill_between(grid, density, color=colour_of(number), alpha=0.3, lw=0)
        axes.plot(grid, density, color=colour_of(number), lw=1.1, label=_named(posterior, number))
    axes.plot(grid, total, color="black", lw=1.8, label="mixture")
    target = _target(posterior, grid[:, None], grid[1] - grid[0]) if posterior.dim == 1 else None
    if target is not None:
        axes.plot(grid, target, color=QUIET, lw=1.6, ls=(0, (4, 3)), label="posterior")
    axes.set_ylim(0, None)
    axes.set_ylabel("density")


def _draw_plane(axes: Axes, posterior: Posterior, points: np.ndarray, columns: list[int]) -> None:
    grids = (grid_of(points[:, columns[0]], 120), grid_of(points[:, columns[1]], 120))
    mesh = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, 2)
    exact = posterior.dim == 2
    if exact:
        each = _exact(posterior, mesh[:, np.argsort(columns)]).reshape(-1, 120, 120)
        total = each.sum(axis=0)
    else:
        shares = shares_at(posterior, points)
        each = plane_densities(points[:, columns], shares, posterior.weights, grids)
        total = plane_densities(points[:, columns], *by_mode(posterior, shares), grids).sum(axis=0)
    # By mass and not by height: every step of the shading is another fifth of the probability.
    levels = np.unique([level_of(total, mass) for mass in (0.99, 0.95, 0.8, 0.6, 0.4, 0.2)])
    axes.contourf(*grids, total.T, [*levels, total.max() * 1.01], cmap="Greys", vmin=-total.max() / 3, alpha=0.85)
    if exact:
        area = (grids[0][1] - grids[0][0]) * (grids[1][1] - grids[1][0])
        target = _target(posterior, mesh[:, np.argsort(columns)], area)
        if target is not None:
            target = target.reshape(120, 120)
            known = target[~np.isnan(target)]
            heights = np.unique([level_of(known, mass) for mass in (0.95, 0.5)])
            axes.contour(*grids, target.T, heights, colors="black", linewidths=0.9, linestyles="dashed")
            axes.plot([], [], color="black", lw=0.9, ls="--", label="posterior (50%, 95%)")
    for number in reversed(range(len(each))):
        density, colour, width = each[number], colour_of(number), 2.2 if number < _NAMED else 0.8
        if density.max() > 0:
            axes.contour(*grids, density.T, [level_of(density, _INSIDE)], colors=colour, linewidths=width)
    for number in range(len(each)):
        axes.plot([], [], color=colour_of(number), lw=2.2, label=_named(posterior, number))


def _exact(posterior: Posterior, points: np.ndarray) -> np.ndarray:
    """The weighted density of every component at unconstrained points of all coordinates, (num_components, num)."""
    log_q = np.asarray(posterior.log_prob(points), np.float64)
    return (np.exp(log_q)[:, None] * shares_at(posterior, points)).T


def _target(posterior: Posterior, points: np.ndarray, cell: float) -> np.ndarray | None:
    """The density of the target on a grid, made to integrate to one there; None if there is no model.

    Where the model is broken it is NaN, and a gap in the drawing.
    """
    if posterior.target.stored is not None:
        return None
    log_p = posterior.log_target(points)
    density = np.exp(log_p - np.nanmax(log_p))
    return density / (np.nansum(density) * cell)


def _named(posterior: Posterior, number: int) -> str | None:
    """The heaviest by their weights; all further ones once, together."""
    weights = posterior.weights
    if number < _NAMED:
        return f"component {number + 1}, {percent(weights[number])}"
    return f"{len(weights) - _NAMED} more, {percent(weights[_NAMED:].sum())}" if number == _NAMED else None


def _label(posterior: Posterior, name: str) -> str:
    support = posterior.target.supports().get(name.partition("[")[0], "unknown")
    return short(name) if support == "real" else f"{short(name)}, unconstrained"

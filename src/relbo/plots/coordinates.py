"""The same draws in the model's coordinates and in those that the fit worked in."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from relbo.plots.canvas import QUIET, Axes, many_axes, short
from relbo.posterior.posterior import Posterior
from relbo.views.densities import grid_of
from relbo.views.scalars import choose_names, whitened


def coordinates(
    posterior: Posterior,
    axes: Any = None,
    *,
    names: str | Sequence[str] | None = None,
    num_draws: int = 2000,
    seed: int = 0,
) -> np.ndarray:
    """Draws in two unconstrained coordinates of the model, and beside them the same draws as the fit saw them.

    A fit works in coordinates of its own, affine or learned, in which the posterior should look like a standard normal:
    the circles hold 39%, 86% and 99% of one. A draw has the same colour on both sides. `names` are two of
    `posterior.target.coordinate_names()`, the first two by default. Returns two Axes.
    """
    known = posterior.target.coordinate_names()
    chosen = choose_names(known, names, 2)
    if len(chosen) != 2:
        raise ValueError(f"two coordinates are needed, got {len(chosen)}: {', '.join(chosen)}.")
    columns = [known.index(name) for name in chosen]
    points = np.asarray(posterior.sample_unconstrained(num_draws, seed=seed))
    own = whitened(posterior, points)[:, columns]
    points = points[:, columns]
    left, right = many_axes(axes, 1, 2, 4.2, 4.0).ravel()
    shade = np.argsort(np.argsort(points[:, 0])) / len(points)
    _scatter(left, points, shade, [short(name) for name in chosen], "the model's coordinates")
    left.set_xlim(*_limits(points[:, 0]))
    left.set_ylim(*_limits(points[:, 1]))
    _circles(right)
    _scatter(right, own, shade, [f"coordinate {column + 1}" for column in columns], "the fit's coordinates")
    reach = max(3.4, float(np.quantile(np.abs(own), 0.998)))
    right.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return np.array([left, right], dtype=object)


def _scatter(axes: Axes, points: np.ndarray, shade: np.ndarray, labels: list[str], title: str) -> None:
    axes.scatter(*points.T, c=shade, cmap="cividis", s=8, alpha=0.7, linewidths=0, rasterized=True)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.set_title(title, fontsize=11)


def _circles(axes: Axes) -> None:
    angle = np.linspace(0, 2 * np.pi, 200)
    for radius in (1, 2, 3):
        axes.plot(radius * np.cos(angle), radius * np.sin(angle), color=QUIET, lw=0.9, ls="--")


def _limits(values: np.ndarray) -> tuple[float, float]:
    points = grid_of(values)
    margin = 0.04 * (points[-1] - points[0])
    return float(points[0] - margin), float(points[-1] + margin)

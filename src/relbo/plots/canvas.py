"""Axes: those given, checked, or new ones; and the looks that all pictures share."""

from typing import TYPE_CHECKING, Any

import numpy as np

from relbo.runtime.require import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any

GRID = "0.9"
QUIET = "0.35"
"""Text that is read second; dark enough to be read."""


def one_axes(axes: Axes | None, width: float = 6.0, height: float = 3.6) -> Axes:
    """The axes given, or new ones of this size in inches; in the common looks."""
    if axes is None:
        axes = new_grid(1, 1, width, height)[0, 0]
    elif not hasattr(axes, "plot"):
        raise ValueError(f"axes must be one matplotlib Axes, got {type(axes).__name__}. For an array, pass one of it.")
    return tidy(axes)


def many_axes(axes: Any, rows: int, columns: int, width: float, height: float, **options: Any) -> np.ndarray:
    """The array of axes given, or a new one, (rows, columns), `width` by `height` inches each."""
    if axes is None:
        grid = new_grid(rows, columns, width * columns, height * rows, **options)
    else:
        grid = np.asarray(axes, dtype=object)
        if grid.size != rows * columns:
            raise ValueError(f"axes must be {rows * columns} Axes ({rows} by {columns}), got {grid.size}.")
        grid = grid.reshape(rows, columns)
    for each in grid.ravel():
        tidy(each)
    return grid


def new_grid(rows: int, columns: int, width: float, height: float, **options: Any) -> np.ndarray:
    """New axes (rows, columns) in a figure of this size in inches."""
    pyplot = require("matplotlib.pyplot", extra="plots")
    size = (width, height)
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)[1]


def tidy(axes: Axes) -> Axes:
    """No box around the picture, and a grid that stays behind it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def legend_beside(axes: Axes, **options: Any) -> None:
    """A legend to the right of the picture, where it hides nothing."""
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5), **options)


def percent(share: float | np.floating) -> str:
    return "< 0.1%" if share < 0.001 else f"{share:.1%}"


def short(name: str, most: int = 28) -> str:
    """A name that fits under a picture, its index kept. Dollar signs are shown as such, and not read as mathematics."""
    if len(name) > most:
        index = name[name.rfind("[") :] if name.endswith("]") else ""
        index = index if len(index) <= most // 2 else ""
        name = f"{name[: most - 1 - len(index)]}…{index}"
    return name.replace("$", r"\$")

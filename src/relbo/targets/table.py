"""A target on paper: what `print(target)` shows."""

import re
from collections import Counter
from typing import TYPE_CHECKING

import jax

from relbo.targets.layout import named_leaves

if TYPE_CHECKING:
    from relbo.targets.base import AbstractTarget

_MOST_ROWS = 40


def as_table(target: "AbstractTarget") -> str:
    """A line for every parameter and computed quantity: its name, shape, support if known, and unconstrained size."""
    sizes = Counter(re.split(r"[\[:]", name)[0] for name in target.coordinate_names())
    supports, shapes = target.supports(), _shapes(target)
    shapes = shapes or dict.fromkeys(sizes, "")
    known = sizes.keys() <= shapes.keys()  # the coordinates of Stan's tuples have names of their own
    rows = [(name, shapes[name], supports.get(name, ""), str(sizes[name])) for name in sizes if name in shapes]
    rows += [(name, shapes[name], "", "computed" if known else "") for name in shapes if name not in sizes]
    heading = ("parameter", "shape", "support", "coordinates")
    shown = [column for column in range(4) if any(row[column] for row in rows)]
    lines = [[row[column] for column in shown] for row in [heading, *rows[:_MOST_ROWS]]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    more = [f"... and {len(rows) - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS else []
    unit = "coordinate" if target.dim == 1 else "coordinates"
    return "\n".join([f"{type(target).__name__}: {target.dim} unconstrained {unit}, {target.dtype}", *text, *more])


def _shapes(target: "AbstractTarget") -> dict[str, str]:
    """Of what `constrain` gives; nothing, if only the model could say and there is none."""
    try:
        values = jax.eval_shape(lambda z: target.constrain(z), jax.ShapeDtypeStruct((target.dim,), target.dtype))
    except ValueError:
        return {}
    return {name: str(tuple(leaf.shape)) for name, leaf in named_leaves(values)[0]}

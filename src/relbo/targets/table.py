"""A target on paper: what `print(target)` and a notebook show."""

import re
from collections import Counter
from typing import TYPE_CHECKING

import jax

from relbo.runtime.tables import html_block, html_line, html_table, text_table
from relbo.runtime.words import plural
from relbo.targets.layout import named_leaves

if TYPE_CHECKING:
    from relbo.targets.base import AbstractTarget

_MOST_ROWS = 40  # of a screen


def as_table(target: "AbstractTarget") -> str:
    """A line for every parameter and computed quantity: its name, shape, support if known, and unconstrained size."""
    rows = _rows(target)
    more = [f"... and {len(rows) - 1 - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS + 1 else []
    return "\n".join([_title(target), *text_table(rows[: _MOST_ROWS + 1]), *more])


def as_html(target: "AbstractTarget") -> str:
    """The same for a notebook."""
    heading, *rows = _rows(target)
    return html_block(html_line(_title(target), strong=True), html_table(heading, rows))


def _title(target: "AbstractTarget") -> str:
    return f"{type(target).__name__}: {plural(target.dim, 'unconstrained coordinate')}, {target.dtype}"


def _rows(target: "AbstractTarget") -> list[list[str]]:
    """The heading and the lines, without columns that would be empty."""
    sizes = Counter(re.split(r"[\[:]", name)[0] for name in target.coordinate_names())
    supports, shapes, dims = target.supports(), _shapes(target), target.dims()
    shapes = shapes or dict.fromkeys(sizes, "")
    known = sizes.keys() <= shapes.keys()  # the coordinates of Stan's tuples have names of their own
    axes = {name: _axes(name, dims.get(name, ())) for name in shapes}
    rows = [
        (name, shapes[name], axes[name], supports.get(name, ""), str(sizes[name])) for name in sizes if name in shapes
    ]
    rows += [(name, shapes[name], axes[name], "", "computed" if known else "") for name in shapes if name not in sizes]
    heading = ("parameter", "shape", "dims", "support", "coordinates")
    shown = [column for column in range(len(heading)) if any(row[column] for row in rows)]
    return [[row[column] for column in shown] for row in [heading, *rows]]


def _axes(name: str, dims: tuple[str, ...]) -> str:
    """The names of the axes, if they say more than their number."""
    return ", ".join(dims) if any(not axis.startswith(f"{name}_dim_") for axis in dims) else ""


def _shapes(target: "AbstractTarget") -> dict[str, str]:
    """Of what `constrain` gives; nothing, if only the model could say and there is none."""
    try:
        values = jax.eval_shape(lambda z: target.constrain(z), jax.ShapeDtypeStruct((target.dim,), target.dtype))
    except ValueError:
        return {}
    return {name: str(tuple(leaf.shape)) for name, leaf in named_leaves(values)[0]}

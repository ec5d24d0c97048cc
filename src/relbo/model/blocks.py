"""How many points the door evaluates side by side."""

from typing import Any, NamedTuple

import jax
import numpy as np

from relbo.runtime.spreading import rows_here


class Sizes(NamedTuple):
    """What a block may have, by the kind of device."""

    points: int
    """Where data are few: more would hardly be faster, and few points are padded to so many."""
    coordinates: int
    """And the coordinates times the points: in many dimensions few points are asked for, and padding costs much."""
    numbers: int
    """Rows of data times points, so that temporaries stay in the cache of a CPU, or in the memory of an accelerator."""


_ON_CPU = Sizes(128, 2**13, 2**18)  # a megabyte of temporaries, in float32
_ON_ACCELERATOR = Sizes(1024, 2**17, 2**26)
"""Which wants much at once to be busy. (By reasoning: no such device was at hand to measure it.)"""


_LEAST = 16
"""Points that share the reading of the rows, however many these are: with 8, a million rows of 100 columns take half as
much time again for a point, and with one three times as much; with 32 temporaries cost more than is saved."""


def sizes() -> Sizes:
    return _ON_CPU if jax.default_backend() == "cpu" else _ON_ACCELERATOR


def block_of(target: Any) -> int:
    """Points at once, by the length of the data and of a point: a block that stays in the cache is much faster."""
    longest = max((rows_here(leaf) for leaf in jax.tree.leaves(target) if getattr(leaf, "ndim", 0)), default=1)
    return block_for(target.dim, longest)


def block_for(dim: int, num_rows: int = 1) -> int:
    """Points of so many coordinates at once, for each of which there are so many rows of data."""
    most = sizes()
    fitting = min(max(most.numbers / num_rows, _LEAST), most.coordinates / dim)
    return int(2 ** np.clip(np.floor(np.log2(fitting)), 3, np.log2(most.points)))

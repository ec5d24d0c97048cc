"""Which components a step of refinement moves: all of them, or a few, in turn.

The draws of one component are weighed by the densities of all, so a step that moves all of them costs the square of
their number. In many dimensions that is most of what a fit of many components takes. There a step moves a few, the
newest first, and the others stand still until it is their turn.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

_AT_ONCE = 8  # 64 components in 100 dimensions: an iteration takes three times as long as with 2, and with all eighteen
_FEW_DIMENSIONS = 32
"""Up to here a step costs little whatever the number of components, and all of them move together."""


class Turn(NamedTuple):
    """Of a step: the first slot that moves in it, the first one that moves in the next, and how many do."""

    first: np.ndarray
    then: np.ndarray
    num: int


@dataclass(frozen=True)
class Turns:
    """`num_moving` of the slots at a time, of the `num_active` first ones of `capacity`."""

    capacity: int
    num_active: int
    num_moving: int

    @classmethod
    def of(cls, capacity: int, num_active: int, dim: int) -> "Turns":
        return cls(capacity, num_active, capacity if dim <= _FEW_DIMENSIONS else min(capacity, _AT_ONCE))

    @property
    def num(self) -> int:
        """Steps until every component has moved."""
        return max(1, math.ceil(self.num_active / self.num_moving))

    def at(self, step: int) -> Turn:
        first, then = (np.asarray(self._first(index), np.int32) for index in (step, step + 1))
        return Turn(first, then, self.num_moving)

    def num_used(self, step: int) -> int:
        """How many of the slots that move hold a component."""
        return min(self.num_moving, self.num_active - self._first(step))

    def rounded(self, num_steps: int) -> int:
        """So many steps or a few more, after which all have had equally many turns."""
        return self.num * math.ceil(num_steps / self.num)

    def _first(self, step: int) -> int:
        turn = self.num - 1 - step % self.num
        return min(turn * self.num_moving, self.capacity - self.num_moving)


def taken(stack: PyTree, first: Int[Array | np.ndarray, ""], num: int) -> PyTree:
    """`num` of a stack, from number `first` on."""
    return jax.tree.map(
        lambda leaf: leaf if leaf.shape[0] == num else jax.lax.dynamic_slice_in_dim(leaf, first, num), stack
    )


def put_back(stack: PyTree, part: PyTree, first: Int[Array | np.ndarray, ""]) -> PyTree:
    """The stack with `part` in the place that it was `taken` from."""

    def replaced(leaf, new):
        return new if new.shape == leaf.shape else jax.lax.dynamic_update_slice_in_dim(leaf, new, first, axis=0)

    return jax.tree.map(replaced, stack, part)

r"""A log density that is a sum over rows, evaluated chunk by chunk: all points against a chunk while it is in memory.

$$\log p(z) = \log \pi(T(z)) + \log |\det J_T(z)| + \sum_i \ell(T(z), \text{row}_i)$$

One pass over the rows serves any number of points, which go in blocks of one shape against chunks of one shape, so that
few programs are compiled (for 8, 16 and 32 points). Within a chunk sums are those of the device; chunks are added
on the host in double precision, in the order of the rows: their size changes the result by rounding alone.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from relbo.runtime.compiling import compiled
from relbo.targets.layout import Layout
from relbo.targets.rows.reading import Chunk, ahead, even

MANY, FEW = 32, 8
"""Points of a block, at the most and at the least: a power of two, so that little is padded."""
_COORDINATES = 2**13
"""Of a block, at the most: see the door."""

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class RowModel:
    """The two functions whose sum is the log density, and the layout of their parameters. Static and hashable."""

    log_prior: Callable[..., Any]
    log_likelihood: Callable[..., Any]
    layout: Layout

    def prior(self, z):
        params, log_det = self.layout.constrain_with_log_det(z)
        return jnp.asarray(self.log_prior(params) + log_det, self.layout.dtype)

    def likelihood(self, z, rows: PyTree, num: Any):
        """Of the first `num` rows."""
        each = self.log_likelihood(self.layout.constrain_with_log_det(z)[0], rows)
        return jnp.sum(jnp.where(jnp.arange(each.shape[0]) < num, each, 0.0)).astype(self.layout.dtype)

    def block(self, num_points: int) -> int:
        """Points that go through together."""
        most = max(1, min(MANY, _COORDINATES // self.layout.dim))
        return min(most, max(FEW, 2 ** math.ceil(math.log2(num_points))))


@dataclass(frozen=True)
class Sums:
    """Values and gradients at points (num, dim), from all rows that `pieces` gives, times `scale`, and the prior."""

    model: RowModel
    pieces: Callable[[], Iterator[PyTree]]
    rows_at_once: int
    scale: float = 1.0
    between: Callable[[], None] | None = None
    """Called after every chunk; may raise, where a budget of time is spent."""

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        block, dim = self.model.block(len(points)), points.shape[1]
        padded = np.concatenate([points, np.repeat(points[:1], -len(points) % block, axis=0)])
        blocks = jax.device_put(list(padded.astype(self.model.layout.dtype).reshape(-1, block, dim)))
        with np.errstate(over="ignore", invalid="ignore"):
            values, slopes = self._of_rows(blocks)
            values, slopes = self.scale * values, self.scale * slopes
            _add(values, slopes, [_prior(self.model, each) for each in blocks])
        values, slopes = values.reshape(-1)[: len(points)], slopes.reshape(-1, dim)[: len(points)]
        return values, np.where(values[:, None] == -np.inf, 0.0, slopes)

    def _of_rows(self, blocks: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(blocks), *blocks[0].shape)
        values, slopes = np.zeros(shape[:2]), np.zeros(shape)
        before: list[Pair] = []
        for chunk in ahead(self._chunks()):
            rows = jax.device_put(chunk.rows)  # once, for all blocks
            now = [_likelihood(self.model, each, rows, np.int32(chunk.num)) for each in blocks]
            _add(values, slopes, before)  # those of this chunk are being computed in the meantime
            before = now
            if self.between is not None:
                self.between()
        _add(values, slopes, before)
        return values, slopes

    def _chunks(self) -> Iterator[Chunk]:
        return even(self.pieces(), self.rows_at_once)


def _add(values: np.ndarray, slopes: np.ndarray, found: list[Pair]) -> None:
    for index, (value, slope) in enumerate(found):
        values[index] += np.asarray(value, np.float64)
        slopes[index] += np.asarray(slope, np.float64)


@partial(compiled, over_data=True)
def _likelihood(model: RowModel, points, rows, num) -> Pair:
    return jax.vmap(jax.value_and_grad(lambda z: model.likelihood(z, rows, num)))(points)


@compiled
def _prior(model: RowModel, points) -> Pair:
    return jax.vmap(jax.value_and_grad(model.prior))(points)

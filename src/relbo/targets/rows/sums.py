r"""A log density that is a sum over rows, evaluated chunk by chunk: all points against a chunk while it is in memory.

$$\log p(z) = \log \pi(T(z)) + \log |\det J_T(z)| + \sum_i \ell(T(z), \text{row}_i)$$

One pass over the rows serves any number of points, which go in blocks of few shapes against chunks of one shape, so
that few programs are compiled (for 8, 16 and 32 points; and for the last chunk, where it is shorter). Within a chunk
sums are those of the device; chunks are added on the host in double precision, in the order of the rows: their size
changes the result by rounding alone.
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
from relbo.targets.rows.reading import num_rows

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

    def likelihood(self, z, rows: PyTree):
        each = self.log_likelihood(self.layout.constrain_with_log_det(z)[0], rows)
        return jnp.sum(each).astype(self.layout.dtype)

    def likelihoods(self, points, rows: PyTree) -> Pair:
        """Sums over some rows, and their gradients, at a block of points."""
        return jax.vmap(jax.value_and_grad(lambda z: self.likelihood(z, rows)))(points)

    def blocks(self, num_points: int) -> list[int]:
        """Sizes of the blocks in which points go through: the last is the smallest that takes what is left."""
        most = max(1, min(MANY, _COORDINATES // self.layout.dim))
        whole, left = divmod(num_points, most)
        last = [min(most, max(FEW, 2 ** math.ceil(math.log2(left))))] if left else []
        return [most] * whole + last


@dataclass(frozen=True)
class Sums:
    """Values and gradients at points (num, dim), from all rows that `pieces` gives, times `scale`, and the prior."""

    model: RowModel
    chunks: Callable[[], Iterator[PyTree]]
    scale: float = 1.0
    between: Callable[[], None] | None = None
    """Called after every chunk; may raise, where a budget of time is spent."""
    release: Callable[[int, int], None] | None = None
    """Called with the rows of a chunk that is done with."""

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes = self.model.blocks(len(points))
        padded = np.concatenate([points, np.repeat(points[:1], sum(sizes) - len(points), axis=0)])
        padded = padded.astype(self.model.layout.dtype)
        blocks = jax.device_put([padded[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)])
        with np.errstate(over="ignore", invalid="ignore"):
            values, slopes = self._of_rows(blocks)
            values, slopes = self.scale * values, self.scale * slopes
            _add(values, slopes, [_prior(self.model, each) for each in blocks])
        values, slopes = values[: len(points)], slopes[: len(points)]
        return values, np.where(values[:, None] == -np.inf, 0.0, slopes)

    def _of_rows(self, blocks: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        num = sum(len(block) for block in blocks)
        values, slopes = np.zeros(num), np.zeros((num, blocks[0].shape[1]))
        before: list[Pair] = []
        done = begun = 0
        for chunk in self.chunks():
            rows = jax.device_put(chunk)  # once, for all blocks
            now = [_likelihoods(self.model, each, rows) for each in blocks]
            _add(values, slopes, before)  # those of this chunk are being computed in the meantime
            self._release(done, begun)
            before, done, begun = now, begun, begun + num_rows(chunk)
            if self.between is not None:
                self.between()
        _add(values, slopes, before)
        self._release(done, begun)
        return values, slopes

    def _release(self, start: int, stop: int) -> None:
        if self.release is not None:
            self.release(start, stop)


def _add(values: np.ndarray, slopes: np.ndarray, found: list[Pair]) -> None:
    start = 0
    for value, slope in found:
        stop = start + len(value)
        values[start:stop] += np.asarray(value, np.float64)
        slopes[start:stop] += np.asarray(slope, np.float64)
        start = stop


@partial(compiled, over_data=True)
def _likelihoods(model: RowModel, points, rows) -> Pair:
    return model.likelihoods(points, rows)


@compiled
def _prior(model: RowModel, points) -> Pair:
    return jax.vmap(jax.value_and_grad(model.prior))(points)

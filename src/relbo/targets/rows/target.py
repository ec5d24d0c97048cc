r"""`from_rows`: a target whose rows stay where they are, on disk as a rule, and are read chunk by chunk."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.runtime.choices import whole_number
from relbo.runtime.compiling import temporary_bytes
from relbo.runtime.warn import warn
from relbo.targets.base import AbstractLayoutTarget
from relbo.targets.layout import Layout, one_point, read_example
from relbo.targets.rows.checks import check_functions, check_one_by_one, name_nan_rows
from relbo.targets.rows.reading import Batches, chunks, even, evenly
from relbo.targets.rows.sources import AbstractRows, as_rows
from relbo.targets.rows.sums import MANY, RowModel, Sums
from relbo.targets.search import NUM_TRIED, Tries, first_usable, jittered, moved, nowhere, problem_at, uniform
from relbo.targets.starts import starting_points

_IN_CACHE = 2**19
"""Numbers that the rows of a chunk times the points of a block have: temporaries stay in the cache, and for a fourth as
many points a chunk is still worth the calls that it costs."""
_CHUNK_BYTES = 2**25  # 32 MB: a read that long pays for its seek, and four fit anywhere
_COPIES = 4
"""Of a chunk: one is being read, one is ready, one is on the device, and one was."""
_IN_PLACE = 2
"""And of one that is used where it is: only its predecessor may still be in use."""


class RowsTarget(AbstractLayoutTarget):
    r"""$\log p(z) = \log\pi(T(z)) + \log|\det J_T(z)| + \sum_i \ell(T(z), \text{row}_i)$. Made by `from_rows`.

    The rows are no leaves of this tree: they are read whenever the density is evaluated, which is done on the host.
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    layout: Layout = eqx.field(static=True)
    model: RowModel = eqx.field(static=True)
    source: AbstractRows = eqx.field(static=True)
    rows_at_once: int = eqx.field(static=True)
    batches: Batches | None = eqx.field(static=True)

    def __init__(
        self,
        model: RowModel,
        source: AbstractRows,
        initial: Float[Array, "num dim"],
        rows_at_once: int,
        batches: Batches | None = None,
    ):
        self.dim, self.dtype, self.layout = model.layout.dim, model.layout.dtype, model.layout
        self.differentiable, self.twice_differentiable = True, False
        self.initial, self.model, self.source = initial, model, source
        self.rows_at_once, self.batches = rows_at_once, batches

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        """One pass over all rows. Not to be traced: a compiled program cannot read files."""
        if isinstance(z, jax.core.Tracer):
            raise TypeError(
                "a target made by relbo.from_rows reads its rows on the host, so JAX cannot trace its log density. "
                "Call it with numbers; values and gradients at many points in one pass are target.on_host()(points)."
            )
        value = self.on_host()(np.asarray(one_point(z, self.dim, self.dtype), np.float64)[None])[0][0]
        return jnp.asarray(value, self.dtype)

    def on_host(self, batch=None, between=None):
        if batch is None or self.batches is None:
            return Sums(self.model, self._all_rows, 1.0, between, self.source.release)
        rows, scale = self.batches.at(*batch)
        num = len(jax.tree.leaves(rows)[0])
        most = self.batches.piece * self.batches.num_chosen  # one piece may be short: the shape is the same
        size = min(max(num, most), self.rows_at_once)
        return Sums(self.model, lambda: even([rows], size), scale, between)

    def _all_rows(self) -> Iterator[PyTree]:
        return chunks(self.source, self.rows_at_once)

    @property
    def subsamples(self) -> bool:
        return self.batches is not None

    @property
    def streams(self) -> bool:
        return True

    def within(self, max_memory: int) -> "RowsTarget":
        """The same target with chunks for so much memory: half of it is for rows and what is computed from them."""
        few, more = (
            temporary_bytes(self.model.likelihoods, *self._shapes(self.source.read(0, 1), num), over_data=True)
            for num in (64, 256)
        )
        copies = _IN_PLACE if self.source.in_place else _COPIES
        each = max(0, more - few) / (256 - 64) + copies * self.source.row_bytes
        fitting = int(max_memory / 2 / each)
        needed = 2 * each * max(1, self.source.group)
        if needed > max_memory:
            what = f"groups of {self.source.group:,} rows, which" if self.source.group > 1 else "rows, one of which"
            raise ValueError(
                f"max_memory is {max_memory / 1e6:.3g} MB, and the data come in {what} need about {needed / 1e6:.3g} "
                "MB. Give more, or write the data in smaller chunks or row groups."
            )
        rows = min(self.rows_at_once, evenly(self.source.num_rows, fitting))
        return RowsTarget(self.model, self.source, self.initial, rows, self.batches)

    def _shapes(self, example: PyTree, num: int):
        block = self.model.blocks(MANY)[0]
        rows = jax.tree.map(lambda leaf: jnp.zeros((num, *leaf.shape[1:]), leaf.dtype), example)
        return jnp.zeros((block, self.dim), self.dtype), rows


def from_rows(
    log_prior: Callable[..., Any],
    log_likelihood: Callable[..., Any],
    example: PyTree,
    rows: Any,
    *,
    columns: Any = None,
    supports: Any = None,
    init: Any = None,
    batch_size: int | None = None,
) -> RowsTarget:
    """A target whose log density is a prior and a sum over rows, which may be more than memory holds.

    Rows are read chunk by chunk, ahead of need, whenever the density is evaluated; all points of an evaluation share
    one pass. `relbo.fit(target, max_memory="2GB")` bounds what chunks take. Sums over chunks are made in double
    precision. Files must not change while a target is in use.

    Arguments:
        log_prior: `log_prior(params)`, a scalar, written in JAX.
        log_likelihood: `log_likelihood(params, rows)`, the log likelihood of every row by itself, of shape (num,), for
            any number of rows. Written in JAX.
        example: a point of the model, as of `relbo.from_log_density`.
        rows: an array or a tuple or dict of arrays, rows along their first axes: of NumPy, `np.memmap`,
            `np.load(path, mmap_mode="r")`, zarr, h5py; or a Parquet file, a folder of them, or a dataset or table of
            Arrow, which `log_likelihood` sees as a dict of columns (extra `parquet`).
        columns: of an Arrow dataset, those that are wanted.
        supports, init: as of `relbo.from_log_density`.
        batch_size: rows of a minibatch, for climbing. What is measured is always measured on all rows. A minibatch is
            made of pieces of neighbouring rows; of Parquet and zarr whole groups are read for one, so write these in
            row groups or chunks of about this size.

    Raises:
        ValueError, TypeError: for whatever can be seen to be wrong at the example, in one pass over the rows.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> def log_prior(beta):
        ...     return -jnp.sum(beta**2) / 2
        >>> def log_likelihood(beta, rows):
        ...     logits = rows["x"] @ beta
        ...     return rows["y"] * logits - jax.nn.softplus(logits)
        >>> rows = {"x": np.eye(3, dtype="float32"), "y": np.array([1.0, 0.0, 1.0], "float32")}
        >>> target = from_rows(log_prior, log_likelihood, jnp.zeros(3), rows)
        >>> round(float(target.log_density(jnp.zeros(3))), 4)
        -2.0794
    """
    source = as_rows(rows, columns)
    layout, leaves = read_example(example, supports)
    model = RowModel(log_prior, log_likelihood, layout)
    check_functions(model, source.read(0, 1))
    batches = None if batch_size is None else Batches(source, whole_number("batch_size", batch_size, 1))
    fitting = min(_IN_CACHE // model.blocks(MANY)[0], max(1, _CHUNK_BYTES // max(1, source.row_bytes)))
    at_once = evenly(source.num_rows, fitting)
    target = RowsTarget(model, source, starting_points(layout, leaves, init), at_once, batches)
    check_one_by_one(model, source.read(0, min(8, source.num_rows)), np.asarray(target.initial)[0])
    return _checked_start(target)


def _checked_start(target: RowsTarget) -> RowsTarget:
    """One pass at the example; where it will not do, another start is looked for, as of any log density."""
    names, points = target.coordinate_names(), np.asarray(target.initial)
    host = target.on_host()
    values, slopes = host(points[:1].astype(np.float64))
    problem = problem_at(values[0], slopes[0], names, "the log density")
    if problem is None:
        return target
    said = name_nan_rows(target.source, target.rows_at_once)
    found, num_tried = None, 0
    if values[0] != np.inf and not said:  # neither is a matter of where one starts
        given = Tries("a point of init", points[1:NUM_TRIED])
        others = [given, jittered(points[0], "it"), uniform(target.dim, target.dtype, NUM_TRIED)]
        found, num_tried = first_usable(lambda tried: host(tried.astype(np.float64)), others)
    if found is None:
        raise ValueError(nowhere(problem, names, points[0], "the example", num_tried, lambda: said))
    warn(moved(problem, names, "the example", found))
    return eqx.tree_at(lambda each: each.initial, target, target.initial.at[0].set(found.points))

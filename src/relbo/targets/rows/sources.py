"""Where rows come from: arrays (in memory, memory-mapped, zarr, HDF5), or an Arrow dataset (Parquet files).

A source reads rows in order, as trees of NumPy arrays. Nothing else here knows of files. Arrays and memory maps are
used where they are, without a copy; what was looked at of a map is given back when it is done with: the pages of a map
count as memory of the process that looked at them.
"""

import abc
import mmap
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from relbo.runtime.require import require

_KINDS = "biuf"
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)
_DONE_WITH: int | None = getattr(mmap, "MADV_DONTNEED", None)
_AROUND = 2**16
"""Bytes before a page that Linux maps with it, by default, where they are in its cache."""


class AbstractRows(abc.ABC):
    """Rows in a fixed order. Compared by identity, so that a target can hold it."""

    num_rows: int
    row_bytes: int
    """Of one row, as it is read."""
    group: int
    """Rows that the store can only read together: 1 for an array, the rows of a chunk or of a row group otherwise."""
    in_place: bool = False
    """Whether pieces are where the rows are: to read them ahead would gain nothing."""

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> PyTree[np.ndarray]:
        """Rows `start` to `stop`, along the first axis of every array, as arrays of the reader's own."""

    @abc.abstractmethod
    def pieces(self, size: int) -> Iterator[PyTree[np.ndarray]]:
        """All rows in order, in pieces of about `size` rows: as many as the store reads well."""

    def release(self, start: int, stop: int) -> None:
        """These rows of a pass are done with: memory that they take may be given back, where there is any to give."""
        del start, stop


class ArrayRows(AbstractRows):
    """A tree of arrays of one length: anything with shape, dtype and slices."""

    def __init__(self, arrays: PyTree):
        leaves = jax.tree_util.tree_leaves_with_path(arrays)
        if not leaves:
            raise ValueError("rows holds no arrays. Pass an array, or a tuple or dict of arrays, or an Arrow dataset.")
        for path, leaf in leaves:
            _check_array(f"rows{jax.tree_util.keystr(path)}", leaf)
        lengths = {f"rows{jax.tree_util.keystr(path)}": leaf.shape[0] for path, leaf in leaves}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise ValueError(f"the arrays of rows must have the same length, of at least 1, got {told}.")
        self.arrays, self.num_rows = arrays, leaves[0][1].shape[0]
        self.row_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for _, leaf in leaves)
        self.group = max(_chunk_rows(leaf) for _, leaf in leaves)
        self.in_place = all(_is_in_place(leaf) for _, leaf in leaves)

    def read(self, start, stop):
        return jax.tree.map(lambda leaf: _copied(leaf, start, stop), self.arrays)

    def pieces(self, size):
        size = max(self.group, size // self.group * self.group)
        try:
            for start in range(0, self.num_rows, size):
                stop = min(start + size, self.num_rows)
                if self.in_place:
                    self._advise(_WILL_NEED, stop, min(stop + size, self.num_rows))
                    yield jax.tree.map(lambda leaf: np.asarray(leaf[start:stop]), self.arrays)  # noqa: B023
                else:
                    yield self.read(start, stop)
        finally:
            self.release(0, self.num_rows)

    def release(self, start, stop):
        self._advise(_DONE_WITH, start, stop)

    def _advise(self, option: int | None, start: int, stop: int) -> None:
        if start < stop:
            for leaf in jax.tree.leaves(self.arrays):
                _advise(leaf, option, start, stop)

    def __getstate__(self):
        """A memory map travels as the place of its file, not as its rows."""
        return self.__dict__ | {"arrays": jax.tree.map(_packed, self.arrays)}

    def __setstate__(self, state):
        self.__dict__.update(state | {"arrays": jax.tree.map(_unpacked, state["arrays"])})


class ArrowRows(AbstractRows):
    """The columns of a `pyarrow.dataset.Dataset`, as a dict of arrays; lists of a fixed length are matrices."""

    def __init__(self, dataset: Any, columns: tuple[str, ...]):
        self.dataset, self.columns = dataset, columns
        unknown = [name for name in columns if name not in dataset.schema.names]
        if unknown:
            raise ValueError(f"the dataset has no columns {unknown}. It has {dataset.schema.names}.")
        self.row_bytes = sum(_column_bytes(name, dataset.schema.field(name).type) for name in columns)
        self.num_rows = dataset.count_rows()
        if self.num_rows == 0:
            raise ValueError("the dataset of rows is empty.")
        self._groups: list[tuple[int, Any]] | None = None
        self._last: tuple[int, Any] = (-1, None)

    @property
    def group(self) -> int:
        starts = [start for start, _ in self._row_groups()]
        return int(np.median(np.diff([*starts, self.num_rows])))

    def read(self, start, stop):
        parts = []
        for index, (first, fragment) in enumerate(self._row_groups()):
            last = self._row_groups()[index + 1][0] if index + 1 < len(self._row_groups()) else self.num_rows
            if first < stop and start < last:
                if self._last[0] != index:
                    self._last = (index, self._arrays(fragment.to_table(columns=list(self.columns))))
                inside = slice(max(start - first, 0), stop - first)
                parts.append(jax.tree.map(lambda array, inside=inside: array[inside], self._last[1]))
        return jax.tree.map(lambda *each: np.concatenate(each), *parts)

    def pieces(self, size):
        # The scanner would read far ahead of what memory allows; our own reader is ahead by one piece.
        batches = self.dataset.to_batches(
            columns=list(self.columns), batch_size=size, batch_readahead=1, fragment_readahead=1
        )
        yield from (self._arrays(batch) for batch in batches if batch.num_rows)

    def _arrays(self, table: Any) -> dict[str, np.ndarray]:
        return {name: _column(name, table.column(name)) for name in self.columns}

    def _row_groups(self) -> list[tuple[int, Any]]:
        """Every row group, after the number of its first row."""
        if self._groups is None:
            parts = [part for fragment in _fragments(self.dataset) for part in _split(fragment)]
            starts = np.cumsum([0, *(_length(part) for part in parts)])
            self._groups = [
                (int(start), part) for start, end, part in zip(starts, starts[1:], parts, strict=False) if end > start
            ]
        return self._groups

    def __getstate__(self):
        return self.__dict__ | {"_groups": None, "_last": (-1, None)}


def as_rows(rows: Any, columns: Any = None) -> AbstractRows:
    """A source from what a user has: arrays, a path of Parquet files, a dataset or table of Arrow, or a source."""
    if isinstance(rows, AbstractRows):
        return rows
    if isinstance(rows, str | os.PathLike):
        path = pathlib.Path(rows)
        if path.suffix in (".npy", ".npz", ".zarr"):
            raise ValueError(
                f'rows is the path {str(path)!r}: open it first, as np.load(path, mmap_mode="r") or zarr.open(path).'
            )
        if not path.exists():
            raise ValueError(f"rows is the path {str(path)!r}, where there is neither a Parquet file nor a folder.")
        rows = require("pyarrow.dataset", extra="parquet").dataset(path)
    if type(rows).__module__.split(".")[0] == "pyarrow":
        arrow = require("pyarrow.dataset", extra="parquet")
        dataset = rows if isinstance(rows, arrow.Dataset) else arrow.dataset(rows)
        return ArrowRows(dataset, tuple(columns or dataset.schema.names))
    if columns is not None:
        raise ValueError("columns= chooses among those of an Arrow dataset. Of arrays, pass the ones that are meant.")
    return ArrayRows(jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, list) else leaf, rows))


# Arrays


def _check_array(name: str, leaf: Any) -> None:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "__getitem__")):
        raise TypeError(f"{name} must be an array, with rows along its first axis, got {type(leaf).__name__}.")
    if len(leaf.shape) == 0:
        raise ValueError(f"{name} is a single number: rows must lie along its first axis.")
    if np.dtype(leaf.dtype).kind not in _KINDS:
        raise TypeError(f"{name} has dtype {leaf.dtype}, which is not numeric. Encode categories as integers.")


def _chunk_rows(leaf: Any) -> int:
    """Rows of a chunk of zarr or HDF5, which is decoded as a whole."""
    chunks = None if isinstance(leaf, np.ndarray) else getattr(leaf, "chunks", None)
    return int(chunks[0]) if chunks else 1


def _is_in_place(leaf: Any) -> bool:
    """Whether slices are views, of memory that is there anyway or can be given back."""
    mapped = _mapping(leaf)
    return isinstance(leaf, np.ndarray) and (mapped is None or hasattr(mapped[1], "madvise"))


def _copied(leaf: Any, start: int, stop: int) -> np.ndarray:
    rows = np.array(leaf[start:stop])
    _advise(leaf, _DONE_WITH, start, stop)
    return rows


def _advise(leaf: Any, option: int | None, start: int, stop: int) -> None:
    """Tell the system about rows of a memory map: it keeps the pages of the file, this process need not."""
    mapped = _mapping(leaf)
    if mapped is None or option is None or not hasattr(mapped[1], "madvise"):
        return
    root, pages = mapped
    together = leaf.strides[0] == leaf[0].nbytes and leaf[0].flags.c_contiguous
    if not together and option == _WILL_NEED:
        return
    begin, end = 0, len(pages)
    if together:
        base = root.__array_interface__["data"][0] - root.offset % mmap.ALLOCATIONGRANULARITY
        first = leaf.__array_interface__["data"][0] - base
        begin = max(0, first + start * leaf.strides[0] - _AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(end, first + stop * leaf.strides[0])
    pages.madvise(option, begin, end - begin)


def _mapping(leaf: Any) -> tuple[np.memmap, mmap.mmap] | None:
    """The memory map behind an array, if writing to it writes to the file: pages of a private copy must be kept."""
    array, root = leaf, None
    while isinstance(array, np.ndarray):
        root, array = (array if isinstance(array, np.memmap) else root), array.base
    return (root, array) if root is not None and isinstance(array, mmap.mmap) and root.mode != "c" else None


class _Mapped:
    """Where the elements of a memory-mapped array are."""

    def __init__(self, leaf: np.ndarray, root: np.memmap):
        interface = leaf.__array_interface__
        self.offset = root.offset + interface["data"][0] - root.__array_interface__["data"][0]
        self.filename, self.dtype, self.shape, self.strides = str(root.filename), leaf.dtype, leaf.shape, leaf.strides

    def open(self) -> np.ndarray:
        extent = self.dtype.itemsize + sum(
            step * (num - 1) for num, step in zip(self.shape, self.strides, strict=True) if num
        )
        whole = np.memmap(self.filename, np.uint8, "r", self.offset, (extent,))
        return np.ndarray(self.shape, self.dtype, whole, 0, self.strides)


def _packed(leaf: Any) -> Any:
    mapped = _mapping(leaf)
    if mapped is None or min(leaf.strides) < 0 or mapped[0].filename is None:
        return leaf
    return _Mapped(leaf, mapped[0])


def _unpacked(leaf: Any) -> Any:
    return leaf.open() if isinstance(leaf, _Mapped) else leaf


# Columns of Arrow


def _fragments(dataset: Any) -> list[Any]:
    try:
        return list(dataset.get_fragments())
    except ValueError as error:  # its rows have no fixed places
        raise ValueError(
            "minibatches and max_memory need to know the row groups, and a dataset that is filtered or projected does "
            "not tell. Write what is wanted to files of its own, and choose columns with columns=[...]."
        ) from error


def _split(fragment: Any) -> list[Any]:
    return fragment.split_by_row_group() if hasattr(fragment, "split_by_row_group") else [fragment]


def _length(part: Any) -> int:
    """Of a row group; Arrow counts the rows of its whole file."""
    return part.row_groups[0].num_rows if hasattr(part, "row_groups") else part.count_rows()


def _column_bytes(name: str, kind: Any) -> int:
    arrow = require("pyarrow", extra="parquet")
    width = 1
    while arrow.types.is_fixed_size_list(kind):
        width, kind = width * kind.list_size, kind.value_type
    if arrow.types.is_boolean(kind):
        return width
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise TypeError(
            f"column {name!r} has type {kind}, which is not numeric. Encode categories as integers, or choose other "
            "columns with columns=[...]."
        )
    return width * kind.bit_width // 8


def _column(name: str, column: Any) -> np.ndarray:
    arrow = require("pyarrow", extra="parquet")
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} nulls. Fill them, or leave out those rows.")
    shape = [len(column)]
    while arrow.types.is_fixed_size_list(column.type):
        shape.append(column.type.list_size)
        column = column.flatten()
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(shape)

"""Rows in equal chunks, read ahead of need by a thread; minibatches of pieces of neighbouring rows."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from relbo.runtime.compiling import host_random
from relbo.targets.rows.sources import AbstractRows

_ALIGNED = 16
"""Rows: of four bytes each, they begin where XLA takes an array without a copy."""
_PIECES = 16
"""Of a minibatch: neighbours are read together, and are alike where rows are sorted."""


def chunks(source: AbstractRows, size: int) -> Iterator[PyTree[np.ndarray]]:
    """All rows of a source, `size` at a time: used where they are if that can be, or else read ahead of need."""
    found = even(source.pieces(size), size)
    return found if source.in_place else ahead(found)


def even(pieces: Iterable[PyTree[np.ndarray]], size: int) -> Iterator[PyTree[np.ndarray]]:
    """The same rows in the same order, `size` at a time; those that are left at the end are fewer."""
    waiting, num = [], 0
    for piece in pieces:
        waiting.append(piece)
        num += num_rows(piece)
        if num >= size:
            joined = _joined(waiting)
            whole = num // size * size
            yield from (_part(joined, start, start + size) for start in range(0, whole, size))
            waiting, num = ([_part(joined, whole, num)] if num > whole else []), num - whole
    if num:
        yield _joined(waiting)


def evenly(num: int, most: int) -> int:
    """The size of chunks of at most `most` rows into which so many fall evenly, or nearly."""
    if num <= most or most < _ALIGNED:
        return min(num, most)
    size = -(-num // -(-num // (most // _ALIGNED * _ALIGNED)))
    return -(-size // _ALIGNED) * _ALIGNED


def num_rows(rows: PyTree[np.ndarray]) -> int:
    return len(jax.tree.leaves(rows)[0])


def _joined(pieces: list[PyTree[np.ndarray]]) -> PyTree[np.ndarray]:
    return pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


def _part(rows: PyTree[np.ndarray], start: int, stop: int) -> PyTree[np.ndarray]:
    return jax.tree.map(lambda leaf: leaf[start:stop], rows)


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, each made by a thread while the one before is in use."""
    with ThreadPoolExecutor(1, thread_name_prefix="relbo-rows") as reader:
        waiting = reader.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = reader.submit(next, items, None)
            yield item


class Batch(NamedTuple):
    """Some rows, and by what their sum is to be multiplied for an unbiased estimate of that of all."""

    rows: PyTree[np.ndarray]
    scale: float


class Batches:
    """Minibatches of about `size` rows: some of the pieces into which the rows fall, each piece as likely.

    The last one is kept, for who climbs on the same again; and the one after it is read in the meantime.
    """

    def __init__(self, source: AbstractRows, size: int):
        self.source, self.size = source, size
        self.num_chosen = max(1, min(_PIECES, size // source.group))
        self.piece = max(1, size // self.num_chosen)
        self.num_pieces = -(-source.num_rows // self.piece)
        self.num_chosen = min(self.num_chosen, self.num_pieces)
        self._reader: ThreadPoolExecutor | None = None
        self._futures: dict[tuple, Future] = {}

    def at(self, key: Any, number: int) -> Batch:
        """The minibatch of a key and a number; the next number is what will be asked for next, as a rule."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="relbo-rows")
        before, self._futures = self._futures, {}
        name = np.asarray(jax.random.key_data(key)).tobytes()
        for wanted in ((name, number), (name, number + 1)):
            if wanted in before:
                self._futures[wanted] = before.pop(wanted)
            else:
                self._futures[wanted] = self._reader.submit(self._read, host_random(key, wanted[1]))
        for future in before.values():
            future.cancel()
        return self._futures[name, number].result()

    def _read(self, rng: np.random.Generator) -> Batch:
        chosen = np.sort(rng.choice(self.num_pieces, self.num_chosen, replace=False))
        spans = [(int(i) * self.piece, min((int(i) + 1) * self.piece, self.source.num_rows)) for i in chosen]
        return Batch(_joined([self.source.read(*span) for span in spans]), self.num_pieces / self.num_chosen)

    def __getstate__(self):
        return self.__dict__ | {"_reader": None, "_futures": {}}

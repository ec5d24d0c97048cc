r"""The one place where a model is evaluated: values and gradients at blocks of points, in whitened coordinates.

Everything else (walks, proposals, refinement, weights, measuring) is written in terms of what comes back here, so that
no other program holds model code: those programs compile once for all models of a dimension, and a new model compiles
one program, its door, for one shape, `block` points. Many points are several calls, few are padded; calls are made
without waiting for results. What concerns evaluation is decided here and nowhere else: how many points go through
at once (a block stays in the cache where there are many data, and within the memory that the user allows), minibatches,
functions on the host, the devices among which data or points are divided, and the count of evaluations by purpose.

A flow (`families/autoregressive.py`), where coordinates were learned, is applied around the door's program by two small
ones that know nothing of the model: points go forward, and gradients come back by a vector-Jacobian product.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from relbo.model.affine import log_det_of, pulled, solved, unwhiten
from relbo.model.blocks import block_of, sizes
from relbo.model.precise import Precise, Values, is_coarse, rounding_of
from relbo.model.through_flow import filled, pulled_back, way_of
from relbo.model.whitening import Whitened
from relbo.records.estimate import Estimate
from relbo.records.outcome import Stop
from relbo.runtime.compiling import are_many, compile_options, compiled, full_precision
from relbo.runtime.spreading import everywhere, here, mesh_of, split
from relbo.targets.minibatch import Anchored

_BATCHES = 2**20  # keys from this number on draw minibatches
_MOST_ASKED = 128
"""Points that are evaluated again to tell what is infinite from what is broken otherwise."""

_watch: ContextVar[Callable[[int, str], None] | None] = ContextVar("relbo_watch", default=None)
_note: ContextVar[Callable[["Rough"], None] | None] = ContextVar("relbo_note", default=None)


class BudgetSpent(Exception):
    """A budget is spent, in the middle of an iteration; `stop` is how the fit ends."""

    def __init__(self, stop: Stop):
        super().__init__(stop.sentence)
        self.stop = stop


class Rough(NamedTuple):
    """A normal law that a search has come to: the coordinates in which it is standard, and its ELBO."""

    target: Callable[[], Whitened]
    """Made only if it is wanted."""
    elbo: Estimate


@contextmanager
def watched(watch: Callable[[int, str], None], note: Callable[[Rough], None] | None = None) -> Iterator[None]:
    """Inside, `watch` is called with the number of evaluations about to be made and their purpose, and may raise.

    `note` is called with what the search for a map has found so far, each time better than before.
    """
    tokens = _watch.set(watch), _note.set(note)
    try:
        yield
    finally:
        _watch.reset(tokens[0])
        _note.reset(tokens[1])


def note(rough: Rough) -> None:
    """Tell whoever watches of a result that would do, if nothing better came."""
    listener = _note.get()
    if listener is not None:
        listener(rough)


class Seen(NamedTuple):
    """log p at points, and its gradient (zero where the target has none). +inf is as broken as NaN, and becomes NaN."""

    values: Float[Array | np.ndarray, " num"]
    slopes: Float[Array | np.ndarray, "num dim"]


class Door:
    """`door(points, "purpose")` evaluates the target at points of shape (num, dim).

    Only the first `num_used` points are looked at; of the others zeros come back. With `batch`, a key and a number, a
    target that subsamples is evaluated on a minibatch drawn with them (every block on the same).

    Where the target's data lie on several devices each of them sums over its rows, and the sums are added up: one
    all-reduce an evaluation. Over `mesh` the points are divided instead.
    """

    def __init__(self, target: Whitened, at_once: int | None = None, spent: Counter | None = None, mesh: Any = None):
        self.target, self.at_once, self.mesh = target, at_once, mesh
        self.spent: Counter = Counter() if spent is None else spent
        self._num_devices = 1 if mesh is None else mesh.size
        self.block = min(block_of(target), at_once or sizes().points) * self._num_devices
        self._host = target.target.on_host()
        self._evaluate = _program_of(target.affine, mesh)

    @property
    def num_evaluations(self) -> int:
        return sum(self.spent.values())

    @property
    def dim(self) -> int:
        return self.target.dim

    @property
    def dtype(self):
        return self.target.dtype

    def through(self, target: Whitened) -> "Door":
        """The door to the same target in other coordinates, with the same count."""
        return Door(target, self.at_once, self.spent, self.mesh)

    def for_few(self, num: int) -> "Door":
        """The same door for calls with `num` points, many of them: blocks of the next power of two, where that is less.

        One more program, against evaluations of a whole block for a draw or two in each of a thousand steps.
        """
        few = 2 ** int(np.ceil(np.log2(max(1, num))))
        return self if few >= self.block else Door(self.target, few, self.spent, self.mesh)

    def __call__(
        self, points: Any, purpose: str, num_used: int | None = None, batch: tuple[Key[Array, ""], int] | None = None
    ) -> Seen:
        num = points.shape[0]
        used = num if num_used is None else min(num_used, num)
        self._spend(purpose, used)
        if self._host is not None:
            host = self._host_for(purpose, batch if self.target.subsamples else None)
            return self._through_flow(lambda at: self._on_host(host, at, used), points)
        evaluate, block = self._evaluate, self.block
        if batch is not None and self.target.subsamples:
            key = jax.random.fold_in(batch[0], _BATCHES + batch[1])
            evaluate, block = _program_of(self.target.affine, self.mesh, key), sizes().points * self._num_devices
        blocks = (points,) if num == block else _blocks(points, block)
        seen = [self._through_flow(evaluate, part) for part in blocks[: -(-used // block)]]
        blank = Seen(np.zeros(block, self.dtype), np.zeros((block, self.dim), self.dtype))
        seen += [blank] * (len(blocks) - len(seen))  # so that any number of used points meets one program
        return seen[0] if num == block else _joined(tuple(seen), num)

    def numbers(self, points: Any, purpose: str) -> tuple[np.ndarray, np.ndarray]:
        """Values and gradients on the host, in double precision; blocks are cut on the host, too."""
        points, block = np.asarray(points, self.dtype), self.block
        if self._host is not None or not len(points):
            seen = [self(points, purpose)]
        else:
            self._spend(purpose, len(points))
            seen = []
            for part in filled(points, block).reshape(-1, block, self.dim):
                seen.append(self._through_flow(self._evaluate, part))
                self._spend(purpose, 0)  # with many data these are seconds: budgets of time hold in between, too
        values = np.concatenate([np.asarray(each.values, np.float64) for each in seen])[: len(points)]
        slopes = np.concatenate([np.asarray(each.slopes, np.float64) for each in seen])[: len(points)]
        return values, slopes

    def values(self, points: Any, purpose: str) -> Values:
        """Values alone, for those who compare them: in float64 where float32 is too coarse (`model/precise.py`)."""
        points, block = np.asarray(points, self.dtype), self.block
        if self._host is not None:
            self._spend(purpose, len(points))
            values, _ = self._values_on_host(self._host_for(purpose), self._before_flow(points), len(points))
            return self._whole(values, self._log_dets(points))
        log_p = self.numbers(points[:block], purpose)[0]
        coarse = self.dtype == np.float32 and is_coarse(log_p)
        precise = Precise(self.target, self.at_once is not None) if coarse else None
        if precise is None or not precise.is_possible(self._before_flow(filled(points[:block], block))):
            rest = [self.numbers(points[block:], purpose)[0]] if len(points) > block else []
            log_p = np.concatenate([log_p, *rest])
            return Values(log_p, rounding_of(log_p))
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for begin in range(0, len(points), block):
            part = points[begin : begin + block]
            self._spend(purpose, len(part))
            both = precise(self._before_flow(filled(part, block))), self._log_dets(filled(part, block))
            parts.append((both[0][: len(part)], both[1][: len(part)]))
        return self._whole(*map(np.concatenate, zip(*parts, strict=True)))

    def infinite(self, points: Any) -> np.ndarray:
        """At which of the first `_MOST_ASKED` of some points, whose values are no numbers, the log density is +inf."""
        some = np.asarray(points, self.dtype)[:_MOST_ASKED]
        if not len(some):
            return np.zeros(0, bool)
        self._spend("checks", len(some))
        if self._host is not None:
            z = np.asarray(unwhiten(self.target.family, self.target.params, self._before_flow(some)), np.float64)
            return np.asarray(self._host(z)[0]) == np.inf
        padded = np.concatenate([some, np.repeat(some[:1], _MOST_ASKED - len(some), axis=0)])
        return np.asarray(_log_densities(self.target, padded, self.block))[: len(some)] == np.inf

    def _spend(self, purpose: str, num: int) -> None:
        watch = _watch.get()
        if watch is not None:
            watch(num, purpose)
        self.spent[purpose] += num

    def _through_flow(self, evaluate: Callable[[Any], Seen], points: Any) -> Seen:
        """`evaluate` takes points of the affine coordinates, and knows nothing of the flow."""
        flow = self.target.flow
        if flow is None:
            return evaluate(points)
        way = way_of(flow, points)
        seen = evaluate(way.end)
        return Seen(*pulled_back(flow, way, seen.values, seen.slopes, np.ones((), self.dtype))[:2])

    def _before_flow(self, points: Any) -> Any:
        """Points in the affine coordinates."""
        return points if self.target.flow is None else way_of(self.target.flow, points).end

    def _whole(self, log_p: np.ndarray, log_dets: np.ndarray) -> Values:
        """From values in the model's own coordinates those in the door's."""
        return Values(np.where(log_p == np.inf, np.nan, log_p) + log_dets, rounding_of(log_p))

    def _log_dets(self, points: np.ndarray) -> np.ndarray:
        """Of the way from the door's coordinates to the model's own."""
        affine = np.full(len(points), self._affine_log_det())
        flow = self.target.flow
        return affine if flow is None else affine + np.asarray(way_of(flow, points).log_dets)

    def _affine_log_det(self) -> float:
        return float(log_det_of(self.target.family, self.target.params))

    def _host_for(self, purpose: str, batch: tuple[Key[Array, ""], int] | None = None) -> Any:
        """A function outside JAX; between the parts of a long evaluation budgets of time hold, too."""
        batch = None if batch is None else (batch[0], _BATCHES + batch[1])
        return self.target.target.on_host(batch, partial(self._spend, purpose, 0))

    def _on_host(self, host: Callable, points, used: int) -> Seen:
        dtype, target = self.dtype, self.target
        values, slopes = np.zeros(points.shape[0], dtype), np.zeros(points.shape, dtype)
        log_p, gradients = self._values_on_host(host, points, used)
        with np.errstate(over="ignore", invalid="ignore"):
            values[:used] = np.where(log_p == np.inf, np.nan, log_p + self._affine_log_det())
            slopes[:used] = gradients
        return Seen(jnp.asarray(values), pulled(target.family, target.params, slopes))

    def _values_on_host(self, host: Callable, points, used: int) -> tuple[np.ndarray, np.ndarray]:
        """A function outside JAX is simply called. It computes in float64."""
        z = np.asarray(unwhiten(self.target.family, self.target.params, points), np.float64)[:used]
        with np.errstate(over="ignore", invalid="ignore"):
            return host(z)


def anchored(door: Door, point: Any) -> Door:
    """The door to a subsampling target with its anchor at `point` (in the target's own coordinates)."""
    flow, whitened = door.target.flow, door.target.affine
    plain = whitened.target if whitened.anchor is None else whitened.anchor.target
    if not (plain.subsamples and plain.differentiable):
        return door
    there = Whitened(
        plain, whitened.family, eqx.tree_at(lambda p: p.loc, whitened.params, jnp.asarray(point, door.dtype))
    )
    value, slope = door.through(there).numbers(np.zeros((1, door.dim)), "anchor")
    anchor = Anchored(
        plain,
        jnp.asarray(point, door.dtype),
        jnp.asarray(value[0] - float(log_det_of(whitened.family, whitened.params)), door.dtype),
        solved(whitened.family, whitened.params, jnp.asarray(slope[0], door.dtype)),
    )
    return door.through(Whitened(anchor, whitened.family, whitened.params, flow))


# Programs are shared by all targets of one structure: data are arguments, everything else is part of the key.

_programs: dict[Any, Any] = {}


def _program_of(target: Whitened, points_over: Any = None, key: Any = None) -> Callable[[Any], Seen]:
    """The program for a target, with its arrays: a function of points. With a key it evaluates on a minibatch."""
    dynamic, static = eqx.partition(target, eqx.is_array)
    leaves, structure = jax.tree.flatten(static)
    arrays, shape = jax.tree.flatten(dynamic)  # a call with a list is quicker than with objects that hold arrays
    mesh = points_over or mesh_of(arrays)
    many = are_many(arrays)
    identity = (key is not None, structure, tuple(leaves), shape, mesh, many)
    if identity not in _programs:

        def evaluate(arrays, key, points):
            whole = eqx.combine(jax.tree.unflatten(shape, arrays), static)
            with full_precision():
                return _evaluate(whole if key is None else whole.subsample(key), points)

        _programs[identity] = jax.jit(evaluate, **compile_options(mesh=mesh, over_data=many))
    program = _programs[identity]
    if mesh is None:
        return partial(program, arrays, key)
    arrays, key = jax.tree.map(lambda leaf: everywhere(leaf, mesh), (arrays, key))
    give = everywhere if points_over is None else split
    return lambda points: here(program(arrays, key, give(points, mesh)))


def _evaluate(target: Whitened, points) -> Seen:
    if target.differentiable:
        values, slopes = jax.vmap(jax.value_and_grad(target.log_density))(points)
    else:
        values, slopes = jax.vmap(target.log_density)(points), jnp.zeros_like(points)
    return Seen(jnp.where(values == jnp.inf, jnp.nan, values), slopes)


@compiled
def _log_densities(target: Whitened, points, block: int):
    return jax.lax.map(target.log_density, points, batch_size=min(block, points.shape[0]))


@partial(jax.jit, static_argnums=1)
def _blocks(points, block: int):
    num = -(-points.shape[0] // block)
    padded = jnp.concatenate([points, jnp.broadcast_to(points[:1], (num * block - points.shape[0], points.shape[1]))])
    return tuple(padded[index * block : (index + 1) * block] for index in range(num))


@partial(jax.jit, static_argnums=1)
def _joined(seen: tuple[Seen, ...], num: int) -> Seen:
    return Seen(*(jnp.concatenate(parts)[:num] for parts in zip(*seen, strict=True)))

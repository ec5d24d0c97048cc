"""Modes of the target: the ends of L-BFGS walks from scattered points, and members of a family there."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from relbo.ascent import lbfgs_paths
from relbo.ascent.curvature import laplace_factors
from relbo.ascent.lbfgs import MANY
from relbo.budgets import FEW, budget
from relbo.families import DENSE_LIMIT, AbstractFamily
from relbo.mixture import locations_of
from relbo.model.door import Door, Seen
from relbo.model.through_flow import back_through
from relbo.runtime.compiling import compiled, host_random

WALK_STEPS = 100  # a walk that has not arrived by then is lost in a plain
_SEARCHES = 4
"""Times so many walks, of a search that has this one chance."""
_SAME_END = 0.5
"""Standard deviations (in every coordinate) within which two ends of walks are one mode."""


def find_modes(
    key: Key[Array, ""], door: Door, family: AbstractFamily, num: int, known: PyTree | None = None
) -> PyTree:
    """`num` members of the family at the ends of L-BFGS runs from scattered points, with the curvature there.

    What an earlier search has found (`known`) competes: a mode that few walks lead to is not forgotten again.

    Half of the points lie in the model's own coordinates, around the example at widths from 0.3 to 30, the others in
    whitened ones, around the origin at widths from 1 to 300: what is far away is sought on the scale of the model and
    on that of the mode already found.
    """
    target = door.target
    points = _scattered_starts(key, door, num)
    if not target.differentiable:
        own = _is_own(num)
        whitened = np.where(own[:, None], to_whitened(door, points + _example(target)), points)
        return placed_members(family, whitened, np.ones_like(whitened))
    ends = _walked(door, points)
    if door.dim <= DENSE_LIMIT:
        before = ends[:0] if known is None else np.asarray(locations_of(family, known))
        ends = _different(door, np.concatenate([before, ends]), num)
        if len(ends) > 1:  # few walks will do where they agree
            ends = _different(door, np.concatenate([ends, _many_ends(jax.random.fold_in(key, 1), door)]), num)
    return laplace_members(door, family, ends, num)


def search_modes(key: Key[Array, ""], door: Door, family: AbstractFamily) -> list[PyTree]:
    """As `find_modes`, by many more walks: the members, in stacks of as many as that gives."""
    ends = _many_ends(key, door)
    if door.dim <= DENSE_LIMIT:
        ends = _different(door, ends, _many_walks(door))
        for more in range(1, _SEARCHES):
            if len(ends) == 1:
                break
            again = _many_ends(jax.random.fold_in(key, more), door)
            ends = _different(door, np.concatenate([ends, again]), _many_walks(door))
    num = FEW.num_walks
    return [laplace_members(door, family, ends[begin : begin + num], num) for begin in range(0, len(ends), num)]


def _is_own(num: int) -> np.ndarray:
    """Which walks go in the model's own coordinates."""
    return np.arange(num) % 2 == 0


def _many_ends(key, door: Door) -> np.ndarray:
    return _walked(door, _scattered_starts(key, door, _many_walks(door)))


def _many_walks(door: Door) -> int:
    return MANY * budget(door.dim).num_walks


def laplace_members(door: Door, family: AbstractFamily, ends: np.ndarray, num: int) -> PyTree:
    """`num` members at ends of walks, which take turns where they are fewer, by the curvature of the target there."""
    if door.dim > DENSE_LIMIT:
        factors = 0.5 * np.ones_like(ends)
    else:
        factors = laplace_factors(lambda at: door.numbers(at, "curvature")[1], ends.astype(np.float64))
        factors = np.where(np.isfinite(factors).all((1, 2), keepdims=True), factors, 0.1 * np.eye(door.dim))
    turns = np.resize(np.arange(len(ends)), num)
    return placed_members(family, ends[turns], factors[turns].astype(ends.dtype))


def disagree(family: AbstractFamily, modes: PyTree) -> bool:
    """Whether members found at modes lie in different places, by the standard deviations of the first."""
    if modes is None:
        return False
    locations = np.asarray(locations_of(family, modes))
    return bool(np.max(np.linalg.norm(locations - locations[0], axis=1)) > _SAME_END * np.sqrt(locations.shape[1]))


def _scattered_starts(key, door: Door, num: int) -> np.ndarray:
    return scattered(key, np.zeros((num, door.dim)), np.where(_is_own(num), -0.5, 0.5), door.dtype)


def _walked(door: Door, points: np.ndarray) -> np.ndarray:
    """The ends of walks from `points`, in whitened coordinates.

    Some walk in the model's own, around its example: a far mode need not look round in the coordinates of another. All
    of them ask the door together. A flow, which knows nothing of what is far away, bends no walk.
    """
    if door.target.flow is not None:
        ends = _walked(door.through(door.target.affine), points)
        return back_through(door.target.flow, ends, door.block)[0]
    target, example = door.target, _example(door.target)

    def evaluate(at, num_used):
        own = _is_own(len(at))
        seen = door(_asked(target.family, target.params, example, own, at), "walks", num_used)
        return Seen(seen.values, _answered(target.family, target.params, own, seen.slopes))

    ends = lbfgs_paths(evaluate, points, WALK_STEPS, 1)[:, -1]
    return np.asarray(_asked(target.family, target.params, example, _is_own(len(ends)), ends))


@compiled
def _asked(family, params, example, own, points):
    """Points in whitened coordinates: of `own` they are offsets from the example."""
    whitened = jax.vmap(lambda offset: family.scale.solve(params.scale, example + offset - params.loc))(points)
    return jnp.where(own[:, None], whitened, points)


@compiled
def _answered(family, params, own, slopes):
    """Gradients by the coordinates in which each walk goes, from those by whitened ones."""
    _, pull = jax.vjp(lambda offset: family.scale.solve(params.scale, offset), jnp.zeros_like(slopes[0]))
    return jnp.where(own[:, None], jax.vmap(lambda slope: pull(slope)[0])(slopes), slopes)


def scattered(key, centers: np.ndarray, log_widths: np.ndarray, dtype) -> np.ndarray:
    """Points around `centers`, at widths of up to two orders of magnitude from `10**log_widths` on."""
    num, dim = centers.shape
    noise = host_random(key).standard_normal((num, dim))
    powers = log_widths + 2 * (np.arange(num) * 0.618034 % 1)  # evenly over the widths, in no order
    return (centers + 10 ** powers[:, None] * noise).astype(dtype)


def _example(target) -> np.ndarray:
    return np.asarray(target.target.initial)[0]


def _different(door: Door, ends: np.ndarray, most: int) -> np.ndarray:
    """The highest ends that differ from each other, at the most `most`."""
    values = door.numbers(ends, "walks")[0]
    chosen: list[int] = []
    places = ends.astype(np.float64)
    ranked = np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")
    for end in ranked:
        distances = (np.linalg.norm(places[end] - places[other]) for other in chosen)
        apart = all(distance > _SAME_END * np.sqrt(ends.shape[1]) for distance in distances)
        may_be = apart and np.isfinite(values[end]) and len(chosen) < most
        if not chosen or (may_be and not _is_on_the_way(door, places, values, chosen, int(end))):
            chosen.append(int(end))
    return ends[chosen]


def _is_on_the_way(door: Door, places: np.ndarray, heights: np.ndarray, modes: list[int], end: int) -> bool:
    """Whether an end lies on the slope of a mode: a walk in badly scaled coordinates may have given up there.

    Half-way to the mode the target then is above the mean of both; between two modes there is a valley.
    """
    middles = door.numbers(0.5 * (places[modes] + places[end]), "walks")[0]
    return bool(np.any(middles > 0.5 * (heights[modes] + heights[end])))


def to_whitened(door: Door, points) -> np.ndarray:
    target = door.target
    solved = np.asarray(_solved(target.family, target.params, points))
    return solved if target.flow is None else back_through(target.flow, solved, door.block)[0]


@partial(compiled, runs_once=True)
def _solved(family, params, points):
    return jax.vmap(lambda z: family.scale.solve(params.scale, z - params.loc))(points)


@partial(compiled, runs_once=True)
def placed_members(family, points, factors):
    return jax.vmap(family.init)(points, factors)

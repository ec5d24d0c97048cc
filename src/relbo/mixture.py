r"""A mixture $q = \sum_k w_k s_k$ at fixed capacity: stacked components and log weights, $-\infty$ for an empty slot.

Shapes never grow with the number of components, so nothing recompiles until the capacity doubles. Components fill the
first slots, so that work on slots ends with the last component.
"""

from functools import lru_cache, partial
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from relbo.families import AbstractFamily
from relbo.runtime.compiling import compiled, host_random

Numbers = Array | np.ndarray
"""On the device, or still on the host: a program takes both."""
CHUNK = 1024
"""How many points are evaluated at once where a whole sample goes through: memory stays bounded."""

_CHUNK_NUMBERS = 2**22  # 16 MB in float32
_ROUND, _ROUND_NUMBERS = 64, 2**14  # draws of a slot, and their numbers, made by one call
_PART = 2**14  # independent draws at a time: as many are made of every slot of a group as of its heaviest
_GROUP = 8  # slots at a time, where programs are not to depend on how many there are
_LOWEST = -1e30  # stands for the log density of an empty mixture where a maximum is subtracted


class Densities(NamedTuple):
    """Of a mixture at points."""

    log_q: Float[Array, " num"]
    slope: Float[Array, "num dim"]
    """The gradient of log q; zero where there are no components."""


class Mixture(eqx.Module):
    """`params` has a leading axis of length `capacity`; a slot of log weight -inf is empty and changes nothing."""

    family: AbstractFamily
    params: PyTree
    log_weights: Float[Numbers, " capacity"]

    @property
    def capacity(self) -> int:
        return self.log_weights.shape[0]

    @property
    def dim(self) -> int:
        return locations_like(self.family, self.params).shape[1]

    @property
    def dtype(self):
        return self.log_weights.dtype

    @property
    def active(self) -> Bool[Numbers, " capacity"]:
        return self.log_weights > -jnp.inf

    @property
    def num_components(self) -> Int[Array, ""]:
        return jnp.sum(self.active)

    def component_log_probs(self, point: Float[Array, " dim"]) -> Float[Array, " capacity"]:
        return self.family.log_probs(self.params, point[None])[0]

    def log_prob(self, point: Float[Array, " dim"]) -> Float[Array, ""]:
        return logsumexp(self.component_log_probs(point) + self.log_weights)

    def at(self, points: Float[Array, "num dim"]) -> Densities:
        r"""$\log q$ and its gradient $\sum_k r_k \nabla \log s_k$ at many points, $r_k$ the responsibilities."""
        log_each, pull = jax.vjp(lambda at: self.family.log_probs(self.params, at), points)
        joint = jnp.where(self.active, log_each + self.log_weights, -jnp.inf)
        top = jnp.maximum(jnp.max(joint, axis=1), _LOWEST)
        share = jnp.exp(joint - top[:, None])
        total = share.sum(axis=1)
        (slope,) = pull(share / jnp.where(total > 0, total, 1.0)[:, None])
        return Densities(top + jnp.log(total), slope)

    def sample(self, key: Key[Array, ""], num_draws: int) -> Float[Array, "num_draws dim"]:
        """Independent draws."""
        slot_key, draw_key = jax.random.split(key)
        slots = jax.random.categorical(slot_key, self.log_weights, shape=(num_draws,))

        def draw(slot_and_key):
            slot, one_key = slot_and_key
            return self.family.sample(one_key, self.component(slot), 1)[0]

        size = sum(leaf[0].size for leaf in jax.tree.leaves(self.params))  # each draw gathers its component
        chunk = max(1, min(CHUNK, _CHUNK_NUMBERS // size))
        return map_chunks(draw, (slots, jax.random.split(draw_key, num_draws)), chunk)

    def sample_stratified(self, key: Key[Array, ""], num_draws: int) -> Float[Array, "capacity num_draws dim"]:
        """The same number of draws from every slot; empty slots draw too, and count with weight zero.

        A draw depends on the key, its slot and the parameters there alone: the same key gives common random numbers
        for two mixtures of the same capacity.
        """
        keys = jax.random.split(key, self.capacity)
        return jax.vmap(lambda k, p: self.family.sample(k, p, num_draws))(keys, self.params)

    def component(self, slot) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[slot], self.params)

    def place(self, slot, params: PyTree, log_weight) -> Self:
        """The mixture with `params` in `slot`; the other weights are left alone."""
        stacked = jax.tree.map(lambda leaf, new: leaf.at[slot].set(new), self.params, params)
        return type(self)(self.family, stacked, jnp.asarray(self.log_weights).at[slot].set(log_weight))

    def reweight(self, log_weights: Float[Numbers, " capacity"]) -> Self:
        return type(self)(self.family, self.params, log_weights)

    def grow(self, capacity: int) -> Self:
        """The same mixture with more slots."""
        extra = capacity - self.capacity
        blank = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], extra, axis=0), self.params)
        params = jax.tree.map(lambda leaf, more: jnp.concatenate([leaf, more]), self.params, blank)
        weights = jnp.concatenate([self.log_weights, jnp.full(extra, -jnp.inf, self.dtype)])
        return type(self)(self.family, params, weights)


# On the host: what is done once an iteration, between compiled programs. Arrays that go in and out are NumPy's.


def weights_of(mixture: Mixture) -> np.ndarray:
    """The weight of every slot, in double precision."""
    weights = np.exp(np.asarray(mixture.log_weights, np.float64))
    return weights / weights.sum() if weights.sum() > 0 else weights


def num_active(mixture: Mixture) -> int:
    return int((np.asarray(mixture.log_weights) > -np.inf).sum())


def stack(members: PyTree, capacity: int) -> PyTree:
    """Members of a family in the first of `capacity` slots; the others repeat the first."""
    return jax.tree.map(lambda leaf: _padded(np.asarray(leaf), capacity), members)


def _padded(leaf: np.ndarray, num: int) -> np.ndarray:
    return np.concatenate([leaf, np.repeat(leaf[:1], num - len(leaf), axis=0)])


def joined(*stacks: PyTree) -> PyTree:
    """Stacks of members, one behind the other."""
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *stacks)


def with_weights(mixture: Mixture, weights: np.ndarray) -> Mixture:
    """The mixture with these weights, components moved to the first slots; a weight of zero empties its slot."""
    order = np.argsort(~(weights > 0), kind="stable")
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights[order] / weights.sum()).astype(mixture.dtype)
    params = mixture.params
    if np.any(order != np.arange(len(order))):
        params = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[order]), params)
    return Mixture(mixture.family, params, jax.device_put(log_weights))


def cropped(mixture: Mixture, num_slots: int) -> Mixture:
    """The mixture without its last slots, which are empty."""
    if num_slots == mixture.capacity:
        return mixture
    params, log_weights = jax.tree.map(lambda leaf: np.asarray(leaf)[:num_slots], (mixture.params, mixture.log_weights))
    return Mixture(mixture.family, params, log_weights)


def uncropped(mixture: Mixture, whole: Mixture) -> Mixture:
    """The mixture with as many slots as `whole`, and in the others what that has there."""
    if mixture.capacity == whole.capacity:
        return mixture
    params, log_weights = jax.tree.map(
        lambda leaf, other: np.concatenate([np.asarray(leaf), np.asarray(other)[len(leaf) :]]),
        (mixture.params, mixture.log_weights),
        (whole.params, whole.log_weights),
    )
    return Mixture(mixture.family, params, log_weights)


def put(mixture: Mixture, slots: np.ndarray, members: PyTree) -> Mixture:
    """The mixture with members in some slots, their weights left alone."""

    def replaced(leaf, new):
        changed = np.array(leaf)
        changed[slots] = np.asarray(new)
        return jax.device_put(changed)

    return Mixture(mixture.family, jax.tree.map(replaced, mixture.params, members), mixture.log_weights)


def draw_each(
    key: Key[Array, ""], mixture: Mixture, num_draws: int, num_slots: int | None = None, begin: int = 0
) -> np.ndarray:
    """`num_draws` of each of the first slots (by default those with components), from number `begin` on, (slots, num,
    dim): a few at a time, of a few slots, so that every number meets the same program.

    The same key gives common random numbers for two mixtures.
    """
    num_slots = num_active(mixture) if num_slots is None else num_slots
    each = int(np.clip(_ROUND_NUMBERS // mixture.dim, 4, _ROUND))
    first = begin // each
    groups = []
    for group, params in enumerate(_groups(mixture.params, num_slots)):
        numbers = range(first, -(-num_draws // each))
        rounds = [np.asarray(_draw_group(key, group, number, mixture.family, params, each)) for number in numbers]
        groups.append(np.concatenate(rounds, axis=1)[:, begin - first * each : num_draws - first * each])
    return np.concatenate(groups)[:num_slots]


def draw_from(key: Key[Array, ""], mixture: Mixture, num_draws: int) -> np.ndarray:
    """Independent draws of the mixture, (num, dim); many in parts, so that memory stays bounded."""
    parts = [
        _draw_part(jax.random.fold_in(key, begin), mixture, min(_PART, num_draws - begin))
        for begin in range(0, num_draws, _PART)
    ]
    return np.concatenate(parts)


def _draw_part(key, mixture: Mixture, num_draws: int) -> np.ndarray:
    slots = host_random(key).choice(mixture.capacity, num_draws, p=weights_of(mixture))
    counts = np.bincount(slots, minlength=mixture.capacity)
    ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]  # slots of like weights are drawn together
    draws = np.empty((num_draws, mixture.dim), mixture.dtype)
    for begin in range(0, len(ranked), _GROUP):
        some = ranked[begin : begin + _GROUP]
        params = jax.tree.map(lambda leaf, at=some: np.asarray(leaf)[at], mixture.params)
        group = Mixture(mixture.family, params, np.zeros(len(some), mixture.dtype))
        each = draw_each(jax.random.fold_in(key, begin), group, int(counts[some[0]]), len(some))
        for slot, own in zip(some, each, strict=True):
            draws[slots == slot] = own[: counts[slot]]
    return draws


def log_densities(family: AbstractFamily, params: PyTree, points, num_slots: int | None = None) -> np.ndarray:
    """The log density of every one of a stack of members (of the first, if so many are asked for) at every point,
    (num, stack), in double precision.

    A fixed number of points and of members at a time, so that every number of them meets the same program.
    """
    points = np.asarray(points)
    num, dim = points.shape
    num_slots = jax.tree.leaves(params)[0].shape[0] if num_slots is None else num_slots
    chunk = int(np.clip(2 ** int(np.log2(max(1, _CHUNK_NUMBERS // (_GROUP * dim)))), 16, CHUNK // 2))
    padded = np.concatenate([points, np.zeros((-num % chunk, dim), points.dtype)])
    parts = [
        [_log_probs(family, group, padded[begin : begin + chunk]) for begin in range(0, num, chunk)]
        for group in _groups(params, num_slots)
    ]
    columns = [np.concatenate([np.asarray(part, np.float64) for part in group])[:num] for group in parts]
    return np.concatenate(columns, axis=1)[:, :num_slots] if num else np.zeros((0, num_slots))


def _groups(params: PyTree, num_slots: int) -> list[PyTree]:
    """The first slots of a stack of members, `_GROUP` at a time; the last group is filled up with its first."""
    leaves = jax.tree.map(np.asarray, params)
    return [
        stack(jax.tree.map(lambda leaf, at=begin: leaf[at : min(at + _GROUP, num_slots)], leaves), _GROUP)
        for begin in range(0, num_slots, _GROUP)
    ]


def log_mixture(log_each: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log q at points from the log densities of the slots there, (..., capacity); -inf where q is zero."""
    used = weights > 0
    if not used.any():
        return np.full(log_each.shape[:-1], -np.inf)
    joint = log_each[..., used] + np.log(weights[used])
    top = joint.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.exp(joint - safe[..., None]).sum(axis=-1))


@partial(compiled, runs_once=True)
def locations_of(family: AbstractFamily, params: PyTree) -> Float[Array, "stack dim"]:
    return jax.vmap(family.location)(params)


def locations_like(family: AbstractFamily, params: PyTree) -> jax.ShapeDtypeStruct:
    """Shape and dtype of `locations_of`, which cost a trace once and are asked for thousands of times."""
    leaves, structure = jax.tree.flatten((family, params))
    return _traced_locations(structure, *[(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves])


@lru_cache(maxsize=256)
def _traced_locations(structure, *shapes):
    family, params = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])
    return jax.eval_shape(lambda family, params: jax.vmap(family.location)(params), family, params)


def _draw_group(key, group: int, number: int, family: AbstractFamily, params: PyTree, num_draws: int):
    loc = locations_like(family, params)
    noise = family.noise_on_host(host_random(key, group, number), (_GROUP, num_draws, loc.shape[1]), loc.dtype)
    if noise is not None:
        return _transport(family, params, noise)
    return _draw_each(jax.random.fold_in(jax.random.fold_in(key, group), number), family, params, num_draws)


@compiled
def _transport(family, params, noise):
    return jax.vmap(lambda member, each: jax.vmap(lambda e: family.transport(member, e))(each))(params, noise)


@partial(compiled, runs_often=True)
def _draw_each(key, family, params, num_draws):
    mixture = Mixture(family, params, jnp.zeros(jax.tree.leaves(params)[0].shape[0]))
    return mixture.sample_stratified(key, num_draws)


@compiled
def _log_probs(family, params, points):
    return family.log_probs(params, points)


@partial(compiled, runs_once=True)
def nothing(family: AbstractFamily, dim: int, capacity: int, dtype) -> Mixture:
    """`empty_mixture`, made by one program."""
    return empty_mixture(family, dim, capacity, dtype)


def map_chunks(function, xs: PyTree, chunk: int = CHUNK) -> PyTree:
    """`vmap(function)(xs)`, `chunk` elements at a time, so that memory stays bounded."""
    num = jax.tree.leaves(xs)[0].shape[0]
    if min(chunk, num) == 1:
        return jax.lax.map(function, xs)  # without a batch axis, so that a `cond` inside takes one branch
    return jax.lax.map(function, xs, batch_size=min(chunk, num))


def empty_mixture(family: AbstractFamily, dim: int, capacity: int, dtype) -> Mixture:
    """A mixture without components; its slots hold standard members of the family."""
    member = family.init(jnp.zeros(dim, dtype), jnp.ones(dim, dtype))
    params = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], capacity, axis=0), member)
    return Mixture(family, params, jnp.full(capacity, -jnp.inf, dtype))

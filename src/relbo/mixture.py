r"""A mixture $q = \sum_k w_k s_k$ at fixed capacity: stacked components and log weights, $-\infty$ for an empty slot.

Shapes never grow with the number of components, so nothing recompiles until the capacity doubles.
"""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from relbo.families import AbstractFamily

CHUNK = 1024
"""How many points are evaluated at once where a whole sample goes through: memory stays bounded."""

_CHUNK_NUMBERS = 2**22


class Mixture(eqx.Module):
    """`params` has a leading axis of length `capacity`; a slot of log weight -inf is empty and changes nothing."""

    family: AbstractFamily
    params: PyTree
    log_weights: Float[Array, " capacity"]

    @property
    def capacity(self) -> int:
        return self.log_weights.shape[0]

    @property
    def dim(self) -> int:
        return jax.eval_shape(jax.vmap(self.family.location), self.params).shape[1]

    @property
    def dtype(self):
        return self.log_weights.dtype

    @property
    def active(self) -> Bool[Array, " capacity"]:
        return self.log_weights > -jnp.inf

    @property
    def num_components(self) -> Int[Array, ""]:
        return jnp.sum(self.active)

    def component_log_probs(self, point: Float[Array, " dim"]) -> Float[Array, " capacity"]:
        return jax.vmap(self.family.log_prob, (0, None))(self.params, point)

    def log_prob(self, point: Float[Array, " dim"]) -> Float[Array, ""]:
        return logsumexp(self.component_log_probs(point) + self.log_weights)

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
        return type(self)(self.family, stacked, self.log_weights.at[slot].set(log_weight))

    def reweight(self, log_weights: Float[Array, " capacity"]) -> Self:
        return type(self)(self.family, self.params, log_weights)

    def grow(self, capacity: int) -> Self:
        """The same mixture with more slots."""
        extra = capacity - self.capacity
        blank = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], extra, axis=0), self.params)
        params = jax.tree.map(lambda leaf, more: jnp.concatenate([leaf, more]), self.params, blank)
        weights = jnp.concatenate([self.log_weights, jnp.full(extra, -jnp.inf, self.dtype)])
        return type(self)(self.family, params, weights)


def map_chunks(function, xs: PyTree, chunk: int = CHUNK, used: Bool[Array, " num"] | None = None) -> PyTree:
    """`vmap(function)(xs)`, `chunk` elements at a time, so that memory stays bounded.

    A chunk of which nothing is `used` is skipped, and its results are zeros: empty slots cost no time.

    Use it at most once among things that do not depend on each other: XLA runs independent loops of one program side
    by side, each blocks a worker thread while it waits for its body, and on a machine of two cores they wait forever.
    """
    num = jax.tree.leaves(xs)[0].shape[0]
    chunk = min(chunk, num)
    if chunk == 1 and used is None:
        return jax.lax.map(function, xs)  # without a batch axis, so that a `cond` inside takes one branch
    if used is None or num % chunk:
        return jax.lax.map(function, xs, batch_size=chunk)

    def skip(part):
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(jax.vmap(function), part))

    def one(part_and_used):
        part, any_used = part_and_used
        return jax.lax.cond(any_used, jax.vmap(function), skip, part)

    parts = jax.tree.map(lambda leaf: leaf.reshape(num // chunk, chunk, *leaf.shape[1:]), xs)
    found = jax.lax.map(one, (parts, used.reshape(-1, chunk).any(axis=1)))
    return jax.tree.map(lambda leaf: leaf.reshape(num, *leaf.shape[2:]), found)


def after(known: Float[Array, " num"], points: Float[Array, "..."]) -> Float[Array, "..."]:
    """`points`, as they are, but not before `known` is known: so that two chunked loops run one after the other.

    The compiler cannot tell that an index is never negative, and keeps the dependence.
    """
    return jnp.where(jnp.argmax(known) < 0, jnp.nan, points)


def empty_mixture(family: AbstractFamily, dim: int, capacity: int, dtype) -> Mixture:
    """A mixture without components; its slots hold standard members of the family."""
    one = family.init(jnp.zeros(dim, dtype), jnp.ones(dim, dtype))
    params = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], capacity, axis=0), one)
    return Mixture(family, params, jnp.full(capacity, -jnp.inf, dtype))

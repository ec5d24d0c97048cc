r"""A target that is never evaluated at more than a given number of points at once, whoever asks.

Ascents, scores of starts and Hessians are written for one point and vmapped, once or twice over. With a million rows of
data each point costs megabytes of temporaries, and a thousand points side by side cost gigabytes. Here the batching
rule of the log density itself sees to it: nested vmaps are flattened to one axis, and that axis is evaluated in chunks.
A gradient, and a product with the Hessian, is taken point by point inside a chunk, so that nothing of the size
points x data is kept for a backward pass.

Up to the given number of points this is a plain vmap. Beyond, it is a loop, and the note in `mixture.map_chunks` holds:
what does not depend on each other must not be evaluated in one program by two of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Key, PyTree

from relbo.targets.base import AbstractTarget, AbstractWrapper

PLENTY = 1024
"""So many points at once need no limit: no part of a fit with default settings asks for many more."""


class Limited(AbstractWrapper):
    """The target, evaluated at `limit` points at once at most. Minibatches are small, and are not limited."""

    target: AbstractTarget
    limit: int = eqx.field(static=True)

    def __init__(self, target: AbstractTarget, limit: int):
        self.target, self.limit = target, limit

    @property
    def points_at_once(self) -> int:
        return self.limit

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return _value(self, z)

    @property
    def subsamples(self) -> bool:
        return self.target.subsamples

    def draw_batch(self, key: Key[Array, ""]) -> PyTree:
        return self.target.draw_batch(key)

    def log_density_on(self, z: Float[Array, " dim"], batch: PyTree) -> Float[Array, ""]:
        return self.target.log_density_on(z, batch)


def limited(target: AbstractTarget, limit: int | None) -> AbstractTarget:
    """`target` under a limit, in place of any that it had; as it is where the limit is None or plenty."""
    if isinstance(target, Limited):
        target = target.target
    return target if limit is None or limit >= PLENTY else Limited(target, limit)


def limit_of(target: AbstractTarget) -> int | None:
    """The limit that a target, or one that it wraps, is under; None if there is none."""
    while isinstance(target, AbstractWrapper):
        if isinstance(target, Limited):
            return target.limit
        target = target.target
    return None


def _in_chunks(function):
    """`function(target, *point)` as a function of stacked points, in chunks, all vmaps around it flattened."""

    @custom_vmap
    def at_points(limited: Limited, points: tuple[Array, ...]):
        def at(point):
            return function(limited.target, *point)

        if points[0].shape[0] <= limited.limit:
            return jax.vmap(at)(points)
        return jax.lax.map(at, points, batch_size=limited.limit)

    @at_points.def_vmap
    def _flatten(size, is_batched, limited, points):
        # The target is never mapped over, but a vmapped `cond` makes copies of whatever its branches use.
        limited = jax.tree.map(lambda leaf, batched: leaf[0] if batched else leaf, limited, is_batched[0])
        if not any(is_batched[1]):
            return (found := at_points(limited, points)), jax.tree.map(lambda _: False, found)
        stacked = [
            part if batched else jnp.broadcast_to(part, (size, *part.shape))
            for part, batched in zip(points, is_batched[1], strict=True)
        ]
        found = at_points(limited, tuple(part.reshape(-1, part.shape[-1]) for part in stacked))
        found = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), found)
        return found, jax.tree.map(lambda _: True, found)

    def at_point(limited: Limited, *point: Array):
        return jax.tree.map(lambda leaf: leaf[0], at_points(limited, tuple(part[None] for part in point)))

    return at_point


_plain_value = _in_chunks(lambda target, z: target.log_density(z))
_plain_slope = _in_chunks(lambda target, z: jax.value_and_grad(target.log_density)(z))
_curve = _in_chunks(lambda target, z, along: jax.jvp(jax.grad(target.log_density), (z,), (along,))[1])


@jax.custom_vjp
def _value(limited: Limited, z):
    return _plain_value(limited, z)


@jax.custom_jvp
def _value_and_slope(limited: Limited, z):
    return _plain_slope(limited, z)


@_value_and_slope.defjvp
def _curvature_along(primals, tangents):
    (limited, z), (_, along) = primals, tangents
    value, slope = _value_and_slope(limited, z)
    return (value, slope), (slope @ along, _curve(limited, z, along))


_value.defvjp(_value_and_slope, lambda slope, cotangent: (None, cotangent * slope))

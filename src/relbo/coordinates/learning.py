r"""Learning coordinates: a flow $T$ is trained so that the target, seen through it, looks like a standard normal.

For any diffeomorphism, $\mathrm{KL}(T_\# q \,\|\, p) = \mathrm{KL}(q \,\|\, T^{-1}_\# p)$: the map alone is plain
variational inference with a flow, and boosting goes on in its coordinates, exactly. The gradient is that of sticking
the landing: with $q$ the transported normal and $z = T(u)$, the residual slope $\nabla\log p(z) - \nabla\log q(z)$ is
pulled back through $T$ alone, so that it vanishes, and its noise with it, where $q = p$. A step is one call of the door
and one compiled program, the same for all models of a dimension.

The rate falls along a cosine. A target that is nearly normal gets a short round of steps, all others a long one, and
another if much is left then. Rounds are judged on the same fresh draws; one that gains nothing is given
up.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from relbo.ascent.gradient import solid
from relbo.families import DENSE_LIMIT, AbstractFamily
from relbo.families.autoregressive import MOST_UNITS, NUM_LAYERS, Flow, identity_flow
from relbo.mixture import Mixture, draw_each, locations_of, log_densities, num_active
from relbo.model.door import Door, Seen
from relbo.model.through_flow import back_through, pulled_back, way_of
from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.runtime.compiling import compiled, host_random

_FEW_STEPS, _MANY_STEPS = 400, 1500
_LEFT, _LITTLE, _MUCH = 0.02, 0.1, 0.3
"""Nats left to gain, half the variance of log p - log q. From the first on a flow is tried; below the second a few
steps will do; from the third on a component is bent, and not one hill of several that each look normal: after a round
that leaves so much another one follows."""
_RATE, _RATE_DIM = 2e-2, 8
"""Of the first round; that of the second is half of it. Beyond so many dimensions it falls as the square root of their
number, because the noise of all their parts is added to every coordinate."""
_JUDGED = 2048
_LONGEST = 10.0
"""Of a gradient, beyond which it is cut: one draw far out must not undo what many have learned."""
_KEPT, _TINY = (0.9, 0.99), 1e-8
"""Of Adam. A short memory of squares: the first gradients are far larger than the last ones."""
_COVERED = 5.0
"""Nats by which a flow may fall short of the target somewhere."""
_SHARE = 0.02
"""Of the mass, that a flow may lack somewhere: boosting in its coordinates would have to find it again."""
_COMPARED = 32


class Learned(NamedTuple):
    """A flow, and log p - log q at the judging draws of the normal that it transports."""

    flow: Flow
    ratios: np.ndarray
    """Means over pairs of draws, one the mirror image of the other."""
    left: float
    """Half the variance of single ones: about what is left to gain."""
    rounding: float
    """Of log p there, in nats."""

    @property
    def elbo(self) -> Estimate:
        return _mean(self.ratios)


def can_learn(door: Door) -> bool:
    """A flow needs gradients, and something to bend."""
    return bool(door.target.differentiable) and door.dim >= 2


def worth_learning(records: list[Record], ended: bool) -> bool:
    """Whether learned coordinates are worth a try: once, at the first component, or where boosting has left much over.

    A fit that is near its target never pays for a flow.
    """
    if any(record.kind == "flow" for record in records):
        return False
    spread = next(record.spread for record in reversed(records) if record.accepted)
    return is_bent(spread) if ended else len(records) == 1 and 0.5 * spread**2 > _LEFT


def is_bent(spread: float) -> bool:
    """Whether a component is far from its own hill: what looks like a mode beside it may be a part of that."""
    return 0.5 * spread**2 > _MUCH


def learn_flow(key: Key[Array, ""], door: Door) -> Learned:
    """The best flow that one or two rounds find; where none gains, the identity. The `door` is that of affine
    coordinates."""
    rng = host_random(key)
    noise = _antithetic(rng, _JUDGED, door)
    best = _judged(door, _new_flow(door.dim, door.dtype), noise)
    num_steps = _FEW_STEPS if best.left < _LITTLE else _MANY_STEPS
    rate = _RATE * min(1.0, math.sqrt(_RATE_DIM / door.dim))
    for index in range(2):
        found = _judged(door, _round(key, rng, door, best.flow, num_steps, rate / 2**index, index), noise)
        gained = _mean(found.ratios - best.ratios).value > found.rounding
        best = found if gained else best
        if not gained or best.left < _MUCH:
            break
    return best


def covers(key: Key[Array, ""], door: Door, learned: Learned, mixture: Mixture, modes: PyTree | None) -> bool:
    """Whether the transported normal has mass wherever a mixture, or a member at a mode, found some (in the coordinates
    before the flow): a flow that fell into one of several modes has not."""
    found = [(mixture.params, num_active(mixture))]
    if modes is not None:
        found.append((modes, len(locations_of(mixture.family, modes))))
    return all(_most_lacking(key, door, learned, mixture.family, *members) < _SHARE for members in found)


def _most_lacking(key, door: Door, learned: Learned, family: AbstractFamily, members: PyTree, num: int) -> float:
    """The largest share of the target's mass that one of the first `num` members sees where the flow has next to none:
    by importance sampling, as the curvature at a neck of the target says nothing of the mass there."""
    alone = Mixture(family, members, np.zeros(len(jax.tree.leaves(members)[0]), door.dtype))
    points = draw_each(key, alone, _COMPARED, num).reshape(num * _COMPARED, -1)
    own = log_densities(family, members, points, num).reshape(num, _COMPARED, num)
    own = np.diagonal(own, axis1=0, axis2=2).T
    log_p = (door.numbers(points, "flow")[0] - learned.elbo.value).reshape(num, _COMPARED)
    u, log_dets = back_through(learned.flow, points, door.block)
    log_q = (_log_normal(u) - log_dets).reshape(num, _COMPARED)
    with np.errstate(invalid="ignore", over="ignore"):
        shares = np.where(log_p - log_q > _COVERED, np.exp(log_p - own), 0.0)
    return float(np.max(np.mean(shares, axis=1)))


def _round(key, rng, door: Door, flow: Flow, num_steps: int, rate: float, index: int) -> Flow:
    num_draws = door.block  # the door evaluates a whole block for the price of one
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(flow)])
    memory = _Memory(np.zeros_like(numbers), np.zeros_like(numbers), np.zeros((), numbers.dtype))
    level = np.zeros((), door.dtype)  # by the residual alone: at the landing the determinant has no part in it
    for step in range(num_steps):
        way = way_of(flow, _antithetic(rng, num_draws, door))
        seen = door(way.end, "flow", batch=(key, (index << 16) + step))
        *_, by_numbers = pulled_back(flow, way, *_residual(flow, way, seen), level)
        falling = np.asarray(rate * (0.505 + 0.495 * math.cos(math.pi * step / num_steps)), door.dtype)
        numbers, memory, flow = _climbed(numbers, by_numbers, memory, falling)
    return jax.tree.map(np.asarray, flow)


def _antithetic(rng: np.random.Generator, num: int, door: Door) -> np.ndarray:
    half = rng.standard_normal((num // 2, door.dim))
    return np.concatenate([half, -half]).astype(door.dtype)


def _judged(door: Door, flow: Flow, noise: np.ndarray) -> Learned:
    ways = [way_of(flow, noise[begin : begin + door.block]) for begin in range(0, len(noise), door.block)]
    log_dets = np.concatenate([np.asarray(way.log_dets, np.float64) for way in ways])
    values, rounding = door.values(np.concatenate([np.asarray(way.end) for way in ways]), "flow")
    ratios = values + log_dets - _log_normal(noise)
    return Learned(flow, ratios.reshape(2, -1).mean(axis=0), 0.5 * float(np.var(ratios)), rounding)


def _log_normal(u: np.ndarray) -> np.ndarray:
    return -0.5 * np.sum(u.astype(np.float64) ** 2, axis=1) - 0.5 * u.shape[1] * math.log(2 * math.pi)


def _mean(values: np.ndarray) -> Estimate:
    """Of pairs of draws. One that is not finite makes it -inf: no such flow is kept."""
    if not np.isfinite(values).all():
        return Estimate(-math.inf, math.inf, 2 * len(values))
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))), 2 * len(values))


class _Memory(NamedTuple):
    """Of Adam, flat: a program of few long vectors compiles several times faster than one of many short ones."""

    mean: Float[Array | np.ndarray, " size"]
    square: Float[Array | np.ndarray, " size"]
    num: Float[Array | np.ndarray, ""]


def _new_flow(dim: int, dtype) -> Flow:
    """One that has learned nothing.

    Layers can skew as many coordinates as they have units; where there are more, each is skewed by itself. It is not
    done where layers suffice: it gains there as well, and leaves tails that are too light. Beyond the limit of dense
    matrices those of layers, too, grow too large, and skewed coordinates are all that is learned.
    """
    return identity_flow(dim, dtype, NUM_LAYERS if dim <= DENSE_LIMIT else 0, skewed=dim > MOST_UNITS)


def _as_flow(numbers, dim: int) -> Flow:
    leaves, structure = jax.tree.flatten(_new_flow(dim, numbers.dtype))
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = [numbers[end - leaf.size : end].reshape(leaf.shape) for end, leaf in zip(ends, leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


@partial(compiled, runs_often=True)
def _residual(flow, way, seen: Seen) -> Seen:
    """log p - log q at the end of a way, but for a constant: its slopes, as a mean over the points."""
    values, slopes = solid(seen.values, seen.slopes - flow.score(way))
    return Seen(values, slopes / len(slopes))


@partial(compiled, runs_often=True)
def _climbed(numbers, by_numbers: Flow, memory: _Memory, rate):
    """A step of Adam, or none at all if the gradient is not finite; and the flow that it leads to.

    The numbers of the flow are one vector from step to step: to make one of many leaves costs as much as a layer.
    """
    grads = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(by_numbers)])
    length = jnp.sqrt(jnp.sum(grads**2))
    finite = jnp.isfinite(length)
    grads = jnp.where(finite, grads, 0.0) * jnp.minimum(1.0, _LONGEST / jnp.where(finite, length, 1.0))
    num = memory.num + finite
    keep_mean, keep_square = jnp.where(finite, _KEPT[0], 1.0), jnp.where(finite, _KEPT[1], 1.0)
    mean = keep_mean * memory.mean + (1 - keep_mean) * grads
    square = keep_square * memory.square + (1 - keep_square) * grads**2
    grown = [jnp.where(num > 0, 1 - kept**num, 1.0) for kept in _KEPT]
    step = (mean / grown[0]) / (jnp.sqrt(square / grown[1]) + _TINY)
    moved = numbers + jnp.where(finite, rate, 0.0).astype(numbers.dtype) * step
    memory = _Memory(mean.astype(numbers.dtype), square.astype(numbers.dtype), num.astype(numbers.dtype))
    return moved, memory, _as_flow(moved, by_numbers.dim)

r"""Learning coordinates: a flow $T$ is trained so that the target, seen through it, looks like a standard normal.

For any diffeomorphism, $\mathrm{KL}(T_\# q \,\|\, p) = \mathrm{KL}(q \,\|\, T^{-1}_\# p)$: the map alone is plain
variational inference with a flow, and boosting goes on in its coordinates, exactly. The gradient is that of sticking
the landing: with $q$ the transported normal and $z = T(u)$, the residual slope $\nabla\log p(z) - \nabla\log q(z)$ is
pulled back through $T$ alone, so that it vanishes, and its noise with it, where $q = p$. A step is one call of the door
and one compiled program, the same for all models of a dimension.

Rounds of steps, each twice as long as the one before and with a rate that falls along a cosine, follow each other as
long as a round gains. Every round is judged on the same fresh draws; one that gains nothing is given up.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from relbo._compiled import compiled, host_random
from relbo.ascent.gradient import solid
from relbo.door import Door
from relbo.estimate import Estimate
from relbo.families import DENSE_LIMIT
from relbo.flows import Flow, identity_flow
from relbo.mixture import Mixture, draw_each, log_densities, log_mixture, num_active, weights_of

_FIRST_STEPS = 400
_NUM_ROUNDS = 3
_RATE = 1e-2
"""Of the first round; that of the next ones is half of the one before."""
_FEWEST_DRAWS = 32
"""Of a step; the door evaluates a whole block for the price of one."""
_DERIVATIVES = 2**20
"""Of a layer at all draws of a step, at the most: they have to be in memory, and in the cache if possible."""
_JUDGED = 2048
_LEAST_GAIN = 5e-3
"""Nats that a round must gain for another one, twice as long."""
_LONGEST = 10.0
"""Of a gradient, beyond which it is cut: one draw far out must not undo what many have learned."""
_KEPT, _TINY = (0.9, 0.99), 1e-8
"""Of Adam. A short memory of squares: the first gradients are far larger than the last ones."""
_COVERED = -5.0
"""Nats by which a flow may fall short of a mixture where a component of it has its mass."""
_HEAVY = 0.01
_COMPARED = 32


class Learned(NamedTuple):
    """A flow, and log p - log q at the judging draws of the normal that it transports."""

    flow: Flow
    ratios: np.ndarray

    @property
    def elbo(self) -> Estimate:
        return _mean(self.ratios)


def can_learn(door: Door) -> bool:
    """A flow needs gradients, something to bend, and room for a matrix of derivatives at every draw."""
    return bool(door.target.differentiable) and 2 <= door.dim <= DENSE_LIMIT


def learn_flow(key: Key[Array, ""], door: Door) -> Learned:
    """The best flow that a few rounds find; where none gains, the identity. `door` is that of affine coordinates."""
    rng = host_random(key)
    noise = _antithetic(rng, _JUDGED, door)
    best = _judged(door, identity_flow(door.dim, door.dtype), noise)
    for index in range(_NUM_ROUNDS):
        trained = _round(key, rng, door, best.flow, _FIRST_STEPS << index, _RATE / 2**index, index)
        found = _judged(door, trained, noise)
        gain = _mean(found.ratios - best.ratios)
        best = found if gain.value > 0 else best
        if not gain.value > max(_LEAST_GAIN, 2 * gain.std_err):
            break
    return best


def covers(key: Key[Array, ""], flow: Flow, mixture: Mixture) -> bool:
    """Whether the transported normal has mass wherever a mixture (in the coordinates before the flow) has it.

    Each component of some weight is asked, at draws of its own: a flow that fell into one of several modes does not.
    """
    num, weights = num_active(mixture), weights_of(mixture)
    points = draw_each(key, mixture, _COMPARED, num).reshape(num * _COMPARED, -1)
    log_q = log_mixture(log_densities(mixture.family, mixture.params, points), weights)
    short = np.asarray(_log_normal(flow, points), np.float64) - log_q
    each = np.median(short.reshape(num, _COMPARED), axis=1)
    return bool(np.all(each[weights[:num] > _HEAVY] > _COVERED))


def _round(key, rng, door: Door, flow: Flow, num_steps: int, rate: float, index: int) -> Flow:
    num_draws = _num_draws(door)
    memory, noise = _begin(flow), _antithetic(rng, num_draws, door)
    points = _moved(flow, noise)
    for step in range(num_steps):
        seen = door(points, "flow", batch=(key, (index << 16) + step))
        following = _antithetic(rng, num_draws, door)
        now = np.asarray(rate * (0.505 + 0.495 * math.cos(math.pi * step / num_steps)), door.dtype)
        flow, memory, points = _step(flow, memory, noise, seen, now, following)
        noise = following
    return flow


def _num_draws(door: Door) -> int:
    """Of a step: a whole block, unless derivatives of so many draws would be too many numbers."""
    fitting = 2 ** int(math.log2(_DERIVATIVES / door.dim**2))
    return max(_FEWEST_DRAWS, min(door.block, fitting))


def _antithetic(rng: np.random.Generator, num: int, door: Door) -> np.ndarray:
    half = rng.standard_normal((num // 2, door.dim))
    return np.concatenate([half, -half]).astype(door.dtype)


def _judged(door: Door, flow: Flow, noise: np.ndarray) -> Learned:
    values, _ = door.through(door.target.with_flow(flow)).numbers(noise, "flow")
    log_normal = -0.5 * np.sum(noise.astype(np.float64) ** 2, axis=1) - 0.5 * door.dim * math.log(2 * math.pi)
    ratios = values - log_normal
    pairs = ratios.reshape(2, -1).mean(axis=0)  # of a draw and its mirror image
    return Learned(flow, pairs)


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


def _begin(flow: Flow) -> _Memory:
    zeros = np.zeros(sum(leaf.size for leaf in jax.tree.leaves(flow)), flow.layers.inner.dtype)
    return _Memory(zeros, zeros, np.zeros((), zeros.dtype))


@partial(compiled, runs_once=True)
def _moved(flow, noise):
    return flow.transport(noise)[0]


@partial(compiled, runs_once=True)
def _log_normal(flow, points):
    """The log density of the transported standard normal."""
    u, log_dets = flow.inverse(points)
    return -0.5 * jnp.sum(u**2, axis=1) - 0.5 * u.shape[1] * math.log(2 * math.pi) - log_dets


@partial(compiled, runs_often=True)
def _step(flow, memory, noise, seen, rate, following):
    """One step uphill by what was `seen` where `noise` went, and where `following` goes then."""

    trail = flow.trail(noise)
    _, slopes = solid(seen.values, seen.slopes - trail.score)
    numbers, as_flow = ravel_pytree(flow)
    grads, _ = ravel_pytree(flow.pull(trail, slopes / len(noise)))
    numbers, memory = _climbed(numbers, grads, memory, rate)
    flow = as_flow(numbers)
    return flow, memory, flow.transport(following)[0]


def _climbed(numbers, grads, memory: _Memory, rate):
    """A step of Adam, or none at all if the gradient is not finite."""
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
    return moved, _Memory(mean.astype(numbers.dtype), square.astype(numbers.dtype), num.astype(numbers.dtype))

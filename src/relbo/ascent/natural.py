r"""Natural-gradient ascent for normal components, with backtracking.

The step is that of `families/natural.py`: gradients only, invariant to affine maps, positive definite by construction.
Step sizes fall from `step_size` by a factor `1 + decay` over the ascent, which ends before that when it gains no more
beyond its noise. When the draws at a new position are broken (mostly NaN or infinite), or the objective has fallen
beyond its noise, the component goes back, and the remembered step is taken again at half its length.

All residuals are seen from inside a component, as functions of its noise: with $z = m + L\varepsilon$, a gradient
$\nabla f(z)$ is $L^\top \nabla f$ there, and that of $\log s$ itself is $-\varepsilon$.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from relbo.ascent.bank import Bank, noise_at
from relbo.ascent.base import (
    WINDOW,
    AbstractAscent,
    Aim,
    Drawn,
    Improved,
    Tally,
    choose,
    empty_tally,
    masked_mean,
    masked_std_err,
    step_weights,
)
from relbo.ascent.turns import Turns, put_back, taken
from relbo.budgets import FEW
from relbo.families import Box, LocationScaleParams
from relbo.mixture import Mixture, Numbers, cropped, num_active, uncropped, weights_of
from relbo.runtime.compiling import compiled

_MIN_FINITE = 0.5  # a smaller share of finite draws is a broken position
_NOISE_SIGMAS = 6.0  # a fall of the objective by this many standard errors is a bad step
_FEWEST_SLOTS = 8  # room for the first iterations, each of which adds a few
_FEW_DIMENSIONS = 16
"""Up to here a step over all slots, empty ones too, is cheaper than to compile it for fewer."""


class NaturalAscent(AbstractAscent):
    """Natural gradients; the default for normal families with a full or diagonal scale."""

    fits_alone = True
    num_steps: int = eqx.field(static=True, default=100)
    num_draws: int = eqx.field(static=True, default=FEW.ascent_draws)
    # Arrays, so that polishing with smaller steps meets the same compiled program.
    step_size: Float[ArrayLike, ""] = eqx.field(converter=np.asarray, default=FEW.step_size)
    decay: Float[ArrayLike, ""] = eqx.field(converter=np.asarray, default=4.0)
    num_drops: int = eqx.field(static=True, default=1)
    """How often a refinement that gains no more goes on with smaller steps."""
    window_draws: int = eqx.field(static=True, default=2000)
    """Draws between two looks at whether it still gains: few components take more steps, to be seen to move."""

    def check(self, family):
        if family.geometry is None:
            raise ValueError(
                f"Natural gradients need normal components with a full or diagonal scale, got {family}. "
                'Use oracle="gradient", which serves every family.'
            )

    def annealed(self, round_index):
        # Round by round the falling step sizes go on where the round before ended.
        smaller = self.step_size / (1 + self.decay) ** round_index
        return dataclasses.replace(self.patient(), step_size=smaller)

    def patient(self):
        return dataclasses.replace(self, num_steps=2 * self.num_steps, window_draws=2 * self.window_draws)

    def improve(self, key, door, aim, params):
        family = aim.mixture.family
        climb = Climb(self, key, door, family.scale, params, family.box)
        before: np.ndarray | None = None
        while climb.num_done < self.num_steps:
            climb.go(aim, WINDOW)
            value, std_err = climb.state.tally.means()
            if before is not None and not _still_gains(before, value, std_err):
                break
            before = value
        return climb.found()

    def refine(self, key, door, mixture, estimator):
        whole, mixture = mixture, cropped(mixture, slots_for(num_active(mixture), mixture.capacity, door.dim))
        turns = Turns.of(mixture.capacity, num_active(mixture), door.dim)
        box = mixture.family.box
        state = _begin(mixture.params, mixture.log_weights)
        bank = Bank(key, turns.num_moving, self.draws // 2, door.dim, door.dtype)
        points = _place_some(mixture.family.scale, state.params, bank.at(0), turns.at(0).first, turns.num_moving)
        seen_each = turns.num_used(0) * self.draws
        window = turns.rounded(max(1, min(max(self.window_draws // seen_each, WINDOW), self.num_steps // 3)))
        best, best_value, drops = state, -np.inf, 0
        for step in range(self.num_steps * turns.num):
            drawn = Drawn(bank.at(step), door(points, "refinement", turns.num_used(step) * self.draws, (key, step)))
            rate = np.asarray(self.step_size / (1 + self.decay) ** drops, np.float32)
            pace = _Pace(rate, _bounds(box, door.dtype), np.asarray(step % window == 0), bank.at(step + 1))
            turn = turns.at(step)
            state, points = _refine_step(mixture.family, estimator, drawn, state, pace, turn)
            if step % window == window - 1:
                value, std_err = _elbo_of(mixture, state)
                drops += not value - best_value > std_err
                if value > best_value:
                    best, best_value = state, value
                elif value < best_value - 2 * std_err:  # steps too long for the noise lead away: go back
                    state = eqx.tree_at(lambda s: (s.walk, s.log_weights), state, (best.walk, best.log_weights))
                    points = _place_some(mixture.family.scale, state.params, bank.at(step + 1), turn.then, turn.num)
                if drops > self.num_drops:
                    break
        refined = Mixture(mixture.family, state.walk.base, state.log_weights)
        return uncropped(refined, whole), int(state.tally.num_nan)

    @property
    def draws(self) -> int:
        """An even number: draws are antithetic."""
        return 2 * ((self.num_draws + 1) // 2)

    def rate(self, index: int):
        return np.asarray(self.step_size / (1 + self.decay * index / self.num_steps), np.float32)


def slots_for(num: int, capacity: int, dim: int) -> int:
    """How many slots a refinement of `num` components has: its work grows with their square, empty or not."""
    return min(_FEWEST_SLOTS, capacity) if num <= _FEWEST_SLOTS and dim > _FEW_DIMENSIONS else capacity


class Climb:
    """A stack of proposals on their way up, each alone, as far as `go` is told."""

    def __init__(self, ascent: NaturalAscent, key, door, scale, params, box: Box):
        self.ascent, self.door, self.scale, self.box = ascent, door, scale, box
        num = params.loc.shape[0]
        self.num, self.num_done, self.num_used = num, 0, num
        self.state = _begin(params, np.zeros(num, door.dtype))
        self.bank = Bank(key, num, ascent.draws // 2, door.dim, door.dtype)
        self.points = _place(scale, self.state.params, self.bank.at(0))

    def go(self, aim: Aim, num_steps: int, purpose: str = "proposals") -> None:
        """So many steps; the tally is of these."""
        bounds, last = _bounds(self.box, self.door.dtype), min(self.num_done + num_steps, self.ascent.num_steps)
        for step in range(self.num_done, last):
            seen = self.door(self.points, purpose, self.num_used * self.ascent.draws, (self.bank.key, step))
            drawn = Drawn(self.bank.at(step), seen, self.points)
            pace = _Pace(self.ascent.rate(step), bounds, np.asarray(step == self.num_done), self.bank.at(step + 1))
            self.state, self.points = _improve_step(aim.lasting, drawn, self.state, pace, aim.time)
        self.window, self.num_done = last - self.num_done, last

    def keep(self, num: int, order: np.ndarray) -> None:
        """Go on with the first `num` in this order alone; the others cost no evaluation from here on."""
        self.num_used = num
        self.state = jax.tree.map(lambda leaf: np.asarray(leaf)[order] if np.ndim(leaf) else leaf, self.state)
        self.points = _place(self.scale, self.state.params, self.bank.at(self.num_done))

    def found(self) -> Improved:
        value, std_err = self.state.tally.means()
        value = np.where(np.arange(self.num) < self.num_used, value, np.nan)
        num_draws = self.ascent.draws * self.window
        # The last position looked at and found good.
        return Improved(self.state.walk.base, value, std_err, num_draws, int(self.state.tally.num_nan))


class _Walk(eqx.Module):
    """Positions of a stack of components, and for each the last good base with the statistics seen there."""

    params: PyTree
    base: PyTree
    slope: Float[Numbers, "stack dim"]
    curvature: Numbers
    value: Float[Numbers, " stack"]
    std_err: Float[Numbers, " stack"]
    damping: Float[Numbers, " stack"]


class _State(eqx.Module):
    walk: _Walk
    log_weights: Float[Numbers, " stack"]
    tally: Tally

    @property
    def params(self):
        return self.walk.params


class _Pace(NamedTuple):
    """How a step is taken."""

    rate: np.ndarray
    bounds: np.ndarray
    fresh: np.ndarray
    """Whether the tally begins anew."""
    ahead: Any
    """The noise of the next step."""


class _Statistics(eqx.Module):
    slope: Float[Array, "stack dim"]
    curvature: Array
    value: Float[Array, " stack"]
    std_err: Float[Array, " stack"]
    usable: Array
    num_nan: Array


def _still_gains(before: np.ndarray, after: np.ndarray, std_err: np.ndarray) -> bool:
    """Whether the best proposal is better than the best was, beyond the noise; NaN are proposals that broke."""
    if not np.isfinite(after).any():
        return False
    if not np.isfinite(before).any():
        return True
    best = np.nanargmax(after)
    return bool(after[best] - np.nanmax(before) > 2 * std_err[best])


def _elbo_of(mixture: Mixture, state: _State) -> tuple[float, float]:
    """The mixture's ELBO over the last steps (of a mixture that moved), by the weights of now."""
    weights = weights_of(mixture.reweight(state.log_weights))
    value, std_err = state.tally.means()
    used = (weights > 0) & np.isfinite(value)
    return float(weights[used] @ value[used]), float(np.sqrt(np.sum((weights[used] * std_err[used]) ** 2)))


def _bounds(box: Box, dtype) -> np.ndarray:
    """As an array: the race for the map and the oracle share a program though their bounds differ."""
    return np.asarray([box.loc, box.log_scale], dtype)


def _begin(params, log_weights) -> _State:
    """On the host: small programs are slow to compile, too."""
    num, dim = params.loc.shape
    dtype = params.loc.dtype
    value, damping = np.full(num, -np.inf, dtype), np.ones(num, dtype)
    zeros = np.zeros((num, dim), dtype)
    walk = _Walk(params, params, zeros, np.zeros(params.scale.shape, dtype), value, np.zeros(num, dtype), damping)
    return _State(walk, np.asarray(log_weights), empty_tally(num, dtype))


@compiled
def _place(scale, params, bank):
    return _points(scale, params, noise_at(bank, params.loc.shape[0]))


@compiled
def _place_some(scale, params, bank, first, num):
    return _points(scale, taken(params, first, num), noise_at(bank, num))


def _points(scale, params, noise) -> Float[Array, "all dim"]:
    moved = jax.vmap(lambda p, each: jax.vmap(lambda e: scale.apply(p, e))(each))(params.scale, noise)
    return (params.loc[:, None] + moved).reshape(-1, noise.shape[-1])


def _inside(scale, params, slopes, noise):
    """Gradients by noise from gradients by point."""

    def pull(p, each):
        _, back = jax.vjp(lambda e: scale.apply(p, e), jnp.zeros_like(each[0]))
        return jax.vmap(lambda slope: back(slope)[0])(each)

    return jax.vmap(pull)(params.scale, slopes.reshape(noise.shape))


@compiled
def _improve_step(aim, drawn, state, pace, iteration):
    """Move every proposal one step."""
    (mixture, objective, estimator), seen, walk = aim, drawn.seen, state.walk
    family, num, scale = mixture.family, walk.params.loc.shape[0], mixture.family.scale
    noise = noise_at(drawn.noise, num)
    log_dets = jax.vmap(scale.log_det)(walk.params.scale)
    log_s = -0.5 * jnp.sum(noise**2, axis=-1) - log_dets[:, None] - 0.5 * noise.shape[-1] * jnp.log(2 * jnp.pi)
    q = mixture.at(drawn.points)
    values, (by_p, by_q, by_s) = objective.with_slopes(seen.values, q.log_q, log_s.reshape(-1), iteration)
    slopes = _inside(scale, walk.params, by_p[:, None] * seen.slopes + by_q[:, None] * q.slope, noise)
    slopes = slopes - by_s.reshape(noise.shape[:2])[..., None] * noise
    weight = objective.entropy_weight(iteration)
    statistics = _statistics(family, estimator, noise, values.reshape(noise.shape[:2]), slopes, weight)
    moved = _moved(family, walk, statistics, pace, check_fall=True)
    tally = state.tally.add(statistics.value, statistics.std_err, jnp.sum(statistics.num_nan), pace.fresh)
    return _State(moved, state.log_weights, tally), _points(scale, moved.params, noise_at(pace.ahead, num))


@compiled
def _refine_step(family, estimator, drawn, state, pace, turn):
    """Move the components whose turn it is, and the weights, one step on the mixture's ELBO."""
    seen, walk, (first, then, num) = drawn.seen, state.walk, turn
    noise, moving = noise_at(drawn.noise, num), taken(walk, first, num)
    mixture = Mixture(family, walk.params, state.log_weights)
    q = mixture.at(_points(family.scale, moving.params, noise))
    slopes = _inside(family.scale, moving.params, seen.slopes - q.slope, noise)
    values = (seen.values - q.log_q).reshape(noise.shape[:2])
    statistics = _statistics(family, estimator, noise, values, slopes, jnp.ones((), values.dtype))
    active = taken(mixture.active, first, num)
    moved = choose(active, _moved(family, moving, statistics, pace, check_fall=False), moving)
    walk = put_back(walk, moved, first)
    unknown = jnp.full_like(state.log_weights, jnp.nan)  # of the components that stood still
    value, std_err = (put_back(unknown, part, first) for part in (statistics.value, statistics.std_err))
    log_weights = step_weights(mixture, value, jnp.minimum(pace.rate, 1.0).astype(values.dtype))
    tally = state.tally.add(value, std_err, jnp.sum(jnp.where(active, statistics.num_nan, 0)), pace.fresh)
    points = _points(family.scale, taken(walk.params, then, num), noise_at(pace.ahead, num))
    return _State(walk, log_weights, tally), points


def _moved(family, walk: _Walk, seen: _Statistics, pace: _Pace, check_fall: bool) -> _Walk:
    noise = _NOISE_SIGMAS * jnp.sqrt(seen.std_err**2 + walk.std_err**2)
    fell = check_fall & (seen.value < walk.value - noise)
    good = seen.usable & ~fell
    # Where the position is bad, the base stays and its step is halved; else the base moves here.
    base = choose(good, walk.params, walk.base)
    slope, curvature = choose(good, (seen.slope, seen.curvature), (walk.slope, walk.curvature))
    value, std_err = choose(good, (seen.value, seen.std_err), (walk.value, walk.std_err))
    damping = jnp.where(good, jnp.minimum(1.0, 2.0 * walk.damping), 0.5 * walk.damping)
    rates, bounds = (pace.rate * damping).astype(walk.value.dtype), pace.bounds

    def step(params, slope, curvature, rate):
        moved = family.natural_step(params, slope, curvature, rate)
        loc = jnp.clip(moved.loc, -bounds[0], bounds[0])
        return LocationScaleParams(loc, family.scale.project(moved.scale, bounds[1]), params.noise)

    return _Walk(jax.vmap(step)(base, slope, curvature, rates), base, slope, curvature, value, std_err, damping)


def _statistics(family, estimator, noise, values, slopes, entropy_weight) -> _Statistics:
    """Slope and curvature of each of a stack, from residuals at its draws and their gradients by the noise."""
    finite = jnp.isfinite(values) & jnp.all(jnp.isfinite(slopes), axis=-1)
    mean = masked_mean(jnp.where(finite, values, jnp.nan))
    # A draw that is not finite contributes nothing: zero slope, and a value equal to the mean of the others.
    known = jnp.where(finite, values, mean[:, None])
    known_slopes = jnp.where(finite[..., None], slopes, 0.0)
    slope, curvature = jax.vmap(lambda e, v, h: estimator.natural(family.geometry, e, v, h, entropy_weight))(
        noise, known, known_slopes
    )
    # Antithetic draws are not independent of each other; their pairs are, or (quasi-random ones) err less than that.
    pairs = jnp.where(finite, values, jnp.nan).reshape(values.shape[0], 2, -1).mean(1)
    axes = tuple(range(1, curvature.ndim))
    solid = jnp.all(jnp.isfinite(slope), axis=1) & jnp.all(jnp.isfinite(curvature), axis=axes) & jnp.isfinite(mean)
    usable = solid & (finite.mean(axis=1) >= _MIN_FINITE)
    slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
    curvature = jnp.where(jnp.isfinite(curvature), curvature, 0.0)
    num_nan = jnp.sum(jnp.isnan(values), axis=1)
    return _Statistics(slope, curvature, mean, masked_std_err(pairs), usable, num_nan)

r"""The affine map found before boosting: everything after runs in coordinates $u$ with $z = m + A u$.

The map is the best single normal found by a race. Its runners are normals of several widths at the starting point, and
normals with the curvature of the target at points of L-BFGS paths from several starts (the ends are modes; the points
before them are Pathfinder's candidates, which matter where the mode is a bad place to stand: a funnel, a hierarchical
model). They climb side by side by natural gradients, as proposals of the oracle do, by the same program: against a
mixture without components the finite step is plain variational inference. Those that fall behind are left out as the
race goes on, and it ends when the leader gains no more and nobody else can catch up.

A posterior with many data is nearly normal, and its evaluations are dear. So the highest end is looked at first: where
the target follows the normal of its curvature, within a few hundredths of a nat, and is not much larger far around,
nobody else need run.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from relbo.ascent import Aim, GradientAscent, NaturalAscent, lbfgs_paths
from relbo.ascent.base import WINDOW
from relbo.ascent.curvature import laplace_factors
from relbo.ascent.natural import Climb
from relbo.budgets import FEW, budget
from relbo.coordinates.properness import check_proper
from relbo.coordinates.tilt import SCORE_DRAWS, best_tilt
from relbo.families import DENSE_LIMIT, Cholesky, Diagonal, LocationScale, LocationScaleParams, LowRank, Normal
from relbo.families.scale import LowRankParams
from relbo.mixture import Mixture, nothing
from relbo.model.door import Door, Rough, anchored, note
from relbo.model.whitening import WIDE, Whitened
from relbo.objectives import AbstractEstimator, FiniteStep
from relbo.oracles.modes import WALK_STEPS, scattered
from relbo.records.estimate import Estimate
from relbo.runtime.choices import choose_name
from relbo.runtime.compiling import compiled, host_random, host_split

KINDS = ("auto", "affine", "flow", "dense", "low_rank", "diagonal", "none")
_KEPT = 4
"""Points of a path that are looked at, the end among them."""
_WIDTHS = (1.0, 0.1, 10.0, 0.3, 3.0, 0.03)  # factors of three, the likeliest first
_FOLLOWED = 0.02
"""Nats, half the variance of log p - log q, up to which a normal with the curvature of its mode needs no race."""
_AROUND, _SHARE = (3.0, 10.0), 0.02
"""Widths at which the target is looked at once more, and the share of its mass that may be there beyond the normal: the
mode of a narrow peak on a wide hill is the wrong place."""
_CATCH_UP = 5.0
"""Windows of its last gain that a runner behind the leader is believed to have ahead."""
_ANCHORINGS = 2
"""A walk on a minibatch ends sqrt(N / n) posterior widths from the mode; anchored there, the next one ends near it."""


class Preconditioner(eqx.Module):
    """Settings of the race, and whether coordinates are learned behind it.

    `kind`: the map is "dense", "low_rank" or "diagonal" ("none": there is no race); "affine" is dense up to 256
    dimensions and low rank beyond. "flow" learns a flow behind it, always; "auto", the default, where the first
    component is far from the target and no other mode of some mass was found.
    """

    kind: str = eqx.field(static=True, default="auto")
    num_steps: int = eqx.field(static=True, default=200)
    num_draws: int = eqx.field(static=True, default=FEW.ascent_draws)

    def __check_init__(self):
        choose_name("precondition", self.kind, KINDS)


def find_map(key: Key[Array, ""], door: Door, settings: Preconditioner, estimator: AbstractEstimator) -> Door:
    """The door in whitened coordinates, from the one in the model's own, shifted to the starting point."""
    door = anchored(door, _shifted(door, 0.0))  # where it starts: from here on ascents may climb on minibatches
    if settings.kind == "none":
        return door
    runner_key, race_key, tilt_key = host_split(key, 3)
    scale = Cholesky() if door.target.family.scale.is_dense else Diagonal()
    runners = _runners(runner_key, door, scale, estimator.needs_gradient)
    for walk_again in range(_ANCHORINGS if door.target.subsamples else 0):
        door = anchored(door, _shifted(door, runners[0][-1]))
        runners = _runners(jax.random.fold_in(runner_key, walk_again), door, scale, estimator.needs_gradient)
    door = anchored(door, _shifted(door, runners[0][-1]))
    draws = settings.num_draws if estimator.needs_gradient else max(256, 8 * door.dim)
    ascent = NaturalAscent(settings.num_steps, draws, step_size=budget(door.dim).step_size)
    if len(runners[0]) == 1:
        many = (np.repeat(part, budget(door.dim).num_restarts, axis=0) for part in runners)  # as many as would race
        alone = jax.tree.map(lambda leaf: np.asarray(leaf)[0], _unbounded_members(scale, *many))
        check_proper(door, scale, alone)
        return _whitened(tilt_key, door, alone, 0)
    winner, best = _race(race_key, door, scale, ascent, estimator, runners)
    if door.dim > DENSE_LIMIT and estimator.needs_gradient:
        other, value = _slow_race(race_key, door, estimator, runners)
        winner = other if value > best else winner
    check_proper(door, scale, winner)
    return _whitened(tilt_key, door, winner, settings.num_draws if estimator.needs_gradient else 0)


def _shifted(door: Door, point) -> np.ndarray:
    """A point of the shifted coordinates in the model's own."""
    return np.asarray(door.target.params.loc) + np.asarray(point)


def _whitened(key, door: Door, winner: LocationScaleParams, num_draws: int) -> Door:
    loc = jnp.asarray(_shifted(door, winner.loc), door.dtype)
    door = anchored(door, loc)
    params = LocationScaleParams(loc, jnp.asarray(winner.scale), ())
    plain, family = door.target.target, door.target.family
    if not isinstance(family.scale, LowRank):
        return door.through(Whitened(plain, family, params))
    rank = min(family.scale.rank, door.dim)

    def tilted(tilt: np.ndarray | None) -> Door:
        tilt = np.zeros((door.dim, rank)) if tilt is None else tilt
        scales = LowRankParams(params.scale, jnp.asarray(tilt, door.dtype))
        return door.through(Whitened(plain, family, LocationScaleParams(loc, scales, ())))

    return best_tilt(key, tilted, rank, num_draws)


# Runners


def _runners(key, door: Door, scale, differentiable: bool) -> tuple[np.ndarray, np.ndarray]:
    """Locations and factors of the normals that start the race, as many as the oracle climbs with; or the one that wins
    without."""
    afford, dim, dtype = budget(door.dim), door.dim, door.dtype
    num_curved = afford.num_curved if differentiable else 0
    num_widths = afford.num_restarts - num_curved
    widths = np.resize(np.asarray(_WIDTHS), num_widths)
    locs, factors = np.zeros((num_widths, dim)), widths[:, None] * np.ones(dim)
    if scale.is_dense:
        factors = widths[:, None, None] * np.eye(dim)
    if num_curved:
        more_locs, more_factors = _curved(key, door, num_curved, scale.is_dense)
        if len(more_locs) == 1 < num_curved:
            return more_locs.astype(dtype), more_factors.astype(dtype)
        locs, factors = np.concatenate([locs, more_locs]), np.concatenate([factors, more_factors])
    return locs.astype(dtype), factors.astype(dtype)


def _curved(key, door: Door, num: int, dense: bool) -> tuple[np.ndarray, np.ndarray]:
    """Runners from walks that start at and around the first point, the best end last; that alone, if it will do.

    The normals with the target's curvature that have the best ELBO among the points of the two highest paths and the
    ends of the others; in many dimensions the highest ends, with no curvature.
    """
    num_walks = max(1, budget(door.dim).num_walks // 2)
    initial = np.asarray(door.target.target.initial, np.float64)[:num_walks] - np.asarray(door.target.params.loc)
    around = scattered(key, np.zeros((num_walks - len(initial), door.dim)), np.full(1, -1.0), np.float64)
    points = np.concatenate([initial, around]).astype(door.dtype)
    paths = lbfgs_paths(lambda at, num_used: door(at, "walks", num_used, (key, 0)), points, WALK_STEPS, _KEPT)
    paths = paths.astype(np.float64)
    heights = door.numbers(paths[:, -1], "walks")[0]
    ranked = np.argsort(-np.where(np.isfinite(heights), heights, -np.inf), kind="stable")
    if not dense:
        return paths[ranked[:num][::-1], -1], np.full((num, door.dim), 0.1)
    end = _laplace(key, door, _arrived(door, paths[ranked[:1], -1]))
    if not door.target.subsamples and end.left[0] < _FOLLOWED and not _has_more_around(key, door, end):
        _note_laplace(key, door, end, 0)
        return end.points, end.factors
    others = np.concatenate([paths[ranked[:2], :-1].reshape(-1, door.dim), paths[ranked[1:3], -1]])
    all_of = _Normals(*map(np.concatenate, zip(_laplace(key, door, others), end, strict=True)))
    best = np.argsort(-all_of.scores, kind="stable")[: num - 1]
    if np.isfinite(all_of.scores[best[0]]):
        _note_laplace(key, door, all_of, int(best[0]))
    chosen = np.append(best, len(all_of.points) - 1)
    return all_of.points[chosen], all_of.factors[chosen]


class _Normals(NamedTuple):
    """Normals with the target's curvature at some points."""

    points: np.ndarray
    factors: np.ndarray
    scores: np.ndarray
    """ELBOs."""
    left: np.ndarray
    """Half the variances of log p - log q: about what is left to gain, where that is small."""


def _arrived(door: Door, end: np.ndarray) -> np.ndarray:
    """The end of a walk after a step of Newton's method, if that leads uphill.

    Where coordinates differ widely in scale, a walk gains little long before it is there.
    """
    factor = laplace_factors(lambda at: door.numbers(at, "curvature")[1], end)[0]
    slope = door.numbers(end, "walks")[1][0]
    both = np.concatenate([end, end + factor @ (factor.T @ slope)])
    heights = door.numbers(both, "walks")[0] if np.isfinite(both).all() else np.zeros(2)
    return both[1:] if heights[1] > heights[0] else end


def _laplace(key, door: Door, points: np.ndarray) -> _Normals:
    factors = laplace_factors(lambda at: door.numbers(at, "curvature")[1], points)
    usable = np.isfinite(factors).all((1, 2))
    factors = np.where(usable[:, None, None], factors, 0.1 * np.eye(door.dim))
    rng = host_random(key)
    half = rng.standard_normal((SCORE_DRAWS // 2, door.dim))
    noise = np.concatenate([half, -half])
    with np.errstate(invalid="ignore"):
        ratios = _log_p_around(door, points, factors, noise) - _log_normals(factors, noise)
        scores, left = ratios.mean(axis=1), 0.5 * ratios.var(axis=1)
    usable &= np.isfinite(scores)
    return _Normals(points, factors, np.where(usable, scores, -np.inf), np.where(usable, left, np.inf))


def _has_more_around(key, door: Door, end: _Normals) -> bool:
    """Whether a share of the target's mass lies farther around, where it is larger than the normal."""
    noise = host_random(key, 1).standard_normal((SCORE_DRAWS, door.dim))
    for width in _AROUND:
        log_p = _log_p_around(door, end.points, width * end.factors, noise)[0] - end.scores[0]
        beyond = np.isnan(log_p) | (log_p > _log_normals(end.factors, width * noise)[0] + 1.0)
        with np.errstate(over="ignore"):
            seen = np.where(beyond, np.exp(log_p - _log_normals(width * end.factors, noise)[0]), 0.0)
        if not seen.mean() < _SHARE:
            return True
    return False


def _log_p_around(door: Door, points: np.ndarray, factors: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """(num, draws)"""
    draws = points[:, None] + np.einsum("kij,nj->kni", factors, noise)
    return door.numbers(draws.reshape(-1, door.dim), "race")[0].reshape(len(points), -1)


def _log_normals(factors: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Of each of some normals, at the images of the noise."""
    log_dets = np.log(np.abs(np.diagonal(factors, axis1=1, axis2=2))).sum(axis=1)
    log_noise = -0.5 * np.sum(noise**2, axis=1) - 0.5 * noise.shape[1] * np.log(2 * np.pi)
    return log_noise - log_dets[:, None]


def _note_laplace(key, door: Door, normals: _Normals, index: int) -> None:
    factor = normals.factors[index]
    scales = np.tril(factor, -1) + np.diag(np.log(np.abs(np.diagonal(factor))))
    _note(key, door, normals.points[index], scales, Estimate(float(normals.scores[index]), np.inf, SCORE_DRAWS))


def _note(key, door: Door, loc, scales, elbo: Estimate) -> None:
    """What a fit would return if it had to end now."""
    loc, scales = np.asarray(loc, door.dtype), np.asarray(scales, door.dtype)

    def target() -> Whitened:
        return _whitened(key, door, LocationScaleParams(jnp.asarray(loc), jnp.asarray(scales), ()), 0).target

    note(Rough(target, elbo))


# The race


def _race(key, door: Door, scale, ascent: NaturalAscent, estimator, runners) -> tuple[LocationScaleParams, float]:
    """The parameters of the best runner, on the host, and its ELBO (up to a constant)."""
    aim = Aim(empty_normals(scale, door.dim, door.dtype), FiniteStep(), estimator)
    climb = Climb(ascent, key, door, scale, _unbounded_members(scale, *runners), WIDE)
    before = np.full(climb.num, -np.inf)
    while climb.num_done < ascent.num_steps:
        climb.go(aim, WINDOW, "race")
        value, std_err = climb.state.tally.means()
        value = np.where(np.isfinite(value) & (np.arange(climb.num) < climb.num_used), value, -np.inf)
        with np.errstate(invalid="ignore"):
            gain = np.where(np.isfinite(before), value - before, np.inf)
        order = np.argsort(-value, kind="stable")
        lead = order[0]
        if np.isfinite(value[lead]):  # against an empty mixture the finite step adds log 2
            elbo = Estimate(float(value[lead] - np.log(2.0)), float(std_err[lead]), WINDOW * ascent.draws)
            _note(key, door, climb.state.walk.base.loc[lead], climb.state.walk.base.scale[lead], elbo)
        settled = gain[lead] <= max(2 * std_err[lead], 1e-3)
        with np.errstate(invalid="ignore"):
            chasing = (value + _CATCH_UP * np.maximum(gain, 0.0) >= value[lead]) & np.isfinite(value)
        chasing[lead] = False
        if settled and not chasing.any():
            break
        halve = climb.num_done % (2 * WINDOW) == 0
        num = max(2, climb.num_used // 2) if halve else climb.num_used
        climb.keep(min(num, climb.num_used), order)
        before = value[order]
    improved = climb.found()
    ranked = improved.order()
    if not len(ranked):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], improved.params), -np.inf
    return jax.tree.map(lambda leaf: np.asarray(leaf)[ranked[0]], improved.params), float(improved.value[ranked[0]])


def empty_normals(scale, dim: int, dtype) -> Mixture:
    """A mixture without components, of the family that fits have by default: so that programs are shared."""
    return nothing(LocationScale(Normal(), scale), dim, budget(dim).capacity, np.dtype(dtype))


@functools.partial(compiled, runs_once=True)
def _unbounded_members(scale, locs, factors):
    return jax.vmap(LocationScale(Normal(), scale, WIDE).init)(locs, factors)


def _slow_race(key, door: Door, estimator, runners) -> tuple[LocationScaleParams, float]:
    """The first runner, by two thousand small steps of Adam."""
    family = LocationScale(Normal(), Diagonal(), WIDE)
    empty = nothing(family, door.dim, 1, np.dtype(door.dtype))
    params = _unbounded_members(Diagonal(), *(part[:1] for part in runners))
    improved = _slow_ascent().improve(key, door, Aim(empty, FiniteStep(), estimator), params)
    value = float(improved.value[0])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], improved.params), value if np.isfinite(value) else -np.inf


@functools.cache
def _slow_ascent() -> GradientAscent:
    """Two thousand small steps of Adam. In many dimensions, where natural steps with a diagonal scale follow the target
    into the nearest valley, a wide normal that shrinks slowly often ends in a better one."""
    # A short memory (b2): the first gradients, of a normal that is far too wide, are huge.
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 2000, alpha=0.01), b2=0.99)
    return GradientAscent(2000, 2, optimizer=optimizer)

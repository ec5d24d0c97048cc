r"""Where an oracle begins: a pool of starts from several sources, scored in one batch.

Gradients do not find what lies far away; starts do. The pool holds

- *residual draws*: points drawn from an inflated $q$, chosen with probability $\propto p / q_\text{inflated}$ and
  the residual $\log p - \log q$ there, with the scale of the component they came from;
- *modes*: ends of L-BFGS runs on $\log p$ from points scattered over many widths, with the curvature found there;
- *initial points*: what the user gave (the example, `init`, prior draws);
- *random points*: standard normal around the origin, as in the paper's own code (none by default).

A start's score is the gain of the best step towards it, $\max_\gamma \mathrm{ELBO}((1-\gamma) q + \gamma s) -
\mathrm{ELBO}(q)$ over a grid of $\gamma$: far modes of small mass and near corrections are measured by one yardstick.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from relbo.budgets import FEW
from relbo.mixture import Mixture, draw_each, joined, locations_of, log_densities, log_mixture
from relbo.model.door import Door
from relbo.objectives.residual import after_step
from relbo.oracles.cloud import Cloud
from relbo.oracles.modes import placed_members, to_whitened
from relbo.runtime.compiling import compiled, host_random, host_split

_LOG_STEPS = np.log(2.0) * -np.arange(1, 13)  # gamma from 1/2 to 2^-12
_INFLATION = 1.5  # reaches beyond the tails of q, and still meets p in tens of dimensions
_SCORED = 512
"""Draws of the mixture against which starts are scored."""


class Starts(eqx.Module):
    """How many starts of each kind the pool holds, and how many draws score each."""

    num_residual: int = eqx.field(static=True, default=FEW.num_residual)
    num_modes: int = eqx.field(static=True, default=FEW.num_walks)
    num_initial: int = eqx.field(static=True, default=FEW.num_initial)
    num_random: int = eqx.field(static=True, default=0)
    num_draws: int = eqx.field(static=True, default=FEW.start_draws)

    def __check_init__(self):
        if self.size < 1:
            raise ValueError("Starts must hold at least one start: raise num_residual, num_modes or num_initial.")

    @property
    def size(self) -> int:
        return self.num_residual + self.num_modes + self.num_initial + self.num_random

    @property
    def needs_no_choice(self) -> bool:
        """Whether the pool is one start, known before anything is drawn from the mixture."""
        return self.size == 1 and not self.num_residual

    def best(self, key, door: Door, cloud: Cloud, modes: PyTree, num: int, iteration) -> PyTree:
        """`num` starts of the pool, stacked: the best and most different ones, and up to two thirds residual draws.

        Scores are noisy where little is left to gain, and then the chance with which residual draws were made is the
        better guide.
        """
        pool_key, score_key = host_split(key, 2)
        pool = _pool(pool_key, door, cloud, self, modes, iteration)
        if self.needs_no_choice:
            return pool
        gains, _ = score(score_key, door, cloud, pool, self.num_draws)
        num_residual = min(self.num_residual, 2 * num // 3)
        first_residual = self.num_modes  # the order of `_pool`
        chosen = choose_diverse(cloud, pool, gains, num - num_residual, 0.5 * door.dim)
        chosen = np.append(chosen, first_residual + np.arange(num_residual))
        return jax.tree.map(lambda leaf: leaf[np.resize(chosen, num)], pool)


@partial(compiled, runs_once=True)
def _moved(family, params, points, log_widths):
    return jax.vmap(family.move)(params, points, log_widths)


def _pool(key, door: Door, cloud: Cloud, starts: Starts, modes: PyTree, iteration) -> PyTree:
    """All starts, stacked, modes first. Over the iterations all initial points have their turn."""

    def units(points):
        return placed_members(cloud.mixture.family, points, np.ones_like(points))

    parts = [modes] if starts.num_modes else []
    if starts.num_residual:
        parts.append(_residual_starts(key, door, cloud, starts.num_residual))
    if starts.num_initial:
        initial = np.asarray(door.target.target.initial)
        turn = (iteration * starts.num_initial + np.arange(starts.num_initial)) % len(initial)
        parts.append(units(to_whitened(door, initial[turn])))
    if starts.num_random:
        parts.append(units(_random_points(jax.random.fold_in(key, 1), starts.num_random, door.dim, door.dtype)))
    return joined(*parts)


@compiled
def _random_points(key, num, dim, dtype):
    return jax.random.normal(key, (num, dim), dtype)


def _residual_starts(key, door: Door, cloud: Cloud, num: int) -> PyTree:
    mixture, family = cloud.mixture, cloud.mixture.family
    rng = host_random(key)
    each = max(1, min(cloud.num_each, _SCORED // cloud.num_components))
    slots = np.repeat(np.arange(cloud.num_components), each)
    locations = np.asarray(locations_of(family, mixture.params))
    # A draw moved away from its component's location is a draw of the inflated component.
    inner = cloud.points[:, :each].reshape(len(slots), -1)
    points = (locations[slots] + _INFLATION * (inner - locations[slots])).astype(door.dtype)
    log_p, _ = door.numbers(points, "starts")
    log_widen = np.full(mixture.capacity, np.log(_INFLATION), door.dtype)
    wide = _moved(family, mixture.params, locations, log_widen)
    log_q = log_mixture(log_densities(family, mixture.params, points), cloud.weights)
    log_wide = log_mixture(log_densities(family, wide, points), cloud.weights)
    with np.errstate(invalid="ignore"):
        residual = log_p - log_q
        residual = np.where(np.isfinite(residual), residual, np.nan)
        mean = np.nanmean(residual) if np.isfinite(residual).any() else 0.0
        excess = np.log(np.maximum(residual - mean, 1e-3))
        log_chance = np.log(cloud.weights[slots]) + log_p - log_wide + excess
    log_chance = np.where(np.isfinite(log_chance), log_chance, -np.inf)
    if not np.isfinite(log_chance).any():
        log_chance = np.log(cloud.weights[slots])
    picked = np.argmax(log_chance + rng.gumbel(size=(num, len(slots))), axis=1)
    log_widths = np.linspace(-1.0, 0.4, 5)[np.arange(num) % 5].astype(door.dtype)  # the picks are in random order
    members = jax.tree.map(lambda leaf: np.asarray(leaf)[slots[picked]], mixture.params)
    return _moved(family, members, points[picked], log_widths)


def score(key, door: Door, cloud: Cloud, members: PyTree, num_draws: int) -> tuple[np.ndarray, "OwnDraws"]:
    """The gain of the best step towards each of a stack of members, NaN where most of its draws are not finite.

    Each is scored by draws of its own and by the cloud's.
    """
    own = draw_own(key, door, cloud, members, num_draws)
    each = max(1, min(cloud.num_each, _SCORED // cloud.num_components))
    shares = cloud.shares[:, :each].reshape(-1)
    shares = shares / max(shares.sum(), np.finfo(float).tiny)
    used = shares > 0
    there_p, there_q = (part[:, :each].reshape(-1)[used] for part in (cloud.log_p, cloud.log_q))
    points = cloud.points[:, :each].reshape(-1, door.dim)[used]
    there_s = log_densities(cloud.mixture.family, members, points).T
    shares = shares[used]
    before = float(shares @ (there_p - there_q))
    gains = np.full(len(own.log_p), np.nan)
    solid = np.isfinite(own.log_p).mean(axis=1) > 0.5
    for log_step in _LOG_STEPS:
        step, log_rest = np.exp(log_step), np.log1p(-np.exp(log_step))
        with np.errstate(invalid="ignore"):
            there = after_step(there_p, there_q, there_s, log_rest, log_step, np) @ shares
            values = after_step(own.log_p, own.log_q, own.log_s, log_rest, log_step, np)
        count = np.isfinite(values).sum(axis=1)
        mean = np.where(np.isfinite(values), values, 0.0).sum(axis=1) / np.maximum(count, 1)
        gains = np.fmax(gains, np.where(solid, (1 - step) * there + step * mean - before, np.nan))
    return gains, own


class OwnDraws(NamedTuple):
    """Log densities at draws of each of a stack of members, (stack, num)."""

    log_p: np.ndarray
    log_q: np.ndarray
    log_s: np.ndarray
    """Of the member itself."""
    log_each: np.ndarray
    """(stack, num, capacity): of every slot of the mixture."""


def draw_own(
    key, door: Door, cloud: Cloud, members: PyTree, num_draws: int, mixture: Mixture | None = None
) -> OwnDraws:
    """Draw from members, and evaluate: `log_each` for the slots of `mixture`, by default those of the cloud's."""
    old, num = cloud.mixture, jax.tree.leaves(members)[0].shape[0]
    shape = (num, num_draws)
    flat = draw_each(key, Mixture(old.family, members, np.zeros(num, door.dtype)), num_draws).reshape(-1, door.dim)
    log_s = log_densities(old.family, members, flat).reshape(*shape, num)[np.arange(num), :, np.arange(num)]
    log_each = log_densities(old.family, (mixture or old).params, flat).reshape(*shape, -1)
    log_p, _ = door.numbers(flat, "starts" if mixture is None else "weights")
    return OwnDraws(log_p.reshape(shape), log_mixture(log_each, cloud.weights), log_s, log_each)


def choose_diverse(cloud: Cloud, members: PyTree, scores: np.ndarray, num: int, nats: float) -> np.ndarray:
    """The best members, each where those chosen before it are `nats` below their peaks; then whatever is best."""
    locations = np.asarray(locations_of(cloud.mixture.family, members))
    cross = log_densities(cloud.mixture.family, members, locations)  # [at, of]
    peaks = np.diagonal(cross)
    ranked = np.argsort(-np.where(np.isfinite(scores), scores, -np.inf), kind="stable")
    chosen: list[int] = []
    rest: list[int] = []
    for member in ranked:
        near = any(cross[member, other] > peaks[other] - nats for other in chosen)
        (rest if near else chosen).append(int(member))
    return np.asarray((chosen + rest)[:num], int)

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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from relbo._compiled import compiled, host_split
from relbo.ascent.base import masked_mean
from relbo.budgets import FEW, budget
from relbo.families import DENSE_LIMIT
from relbo.mixture import Mixture, after, map_chunks
from relbo.precondition import Whitened, curvature, curvature_evaluations, scattered, walk, walk_evaluations

_LOG_STEPS = np.log(2.0) * -np.arange(1, 13)  # gamma from 1/2 to 2^-12
_INFLATION = 1.5


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


def find_modes(key: Key[Array, ""], target: Whitened, family, starts: Starts) -> PyTree:
    """Members of the family at the ends of L-BFGS runs from scattered points, with the curvature there.

    Half of the points lie in the model's own coordinates, around the example at widths from 0.3 to 30, the others in
    whitened ones, around the origin at widths from 1 to 300: what is far away is sought on the scale of the model and
    on that of the mode already found.
    """
    walk_key, curvature_key = host_split(key, 2)
    own = np.arange(starts.num_modes) % 2 == 0
    example = np.asarray(target.target.initial)[0]
    centers = np.where(own[:, None], example, np.zeros_like(example))
    log_widths = np.where(own, -0.5, 0.5).astype(target.dtype)
    if not target.differentiable:
        return _scattered_members(walk_key, target, family, centers, log_widths, own)
    ends = np.asarray(walk(walk_key, target, centers, log_widths, own))[:, -1]
    if target.dim > DENSE_LIMIT:
        return _members(family, ends, None)
    return _members(family, ends, curvature(curvature_key, target, ends)[0])


@partial(compiled, runs_once=True)
def _members(family, points, factors):
    if factors is None:
        return jax.vmap(lambda point: family.init(point, 0.5 * jnp.ones_like(point)))(points)

    def member(point, factor):
        eye = jnp.eye(point.shape[0], dtype=point.dtype)
        return family.init(point, jnp.where(jnp.all(jnp.isfinite(factor)), factor, 0.1 * eye))

    return jax.vmap(member)(points, factors)


@partial(compiled, runs_once=True)
def _scattered_members(key, target, family, centers, log_widths, own):
    """Without gradients nothing walks: unit members where the walks would begin."""
    points = scattered(key, centers, log_widths)

    def member(point, is_own):
        return family.init(jnp.where(is_own, target.whiten(point), point), jnp.ones_like(point))

    return jax.vmap(member)(points, own)


def mode_evaluations(target: Whitened, starts: Starts) -> int:
    """Gradient evaluations of `find_modes`."""
    if not target.differentiable:
        return 0
    curved = curvature_evaluations(starts.num_modes, target.dim) if target.dim <= DENSE_LIMIT else 0
    return walk_evaluations(starts.num_modes) + curved


def start_pool(
    key: Key[Array, ""],
    target: Whitened,
    mixture: Mixture,
    starts: Starts,
    modes: PyTree,
    draws: "Draws | None",
    iteration,
) -> PyTree:
    """All starts, stacked. `draws` are draws of the mixture; over the iterations all initial points have their turn."""

    def unit(point):
        return mixture.family.init(point, jnp.ones_like(point))

    parts = [modes] if starts.num_modes else []
    if starts.num_residual and draws is not None:
        parts.append(_residual_starts(key, target, mixture, starts.num_residual, draws))
    if starts.num_initial:
        turn = (iteration * starts.num_initial + jnp.arange(starts.num_initial)) % target.target.initial.shape[0]
        parts.append(jax.vmap(unit)(target.initial[turn]))
    if starts.num_random:
        random_key = jax.random.fold_in(key, 1)
        parts.append(jax.vmap(unit)(jax.random.normal(random_key, (starts.num_random, target.dim), target.dtype)))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def pool_evaluations(starts: Starts, dim: int) -> int:
    """Evaluations of making and scoring a pool (values only)."""
    if starts.needs_no_choice:
        return 0
    return starts.size * starts.num_draws + (2 if starts.num_residual else 1) * budget(dim).pool_draws


def _residual_starts(key, target, mixture, num, draws: "Draws"):
    family = mixture.family
    log_inflation = jnp.log(jnp.asarray(_INFLATION, mixture.dtype))
    inflated = jax.vmap(lambda p: family.move(p, family.location(p), log_inflation))(mixture.params)
    wide = eqx.tree_at(lambda m: m.params, mixture, inflated)
    each = draws.points.shape[0] // mixture.capacity
    slots = jnp.arange(draws.points.shape[0]) // each
    # A draw moved away from its component's location is a draw of the inflated component.
    locations = jax.vmap(family.location)(mixture.params)[slots]
    points = after(draws.log_p, locations + _INFLATION * (draws.points - locations))
    log_p, log_q, log_wide = jax.vmap(lambda z: (target.log_density(z), mixture.log_prob(z), wide.log_prob(z)))(points)
    residual = jnp.where(mixture.active[slots], log_p - log_q, jnp.nan)
    excess = jnp.log(jnp.maximum(residual - masked_mean(residual), 1e-3))
    log_chance = mixture.log_weights[slots] + log_p - log_wide + excess
    log_chance = jnp.where(jnp.isfinite(log_chance), log_chance, -jnp.inf)
    log_chance = jnp.where(jnp.any(jnp.isfinite(log_chance)), log_chance, mixture.log_weights[slots])
    picked = jax.random.categorical(key, log_chance, shape=(num,))
    log_widths = jnp.linspace(-1.0, 0.4, 5, dtype=mixture.dtype)[jnp.arange(num) % 5]  # the picks are in random order

    def start(pick, log_width):
        return family.move(mixture.component(slots[pick]), points[pick], log_width)

    return jax.vmap(start)(picked, log_widths)


class Draws(eqx.Module):
    """Stratified draws of the mixture with log p and log q there, shared by all scores."""

    points: Float[Array, "num dim"]
    weights: Float[Array, " num"]
    log_p: Float[Array, " num"]
    log_q: Float[Array, " num"]


def mixture_draws(key: Key[Array, ""], target: Whitened, mixture: Mixture, known: Array | None = None) -> Draws:
    """As many as the budget has; those not finite get weight zero. See `mixture.after` for `known`."""
    each = max(1, budget(target.dim).pool_draws // mixture.capacity)
    points = mixture.sample_stratified(key, each).reshape(-1, target.dim)
    points = points if known is None else after(known, points)
    weights = jnp.repeat(jnp.exp(mixture.log_weights) / each, each)
    log_p, log_q = jax.vmap(lambda z: (target.log_density(z), mixture.log_prob(z)))(points)
    finite = jnp.isfinite(log_p) & jnp.isfinite(log_q)
    weights = jnp.where(finite, weights, 0.0)
    return Draws(points, weights / weights.sum(), jnp.where(finite, log_p, 0.0), jnp.where(finite, log_q, 0.0))


class Score(eqx.Module):
    """The gain of the best step towards a component, NaN where most of its draws are not finite; and at those draws:"""

    gain: Float[Array, ""]
    log_p: Float[Array, " num"]
    log_q: Float[Array, " num"]
    log_s: Float[Array, " num"]


def score(
    key: Key[Array, ""], target: Whitened, mixture: Mixture, draws: Draws, params: PyTree, num_draws: int
) -> Score:
    """Score each of a stack of components with `num_draws` draws of its own, and the mixture's `draws`.

    All draw by the same key: with common random numbers the better of two is told more surely.
    """

    def one_score(one):
        own = mixture.family.sample(key, one, num_draws)
        own_p, own_q = jax.vmap(lambda z: (target.log_density(z), mixture.log_prob(z)))(own)
        log_s = jax.vmap(lambda z: mixture.family.log_prob(one, z))(jnp.concatenate([own, draws.points]))
        own_s, there_s = log_s[:num_draws], log_s[num_draws:]

        def after(log_step):
            log_rest = jnp.log1p(-jnp.exp(log_step))
            there = draws.log_p - jnp.logaddexp(log_rest + draws.log_q, log_step + there_s)
            own_values = own_p - jnp.logaddexp(log_rest + own_q, log_step + own_s)
            share = jnp.isfinite(own_values).mean()
            own_mean = jnp.where(share > 0.5, masked_mean(own_values), jnp.nan)
            return (1 - jnp.exp(log_step)) * jnp.sum(draws.weights * there) + jnp.exp(log_step) * own_mean

        before = jnp.sum(draws.weights * (draws.log_p - draws.log_q))
        gain = jnp.max(jax.vmap(after)(jnp.asarray(_LOG_STEPS, mixture.dtype))) - before
        return Score(gain, own_p, own_q, own_s)

    return map_chunks(one_score, params, 16)


def best_starts(keys, target: Whitened, mixture: Mixture, starts: Starts, modes: PyTree, num: int, iteration) -> PyTree:
    """`num` starts of the pool, stacked: the best and most different ones, and up to two thirds residual draws.

    Scores are noisy where little is left to gain, and then the chance with which residual draws were made is the better
    guide. `keys` are three: every split inside a program is a random generator more to compile.
    """
    pool_key, draw_key, score_key = keys
    if starts.needs_no_choice:
        return start_pool(pool_key, target, mixture, starts, modes, None, iteration)
    draws = mixture_draws(draw_key, target, mixture)
    pool = start_pool(pool_key, target, mixture, starts, modes, draws, iteration)
    gains = score(score_key, target, mixture, draws, pool, starts.num_draws).gain
    num_residual = min(starts.num_residual, 2 * num // 3)
    first_residual = starts.num_modes  # the order of `start_pool`
    chosen = jnp.append(
        choose_diverse(mixture.family, pool, gains, num - num_residual),
        first_residual + jnp.arange(num_residual),
    )
    return jax.tree.map(lambda leaf: leaf[chosen], pool)


def choose_diverse(family, params: PyTree, scores: Float[Array, " num"], num_chosen: int) -> Int[Array, " num_chosen"]:
    """The best starts, each outside the bulk of those chosen before it (as far as there are any)."""
    locations = jax.vmap(family.location)(params)
    dim = locations.shape[1]
    ranked = jnp.where(jnp.isfinite(scores), scores, -jnp.inf)

    def pick(available, _):
        best = jnp.argmax(available)
        chosen = jax.tree.map(lambda leaf: leaf[best], params)
        peak = family.log_prob(chosen, family.location(chosen))
        # For a normal, within the radius sqrt(dim): the log density is less than dim / 2 below its peak.
        near = jax.vmap(lambda loc: family.log_prob(chosen, loc))(locations) > peak - 0.5 * dim
        return jnp.where(near.at[best].set(True), available - 1e6, available), best

    return jax.lax.scan(pick, ranked, length=num_chosen)[1]

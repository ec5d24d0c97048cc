r"""The affine map found before boosting: everything after runs in coordinates $u$ with $z = m + A u$.

The map is the best single normal found by a race. Its runners are the unit normal at the starting point, narrower ones,
and normals with the curvature of the target at the points of L-BFGS paths from several starts (the ends are modes;
the points before them are Pathfinder's candidates, which matter where the mode is a bad place to stand: a funnel, a
hierarchical model). Each runs a short natural-gradient ascent, and the best ELBO wins.
"""

import functools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from relbo._compiled import compiled, host_split
from relbo.ascent import GradientAscent, NaturalAscent, kept_steps, lbfgs_evaluations, lbfgs_path, map_walks
from relbo.ascent.curvature import laplace_factor, softest
from relbo.budgets import FEW, budget
from relbo.choices import choose_name
from relbo.families import DENSE_LIMIT, Box, Cholesky, Diagonal, LocationScale, LocationScaleParams, LowRank, Normal
from relbo.families.scale import LowRankParams
from relbo.mixture import empty_mixture, map_chunks
from relbo.objectives import ELBO, AbstractEstimator
from relbo.targets import AbstractTarget, AbstractWrapper, anchored
from relbo.targets.minibatch import Anchored

_BOX = Box(loc=1e12, log_scale=27.0)  # a component of the race that ends here has run away
_KINDS = ("auto", "dense", "low_rank", "diagonal", "none")
_WALK_STEPS = 100
_KEPT = 4
_SCORE_DRAWS = 64
_TILTS = (1.0, 0.5, 0.0)
_SOFTEST = 1e-4  # the least curvature that a tilt believes
_NEAR = 0.1  # standard deviations between the gradients whose difference is a curvature
_ANCHORINGS = 2
"""A walk on a minibatch ends sqrt(N / n) posterior widths from the mode; anchored there, the next one ends near it."""


class Preconditioner(eqx.Module):
    """Settings of the race. `kind`: dense up to 256 dimensions and low rank beyond ("auto"), or as named."""

    kind: str = eqx.field(static=True, default="auto")
    num_steps: int = eqx.field(static=True, default=200)
    num_draws: int = eqx.field(static=True, default=FEW.ascent_draws)

    def __check_init__(self):
        choose_name("precondition", self.kind, _KINDS)


class Whitened(AbstractWrapper):
    r"""The target in whitened coordinates: $\log p(m + A u) + \log|\det A|$, so that ELBOs need no correction."""

    target: AbstractTarget
    family: LocationScale
    params: LocationScaleParams

    def __init__(self, target: AbstractTarget, family: LocationScale, params: LocationScaleParams):
        self.target, self.family, self.params = target, family, params

    @property
    def initial(self):
        return jax.vmap(self.whiten)(self.target.initial)

    def subsample(self, key):
        return Whitened(self.target.subsample(key), self.family, self.params)

    def with_target(self, target: AbstractTarget) -> "Whitened":
        """The same coordinates, and the same anchor, for another target of the same shape (new data)."""
        point = self.target.point if isinstance(self.target, Anchored) else self.params.loc
        return Whitened(anchored(target, point), self.family, self.params)

    def log_density(self, u):
        return self.target.log_density(self.unwhiten(u)) + self.log_det()

    def constrain(self, u):
        return self.target.constrain(self.unwhiten(u))

    def unconstrain(self, params):
        return self.whiten(self.target.unconstrain(params))

    def log_likelihood(self, u):
        return self.target.log_likelihood(self.unwhiten(u))

    def whiten(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.family.scale.solve(self.params.scale, z - self.params.loc)

    def unwhiten(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.family.transport(self.params, u)

    def log_det(self) -> Float[Array, ""]:
        return self.family.scale.log_det(self.params.scale)


def identity_map(target: AbstractTarget, kind: str) -> Whitened:
    """Coordinates shifted to the starting point, not scaled."""
    family = LocationScale(Normal(), _scale_of(kind, target.dim), _BOX)
    target = anchored(target, target.initial[0])
    return Whitened(target, family, _unit_member(family, np.asarray(target.initial)[0]))


@partial(compiled, runs_once=True)
def _unit_member(family, loc):
    return family.init(loc, jnp.ones_like(loc))


def find_map(
    key: Key[Array, ""], target: AbstractTarget, settings: Preconditioner, estimator: AbstractEstimator
) -> tuple[Whitened, int]:
    """The whitened target, and the number of evaluations spent. Raises ValueError for an improper target."""
    start = identity_map(target, settings.kind)
    if settings.kind == "none":
        return start, 0
    runner_key, race_key, low_rank_key = host_split(key, 3)
    runners, num_path = _runners(runner_key, target, estimator.needs_gradient)
    for walk_again in range(_ANCHORINGS if target.subsamples else 0):
        target = anchored(target, runners[0][-1])  # the best end of a walk
        runners, more = _runners(jax.random.fold_in(runner_key, walk_again), target, estimator.needs_gradient)
        num_path += more
    draws = settings.num_draws if estimator.needs_gradient else max(256, 8 * target.dim)
    target = anchored(target, runners[0][-1])
    ascent = NaturalAscent(settings.num_steps, draws, step_size=budget(target.dim).step_size)
    scale = Cholesky() if isinstance(start.family.scale, Cholesky) else Diagonal()
    family = LocationScale(Normal(), scale, _BOX)
    winner, best = _race(race_key, target, family, ascent, estimator, runners)
    evaluations = num_path + runners[0].shape[0] * (settings.num_steps * draws + _SCORE_DRAWS)
    if target.dim > DENSE_LIMIT and estimator.needs_gradient:
        slow, first = _slow_ascent(), tuple(part[:1] for part in runners)
        other, score = _race(race_key, target, family, slow, estimator, first)
        winner = other if score > best else winner
        evaluations += slow.num_steps * slow.num_draws + _SCORE_DRAWS
    check_proper(target, family, winner)
    whitened = Whitened(anchored(target, winner.loc), family, winner)
    if isinstance(start.family.scale, LowRank):
        draws = settings.num_draws if estimator.needs_gradient else 0
        whitened = _tilted(low_rank_key, whitened, draws)
        evaluations += 2 * draws * _tilt_steps(target.dim) + len(_TILTS) * _SCORE_DRAWS
    return whitened, evaluations


def _scale_of(kind, dim):
    if kind == "auto":
        kind = "dense" if dim <= DENSE_LIMIT else "low_rank"
    return {"dense": Cholesky(), "low_rank": LowRank(budget(dim).rank), "diagonal": Diagonal(), "none": Diagonal()}[
        kind
    ]


def _runners(key, target, differentiable):
    """Locations and factors of the normals that start the race, and the evaluations spent."""
    dim = target.dim
    widths = np.asarray([1.0, 0.1, 10.0][: budget(dim).num_widths], target.dtype)
    points = np.repeat(np.asarray(target.initial)[:1], len(widths), axis=0)
    if not differentiable:
        return (points, np.repeat(widths[:, None], dim, axis=1)), 0
    locs, factors, cost = _curved(key, identity_map(target, "dense" if dim <= DENSE_LIMIT else "diagonal"))
    if factors is None:
        factors = np.concatenate([widths, np.full(locs.shape[0], 0.1, target.dtype)])
        return (np.concatenate([points, locs]), np.repeat(factors[:, None], dim, axis=1)), cost
    plain = widths[:, None, None] * np.eye(dim, dtype=target.dtype)
    return (np.concatenate([points, locs]), np.concatenate([plain, factors])), cost


def _curved(key, target: Whitened):
    """Locations and factors (None in many dimensions) of runners from walks that start at and around the first point.

    The normals with the target's curvature that have the best ELBO among the points of several paths, and the best of
    those at an end.
    """
    walk_key, score_key = host_split(key, 2)
    # As many as the oracle's modes by default, so that both run the same programs.
    num_walks, num_curved = budget(target.dim).num_walks, budget(target.dim).num_curved
    initial = np.asarray(target.target.initial)[:num_walks]
    num_around = num_walks - initial.shape[0]
    centers = np.concatenate([initial, np.repeat(initial[:1], num_around, axis=0)])
    log_widths = np.append(np.full(initial.shape[0], -np.inf), np.full(num_around, -1.0)).astype(target.dtype)
    own = np.ones(num_walks, bool)
    paths = np.asarray(walk(walk_key, target, centers, log_widths, own))
    if target.dim > DENSE_LIMIT:
        ends = paths[:, -1]
        heights = np.asarray(_heights(target, ends))
        best = np.argsort(-np.where(np.isfinite(heights), heights, -np.inf), kind="stable")[:num_curved]
        return initial[0] + ends[best], None, walk_evaluations(num_walks)
    points = paths[: num_walks // _KEPT].reshape(num_walks, target.dim)
    factors, scores = (np.asarray(part) for part in curvature(score_key, target, points))
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    at_end = np.arange(num_walks) % _KEPT == _KEPT - 1
    best = np.argsort(-scores, kind="stable")[: num_curved - 1]
    chosen = np.append(best, np.argmax(np.where(at_end, scores, -np.inf)))
    usable = np.isfinite(scores[chosen])
    locs = initial[0] + np.where(usable[:, None], points[chosen], 0.0).astype(target.dtype)
    factors = np.where(usable[:, None, None], factors[chosen], np.eye(target.dim, dtype=target.dtype))
    return locs, factors, walk_evaluations(num_walks) + curvature_evaluations(num_walks, target.dim)


@partial(compiled, runs_once=True)
def walk(key, target: Whitened, centers, log_widths, own) -> Float[Array, "num kept dim"]:
    """L-BFGS paths, at a few of their steps up to the last, in whitened coordinates.

    They begin at points `scattered` around `centers`. Those that are `own` begin, and walk, in the model's coordinates,
    the others in whitened ones: a far mode need not look round in the coordinates of another.
    """

    now = target.subsample(key)

    def one(start):
        point, is_own = start

        def height(at):
            return now.target.log_density(jnp.where(is_own, at, target.unwhiten(at)))

        path = lbfgs_path(height, point, _WALK_STEPS)[kept_steps(_WALK_STEPS, _KEPT)]
        return jnp.where(is_own, jax.vmap(target.whiten)(path), path)

    return map_walks(one, (scattered(key, centers, log_widths), own), now.points_at_once)


def scattered(key, centers: Float[Array, "num dim"], log_widths: Float[Array, " num"]) -> Float[Array, "num dim"]:
    """Points around `centers`, at widths of up to two orders of magnitude from `10**log_widths` on."""
    num, dim = centers.shape
    noise = jax.random.normal(key, (num, dim + 1), centers.dtype)
    powers = log_widths + 2 * jax.scipy.special.ndtr(noise[:, dim])
    return centers + 10 ** powers[:, None] * noise[:, :dim]


@partial(compiled, runs_once=True)
def curvature(key, target: Whitened, points):
    """Laplace factors at points, and the ELBOs of the normals that they make."""
    noise = jax.random.normal(key, (_SCORE_DRAWS, target.dim), target.dtype)

    now = target.subsample(key)

    def at(point):
        factor = laplace_factor(now.log_density, point, target.twice_differentiable)
        values = jax.vmap(now.log_density)(point + noise @ factor.T)
        return factor, values.mean() + jnp.sum(jnp.log(jnp.diagonal(factor)))

    return map_chunks(at, points, max(1, min(2048, now.points_at_once) // target.dim))


@partial(compiled, runs_once=True)
def _heights(target, points):
    return jax.vmap(target.log_density)(points)


def walk_evaluations(num: int) -> int:
    return lbfgs_evaluations(num, _WALK_STEPS)


def curvature_evaluations(num: int, dim: int) -> int:
    return num * (dim + _SCORE_DRAWS)


@partial(compiled, runs_once=True)
def _race(key, target, family, ascent, estimator, runners):
    """Run every runner, and return the parameters of the best, and its ELBO."""
    run_key, score_key = jax.random.split(key)
    nothing = empty_mixture(family, target.dim, 1, target.dtype)
    params = jax.vmap(family.init)(*runners)
    params = ascent.improve(run_key, target, nothing, ELBO(), estimator, params, jnp.asarray(0)).params

    def score(one):
        draws = family.sample(score_key, one, _SCORE_DRAWS)
        return jnp.mean(jax.vmap(lambda z: now.log_density(z) - family.log_prob(one, z))(draws))

    now = target.subsample(score_key)
    scores = jax.vmap(score)(params)
    scores = jnp.where(jnp.isfinite(scores), scores, -jnp.inf)
    best = jnp.argmax(scores)
    return jax.tree.map(lambda leaf: leaf[best], params), scores[best]


@functools.cache
def _slow_ascent() -> GradientAscent:
    """Two thousand small steps of Adam. In many dimensions, where natural steps with a diagonal scale follow the target
    into the nearest valley, a wide normal that shrinks slowly often ends in a better one."""
    # A short memory (b2): the first gradients, of a normal that is far too wide, are huge.
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 2000, alpha=0.01), b2=0.99)
    return GradientAscent(2000, 2, optimizer=optimizer)


@partial(compiled, runs_once=True)
def _tilted(key, whitened, num_draws):
    r"""Low rank + diagonal: the diagonal map stretched along the directions in which the target is wider than it.

    In the diagonally whitened coordinates the mean curvature $P$ of $-\log p$ under the fitted normal has a diagonal of
    ones. An eigenvalue $\lambda < 1$ costs $(\lambda - 1 - \log \lambda) / 2$ nats, all of which stretching by
    $\lambda^{-1/2}$ along its eigenvector wins back. Where $p$ is not normal that may be too much, so half of it (in
    the exponent) and nothing compete, by their ELBOs.
    """
    dim, dtype = whitened.dim, whitened.dtype
    rank = min(budget(dim).rank, dim)
    curve_key, score_key = jax.random.split(key)
    now = whitened.subsample(key)
    noise = jax.random.normal(score_key, (_SCORE_DRAWS, dim), dtype)
    if num_draws:
        values, vectors = softest(_mean_curvature(curve_key, now, num_draws), dim, rank, _tilt_steps(dim), dtype)
    else:
        values, vectors = jnp.ones(rank, dtype), jnp.zeros((dim, rank), dtype)
    widths = jnp.maximum(1.0, 1 / jnp.sqrt(jnp.maximum(jnp.abs(values), _SOFTEST)))
    family = LocationScale(Normal(), LowRank(rank), _BOX)

    def member(power):
        tilt = vectors * jnp.sqrt(widths**power - 1)
        return LocationScaleParams(jnp.zeros(dim, dtype), LowRankParams(jnp.zeros(dim, dtype), tilt), ())

    def score(power):
        one = member(power)
        heights = jax.vmap(lambda e: now.log_density(family.transport(one, e)))(noise)
        return jnp.mean(heights) + family.scale.log_det(one.scale)

    powers = jnp.asarray(_TILTS, dtype)
    scores = jax.vmap(score)(powers)
    best = powers[jnp.argmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf))]
    scale = LowRankParams(whitened.params.scale, member(best).scale.tilt)
    return Whitened(whitened.target, family, LocationScaleParams(whitened.params.loc, scale, ()))


def _tilt_steps(dim: int) -> int:
    """Lanczos steps: a few for every direction sought, and some more."""
    return min(dim, 3 * budget(dim).rank + 20)


def _mean_curvature(key, target, num_draws):
    """The product of a vector with the mean of -hess log p over draws of the standard normal."""
    half = jax.random.normal(key, ((num_draws + 1) // 2, target.dim), target.dtype)
    points = jnp.concatenate([half, -half])
    slope = jax.grad(target.log_density)

    def times(vector):
        if target.twice_differentiable:
            along = jax.vmap(lambda at: jax.jvp(slope, (at,), (vector,))[1])(points)
        else:
            both = jax.vmap(slope)(jnp.concatenate([points + _NEAR * vector, points - _NEAR * vector]))
            along = (both[: len(points)] - both[len(points) :]) / (2 * _NEAR)
        return -jnp.mean(jnp.where(jnp.isfinite(along), along, 0.0), axis=0)

    return times


def check_proper(target: AbstractTarget, family: LocationScale, params: LocationScaleParams) -> None:
    """Refuse a target whose log density does not fall off along some direction from the fitted normal."""
    falls, directions = (np.asarray(part) for part in _falls(target, family, params))
    flat = np.argmin(falls)
    if falls[flat] > 0:
        return
    direction = np.abs(directions[flat])
    names = target.coordinate_names()
    worst = [names[i] for i in np.argsort(-direction)[:3].tolist() if direction[i] > 0.1 * direction.max()]
    raise ValueError(
        "The log density is improper: it does not fall off in the direction of "
        f"{', '.join(worst)} (a million standard deviations away it is as high as at the center). "
        "Give that parameter a proper prior, or fix it."
    )


@partial(compiled, runs_once=True)
def _falls(target, family, params):
    r"""By how much the log density falls, beyond what $|x|^{-1/2}$ would, along the widest directions."""
    dim, dtype = target.dim, target.dtype
    num_axes = min(dim, 64)
    if isinstance(family.scale, Cholesky):
        lower = jax.vmap(lambda e: family.scale.apply(params.scale, e), out_axes=1)(jnp.eye(dim, dtype=dtype))
        spread = jnp.linalg.norm(lower, axis=1)
        principal = (jnp.linalg.svd(lower)[0] * jnp.linalg.svd(lower, compute_uv=False)).T[: min(dim, 8)]
    else:
        spread = jnp.exp(params.scale)
        principal = jnp.zeros((0, dim), dtype)
    widest = jnp.argsort(-spread)[:num_axes]
    axes = jnp.zeros((num_axes, dim), dtype).at[jnp.arange(num_axes), widest].set(spread[widest])
    directions = jnp.concatenate([axes, principal])
    directions = jnp.concatenate([directions, -directions])
    center = target.log_density(params.loc)

    def fall(direction):
        distances = jnp.asarray([1e2, 1e4, 1e6], dtype)
        far = jax.vmap(lambda r: center - target.log_density(params.loc + r * direction) - 0.5 * jnp.log(r))(distances)
        return jnp.where(jnp.isnan(far[-1]), jnp.inf, far[-1])

    falls = map_chunks(fall, directions, min(64, target.points_at_once))
    return falls, directions

r"""The affine map found before boosting: everything after runs in coordinates $u$ with $z = m + A u$.

The map is the best single normal found by a race. Its runners are the unit normal at the starting point, narrower ones,
and normals with the curvature of the target at the points of L-BFGS paths from several starts (the ends are modes;
the points before them are Pathfinder's candidates, which matter where the mode is a bad place to stand: a funnel, a
hierarchical model). Each runs a short natural-gradient ascent, and the best ELBO wins.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from relbo._compiled import compiled
from relbo.ascent import GradientAscent, NaturalAscent, lbfgs_evaluations, lbfgs_paths
from relbo.ascent.curvature import laplace_factor
from relbo.choices import choose_name
from relbo.families import DENSE_LIMIT, Box, Cholesky, Diagonal, LocationScale, LocationScaleParams, LowRank, Normal
from relbo.mixture import empty_mixture, map_chunks
from relbo.objectives import ELBO, AbstractEstimator
from relbo.targets import AbstractTarget

_BOX = Box(loc=1e12, log_scale=27.0)  # a component of the race that ends here has run away
_KINDS = ("auto", "dense", "low_rank", "diagonal", "none")
_LBFGS_STEPS = 60
_LBFGS_STARTS = 16
_KEPT = 4
_NUM_CURVED = 4
_SCORE_DRAWS = 64


class Preconditioner(eqx.Module):
    """Settings of the race. `kind`: dense up to 256 dimensions and low rank beyond ("auto"), or as named."""

    kind: str = eqx.field(static=True, default="auto")
    num_steps: int = eqx.field(static=True, default=200)
    num_draws: int = eqx.field(static=True, default=32)

    def __check_init__(self):
        choose_name("precondition", self.kind, _KINDS)


class Whitened(AbstractTarget):
    r"""The target in whitened coordinates: $\log p(m + A u) + \log|\det A|$, so that ELBOs need no correction."""

    target: AbstractTarget
    family: LocationScale
    params: LocationScaleParams

    def __init__(self, target: AbstractTarget, family: LocationScale, params: LocationScaleParams):
        self.target, self.family, self.params = target, family, params

    @property
    def dim(self):
        return self.target.dim

    @property
    def dtype(self):
        return self.target.dtype

    @property
    def differentiable(self):
        return self.target.differentiable

    @property
    def twice_differentiable(self):
        return self.target.twice_differentiable

    @property
    def initial(self):
        return jax.vmap(self.whiten)(self.target.initial)

    def log_density(self, u):
        return self.target.log_density(self.unwhiten(u)) + self.log_det()

    def constrain(self, u):
        return self.target.constrain(self.unwhiten(u))

    def unconstrain(self, params):
        return self.whiten(self.target.unconstrain(params))

    def coordinate_names(self):
        return self.target.coordinate_names()

    def whiten(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.family.scale.solve(self.params.scale, z - self.params.loc)

    def unwhiten(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.family.transport(self.params, u)

    def log_det(self) -> Float[Array, ""]:
        return self.family.scale.log_det(self.params.scale)


def identity_map(target: AbstractTarget, kind: str) -> Whitened:
    """Coordinates shifted to the starting point, not scaled."""
    family = LocationScale(Normal(), _scale_of(kind, target.dim), _BOX)
    return Whitened(target, family, family.init(target.initial[0], jnp.ones(target.dim, target.dtype)))


def find_map(
    key: Key[Array, ""], target: AbstractTarget, settings: Preconditioner, estimator: AbstractEstimator
) -> tuple[Whitened, int]:
    """The whitened target, and the number of evaluations spent. Raises ValueError for an improper target."""
    start = identity_map(target, settings.kind)
    if settings.kind == "none":
        return start, 0
    runner_key, race_key, low_rank_key = jax.random.split(key, 3)
    runners, num_path = _runners(runner_key, target, estimator.needs_gradient)
    draws = settings.num_draws if estimator.needs_gradient else max(256, 8 * target.dim)
    ascent = NaturalAscent(settings.num_steps, draws)
    scale = Cholesky() if isinstance(start.family.scale, Cholesky) else Diagonal()
    family = LocationScale(Normal(), scale, _BOX)
    winner = _race(race_key, target, family, ascent, estimator, runners)
    evaluations = num_path + runners[0].shape[0] * (settings.num_steps * draws + _SCORE_DRAWS)
    check_proper(target, family, winner)
    whitened = Whitened(target, family, winner)
    if isinstance(start.family.scale, LowRank):
        tilt = GradientAscent(num_steps=1000, num_draws=16)
        whitened = _tilted(low_rank_key, whitened, tilt, estimator)
        evaluations += tilt.num_steps * tilt.num_draws
    return whitened, evaluations


def _scale_of(kind, dim):
    if kind == "auto":
        kind = "dense" if dim <= DENSE_LIMIT else "low_rank"
    return {"dense": Cholesky(), "low_rank": LowRank(), "diagonal": Diagonal(), "none": Diagonal()}[kind]


def _runners(key, target, differentiable):
    """Locations and factors of the normals that start the race, and the evaluations spent."""
    point, dim = target.initial[0], target.dim
    widths = jnp.asarray([1.0, 0.1, 10.0], target.dtype)
    points = jnp.repeat(point[None], 3, axis=0)
    if not differentiable:
        return (points, jnp.repeat(widths[:, None], dim, axis=1)), 0
    if dim > DENSE_LIMIT:
        ends = lbfgs_ends(key, target)[:_NUM_CURVED]
        factors = jnp.concatenate([widths, jnp.full(ends.shape[0], 0.1, target.dtype)])
        ends_cost = lbfgs_evaluations(_LBFGS_STARTS, _LBFGS_STEPS)
        return (jnp.concatenate([points, ends]), jnp.repeat(factors[:, None], dim, axis=1)), ends_cost
    locs, factors = _curved(key, target)
    plain = widths[:, None, None] * jnp.eye(dim, dtype=target.dtype)
    cost = lbfgs_evaluations(_LBFGS_STARTS, _LBFGS_STEPS) + _LBFGS_STARTS * _KEPT * (dim + _SCORE_DRAWS)
    return (jnp.concatenate([points, locs]), jnp.concatenate([plain, factors])), cost


def _lbfgs_starts(key, target):
    """The starting points, and points scattered around the first at widths from 0.1 to 10."""
    point_key, width_key = jax.random.split(key)
    widths = 10 ** jax.random.uniform(width_key, (_LBFGS_STARTS, 1), target.dtype, -1, 1)
    scattered = target.initial[0] + widths * jax.random.normal(point_key, (_LBFGS_STARTS, target.dim), target.dtype)
    return jnp.concatenate([target.initial, scattered])[:_LBFGS_STARTS]


@compiled
def lbfgs_ends(key, target):
    paths = lbfgs_paths(target.log_density, _lbfgs_starts(key, target), _LBFGS_STEPS, 1)[:, -1]
    values = jax.vmap(target.log_density)(paths)
    return paths[jnp.argsort(-jnp.where(jnp.isfinite(values), values, -jnp.inf))]


@compiled
def _curved(key, target):
    """The normals with the target's curvature that have the best ELBO among the points of several L-BFGS paths."""
    start_key, score_key = jax.random.split(key)
    paths = lbfgs_paths(target.log_density, _lbfgs_starts(start_key, target), _LBFGS_STEPS, _KEPT)
    points = paths.reshape(-1, target.dim)
    noise = jax.random.normal(score_key, (_SCORE_DRAWS, target.dim), target.dtype)

    def score(point):
        factor = laplace_factor(target.log_density, point, target.twice_differentiable)
        values = jax.vmap(target.log_density)(point + noise @ factor.T)
        return factor, values.mean() + jnp.sum(jnp.log(jnp.diagonal(factor)))

    factors, scores = map_chunks(score, points, max(1, 2048 // target.dim))
    scores = jnp.where(jnp.isfinite(scores), scores, -jnp.inf)
    best = jnp.argsort(-scores)[: _NUM_CURVED - 1]
    ends = jnp.argmax(jnp.where(jnp.arange(points.shape[0]) % _KEPT == _KEPT - 1, scores, -jnp.inf))
    chosen = jnp.append(best, ends)
    usable = jnp.isfinite(scores[chosen])
    locs = jnp.where(usable[:, None], points[chosen], target.initial[0])
    eye = jnp.eye(target.dim, dtype=target.dtype)
    return locs, jnp.where(usable[:, None, None], factors[chosen], eye)


@compiled
def _race(key, target, family, ascent, estimator, runners):
    """Run every runner, and return the parameters of the best."""
    run_key, score_key = jax.random.split(key)
    nothing = empty_mixture(family, target.dim, 1, target.dtype)
    params = jax.vmap(family.init)(*runners)
    params = ascent.improve(run_key, target, nothing, ELBO(), estimator, params, jnp.asarray(0)).params

    def score(one):
        draws = family.sample(score_key, one, _SCORE_DRAWS)
        return jnp.mean(jax.vmap(lambda z: target.log_density(z) - family.log_prob(one, z))(draws))

    scores = jax.vmap(score)(params)
    best = jnp.argmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf))
    return jax.tree.map(lambda leaf: leaf[best], params)


@compiled
def _tilted(key, whitened, ascent, estimator):
    """Low rank + diagonal: a low-rank normal fitted in the diagonally whitened coordinates, composed with them."""
    family = LocationScale(Normal(), LowRank(), Box())
    dim, dtype = whitened.dim, whitened.dtype
    start = jax.tree.map(lambda leaf: leaf[None], family.init(jnp.zeros(dim, dtype), jnp.ones(dim, dtype)))
    nothing = empty_mixture(family, dim, 1, dtype)
    fitted = ascent.improve(key, whitened, nothing, ELBO(), estimator, start, jnp.asarray(0)).params
    fitted = jax.tree.map(lambda leaf: leaf[0], fitted)
    outer = whitened.params.scale
    scale = eqx.tree_at(lambda s: s.log_diag, fitted.scale, fitted.scale.log_diag + outer)
    params = LocationScaleParams(whitened.unwhiten(fitted.loc), scale, ())
    return Whitened(whitened.target, LocationScale(Normal(), LowRank(), _BOX), params)


def check_proper(target: AbstractTarget, family: LocationScale, params: LocationScaleParams) -> None:
    """Refuse a target whose log density does not fall off along some direction from the fitted normal."""
    falls, directions = _falls(target, family, params)
    flat = jnp.argmin(falls)
    if falls[flat] > 0:
        return
    direction = jnp.abs(directions[flat])
    names = target.coordinate_names()
    worst = [names[i] for i in jnp.argsort(-direction)[:3].tolist() if direction[i] > 0.1 * direction.max()]
    raise ValueError(
        "The log density is improper: it does not fall off in the direction of "
        f"{', '.join(worst)} (a million standard deviations away it is as high as at the center). "
        "Give that parameter a proper prior, or fix it."
    )


@compiled
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

    falls = map_chunks(fall, directions, 64)
    return falls, directions

r"""Natural-gradient ascent for normal components, with backtracking.

The step is that of `families/natural.py`: gradients only, invariant to affine maps, positive definite by construction.
Step sizes fall from `step_size` by a factor `1 + decay` over the ascent. When the draws at a new position are broken
(mostly NaN or infinite), or the objective has fallen beyond its noise, the component goes back, and the remembered step
is taken again at half its length.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from relbo.ascent.base import (
    AbstractAscent,
    choose,
    improved,
    masked_mean,
    masked_std_err,
    mixture_residual,
    proposal_residual,
    step_weights,
)
from relbo.budgets import budget
from relbo.families.natural import geometry_of, has_geometry, natural_step
from relbo.mixture import map_chunks

_MIN_FINITE = 0.5  # a smaller share of finite draws is a broken position
_NOISE_SIGMAS = 6.0  # a fall of the objective by this many standard errors is a bad step


class NaturalAscent(AbstractAscent):
    """Natural gradients; the default for normal families with a full or diagonal scale."""

    num_steps: int = eqx.field(static=True, default=100)
    num_draws: int = eqx.field(static=True, default=32)
    # Arrays, so that polishing with smaller steps meets the same compiled program.
    step_size: Float[ArrayLike, ""] = eqx.field(converter=np.asarray, default=0.4)
    decay: Float[ArrayLike, ""] = eqx.field(converter=np.asarray, default=4.0)

    def check(self, family):
        if not has_geometry(family):
            raise ValueError(
                f"Natural gradients need normal components with a full or diagonal scale, got {family}. "
                'Use oracle="gradient", which serves every family.'
            )

    def annealed(self, round_index):
        # Round by round the falling step sizes go on where the round before ended.
        return NaturalAscent(self.num_steps, self.num_draws, self.step_size / (1 + 4.0 * round_index), self.decay / 4)

    def improve(self, key, target, mixture, objective, estimator, params, iteration):
        weight = objective.entropy_weight(iteration)

        def body(carry: _Walk, step):
            index, step_key = step
            now = target.subsample(step_key)

            def statistics(noise, one):
                residual = proposal_residual(now, mixture, objective, one, iteration)
                return _statistics(noise, mixture.family, estimator, one, residual, weight)

            seen = jax.vmap(statistics)(self._noise(step_key, carry.params), carry.params)
            moved = self._move(mixture.family, carry, seen, index, check_fall=True)
            return moved, (seen.value, seen.std_err, seen.num_nan)

        start = _start_walk(mixture.family, params)
        steps = (jnp.arange(self.num_steps), jax.random.split(key, self.num_steps))
        walk, (values, std_errs, num_nan) = jax.lax.scan(body, start, steps)
        return improved(walk.base, values, std_errs, num_nan)  # the last position looked at and found good

    def refine(self, key, target, mixture, estimator):
        weight = jnp.asarray(1.0)

        def body(carry, step):
            walk, log_weights = carry
            index, step_key = step
            now = eqx.tree_at(lambda m: (m.params, m.log_weights), mixture, (walk.params, log_weights))
            residual = mixture_residual(target.subsample(step_key), now)

            def statistics(noise_and_one):
                return _statistics(noise_and_one[0], mixture.family, estimator, noise_and_one[1], residual, weight)

            slots = (self._noise(step_key, walk.params), walk.params)
            seen = map_chunks(statistics, slots, budget(target.dim).slots_at_once, now.active)
            moved = self._move(mixture.family, walk, seen, index, check_fall=False)
            moved = choose(now.active, moved, walk)
            rate = jnp.minimum(self._rate(index), 1.0).astype(log_weights.dtype)
            return (moved, step_weights(now, seen.value, rate)), jnp.sum(jnp.where(now.active, seen.num_nan, 0))

        start = (_start_walk(mixture.family, mixture.params), mixture.log_weights)
        steps = (jnp.arange(self.num_steps), jax.random.split(key, self.num_steps))
        (walk, log_weights), num_nan = jax.lax.scan(body, start, steps)
        return eqx.tree_at(lambda m: (m.params, m.log_weights), mixture, (walk.base, log_weights)), num_nan.sum()

    def _noise(self, key, params):
        """Antithetic standard normals for each of a stack, made by one call: the fastest to compile and to run."""
        num, dim = params.loc.shape
        half = jax.random.normal(key, (num, (self.num_draws + 1) // 2, dim), params.loc.dtype)
        return jnp.concatenate([half, -half], axis=1)

    def _rate(self, index):
        return self.step_size / (1 + self.decay * index / self.num_steps)

    def _move(self, family, walk: "_Walk", seen: "_Statistics", index, check_fall: bool) -> "_Walk":
        geometry = geometry_of(family)
        noise = _NOISE_SIGMAS * jnp.sqrt(seen.std_err**2 + walk.std_err**2)
        fell = check_fall & (seen.value < walk.value - noise)
        good = seen.usable & ~fell
        # Where the position is bad, the base stays and its step is halved; else the base moves here.
        base = choose(good, walk.params, walk.base)
        slope, curvature = choose(good, (seen.slope, seen.curvature), (walk.slope, walk.curvature))
        value, std_err = choose(good, (seen.value, seen.std_err), (walk.value, walk.std_err))
        damping = jnp.where(good, jnp.minimum(1.0, 2.0 * walk.damping), 0.5 * walk.damping)
        rate = (self._rate(index) * damping).astype(walk.value.dtype)
        params = jax.vmap(lambda p, g, c, r: natural_step(family, geometry, p, g, c, r))(base, slope, curvature, rate)
        return _Walk(params, base, slope, curvature, value, std_err, damping)


class _Walk(eqx.Module):
    """Positions of a stack of components, and for each the last good base with the statistics seen there."""

    params: PyTree
    base: PyTree
    slope: Float[Array, "stack dim"]
    curvature: Array
    value: Float[Array, " stack"]
    std_err: Float[Array, " stack"]
    damping: Float[Array, " stack"]


class _Statistics(eqx.Module):
    slope: Float[Array, " dim"]
    curvature: Array
    value: Float[Array, ""]
    std_err: Float[Array, ""]
    usable: Array
    num_nan: Int[Array, ""]


def _start_walk(family, params) -> _Walk:
    num, dim = params.loc.shape
    dtype = params.loc.dtype
    zero_curvature = jnp.zeros_like(params.scale)
    value = jnp.full(num, -jnp.inf, dtype)
    damping = jnp.ones(num, dtype)
    return _Walk(params, params, jnp.zeros((num, dim), dtype), zero_curvature, value, jnp.zeros(num, dtype), damping)


def _statistics(noise, family, estimator, params, residual, entropy_weight) -> _Statistics:
    def from_noise(one):
        return residual(family.transport(params, one))

    if estimator.needs_gradient:
        values, slopes = jax.vmap(jax.value_and_grad(from_noise))(noise)
    else:
        values, slopes = jax.vmap(from_noise)(noise), jnp.zeros_like(noise)
    finite = jnp.isfinite(values) & jnp.all(jnp.isfinite(slopes), axis=1)
    mean = masked_mean(jnp.where(finite, values, jnp.nan))
    # A draw that is not finite contributes nothing: zero slope, and a value equal to the mean of the others.
    slope, curvature = estimator.natural(
        geometry_of(family),
        noise,
        jnp.where(finite, values, mean),
        jnp.where(finite[:, None], slopes, 0.0),
        entropy_weight,
    )
    # Antithetic draws are not independent of each other; their pairs are.
    pairs = jnp.where(finite, values, jnp.nan).reshape(2, -1).mean(0)
    std_err = masked_std_err(pairs)
    solid = jnp.all(jnp.isfinite(slope)) & jnp.all(jnp.isfinite(curvature)) & jnp.isfinite(mean)
    usable = solid & (finite.mean() >= _MIN_FINITE)
    slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
    curvature = jnp.where(jnp.isfinite(curvature), curvature, 0.0)
    return _Statistics(slope, curvature, mean, std_err, usable, jnp.sum(jnp.isnan(values)))

"""Gradient ascent with any Optax optimiser: serves every family and estimator."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from relbo.ascent.base import (
    AbstractAscent,
    Drawn,
    Improved,
    Tally,
    choose,
    empty_tally,
    first_settled,
    masked_mean,
    masked_std_err,
    step_weights,
)
from relbo.mixture import Mixture, num_active
from relbo.objectives.estimators import combine
from relbo.runtime.compiling import compiled

_WEIGHT_RATE = 0.1  # averages over some ten steps: one has few draws of each component


def default_optimizer(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    """Adam whose learning rate falls to a hundredth along a cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.01))


class GradientAscent(AbstractAscent):
    """`optimizer` ascends; without one, Adam with a falling learning rate."""

    fits_alone = False
    num_steps: int = eqx.field(static=True, default=500)
    num_draws: int = eqx.field(static=True, default=16)
    learning_rate: float = eqx.field(static=True, default=0.05)
    optimizer: optax.GradientTransformation | None = eqx.field(static=True, default=None)

    def check(self, family):
        del family  # every family will do

    def annealed(self, round_index):
        return self  # the schedule inside falls anew in every round

    def patient(self):
        return self  # it never gives up before its last step

    def improve(self, key, door, aim, params):
        state, last = _begin(self, params, None), first_settled(self.num_steps)
        points = _draw(self, aim.mixture.family, key, state.params, np.asarray(0, np.int32))
        door = door.for_few(points.shape[0])
        for step in range(self.num_steps):
            drawn = Drawn(key, door(points, "proposals", batch=(key, step)), points)
            when = (np.asarray(step, np.int32), np.asarray(step <= last), aim.time)
            state, points = _improve_step(self, aim.lasting, drawn, state, when)
        value, std_err = state.tally.means()
        num_draws = self.num_draws * (self.num_steps - last)
        return Improved(state.params, value, std_err, num_draws, int(state.tally.num_nan))

    def refine(self, key, door, mixture, estimator):
        state = _begin(self, mixture.params, mixture.log_weights)
        points = _draw(self, mixture.family, key, state.params, np.asarray(0, np.int32))
        num_used = num_active(mixture) * self.num_draws
        for step in range(self.num_steps):
            drawn = Drawn(key, door(points, "refinement", num_used, (key, step)), points)
            state, points = _refine_step(self, mixture.family, estimator, drawn, state, np.asarray(step, np.int32))
        return Mixture(mixture.family, state.params, state.log_weights), int(state.tally.num_nan)

    def make_optimizer(self) -> optax.GradientTransformation:
        return self.optimizer or default_optimizer(self.learning_rate, self.num_steps)


class _State(eqx.Module):
    params: PyTree
    optimizer: PyTree
    log_weights: Any
    """None for proposals."""
    tally: Tally


@compiled
def _begin(ascent, params, log_weights) -> _State:
    """Each proposal has an optimiser of its own; the components of a mixture share one."""
    init = ascent.make_optimizer().init
    leaf = jax.tree.leaves(params)[0]
    inner = jax.vmap(init)(params) if log_weights is None else init(params)
    return _State(params, inner, log_weights, empty_tally(leaf.shape[0], leaf.dtype))


def draws_of(family, key, step, params, num_draws: int):
    """Reparameterised draws of each of a stack, by keys of their own."""
    keys = jax.random.split(jax.random.fold_in(key, step), jax.tree.leaves(params)[0].shape[0])
    return jax.vmap(lambda k, member: family.sample(k, member, num_draws))(keys, params)


def _flat(points):
    return points.reshape(-1, points.shape[-1])


@compiled
def _draw(ascent, family, key, params, step):
    return _flat(draws_of(family, key, step, params, ascent.num_draws))


def own_densities(family, params, points):
    """log s and its gradient at the draws of each of a stack, parameters held fixed; flat."""
    at_draws = jax.vmap(jax.value_and_grad(family.log_prob, argnums=1), (None, 0))
    log_s, slope = jax.vmap(at_draws)(jax.lax.stop_gradient(params), points)
    return log_s.reshape(-1), _flat(slope)


@compiled
def _improve_step(ascent, aim, drawn, state, when):
    (mixture, objective, estimator), (key, seen, points), (step, fresh, iteration) = aim, drawn, when
    family, shape = mixture.family, (-1, ascent.num_draws)
    q = mixture.at(points)
    log_s, slope_s = own_densities(family, state.params, points.reshape(*shape, points.shape[1]))
    values, by = objective.with_slopes(seen.values, q.log_q, log_s, iteration)
    slopes = sum(part[:, None] * slope for part, slope in zip(by, (seen.slopes, q.slope, slope_s), strict=True))
    values, slopes = solid(values, slopes)
    weight = objective.entropy_weight(iteration)

    def loss(params):
        draws = draws_of(family, key, step, params, ascent.num_draws)
        scalars = surrogates(estimator, family, params, draws, slopes, weight)
        parts = jax.vmap(lambda s, v: combine(estimator, s, v))(scalars, values.reshape(shape))
        return -jnp.sum(parts)

    grads = jax.grad(loss)(state.params)
    optimizer = ascent.make_optimizer()
    moved, inner = jax.vmap(lambda g, s, p: guarded_update(optimizer, g, s, p))(grads, state.optimizer, state.params)
    moved = jax.vmap(family.project)(moved)
    values = values.reshape(shape)
    tally = state.tally.add(masked_mean(values), masked_std_err(values), jnp.sum(jnp.isnan(values)), fresh)
    return _State(moved, inner, None, tally), _flat(draws_of(family, key, step + 1, moved, ascent.num_draws))


@compiled
def _refine_step(ascent, family, estimator, drawn, state, step):
    key, seen, points = drawn
    mixture, shape = Mixture(family, state.params, state.log_weights), (-1, ascent.num_draws)
    q = mixture.at(points)
    values, slopes = solid(seen.values - q.log_q, seen.slopes - q.slope)

    def loss(params):
        draws = draws_of(family, key, step, params, ascent.num_draws)
        scalars = surrogates(estimator, family, params, draws, slopes, 1.0)
        parts = jax.vmap(lambda s, v: combine(estimator, s, v))(scalars, values.reshape(shape))
        return -jnp.sum(jnp.where(mixture.active, jnp.exp(mixture.log_weights) * parts, 0.0))

    grads = jax.grad(loss)(state.params)
    moved, inner = guarded_update(ascent.make_optimizer(), grads, state.optimizer, state.params)
    moved = choose(mixture.active, jax.vmap(family.project)(moved), state.params)
    values = values.reshape(shape)
    num_nan = jnp.sum(jnp.where(mixture.active[:, None], jnp.isnan(values), False))
    tally = state.tally.add(masked_mean(values), masked_std_err(values), num_nan, True)
    log_weights = step_weights(mixture, masked_mean(values), jnp.asarray(_WEIGHT_RATE, values.dtype))
    return _State(moved, inner, log_weights, tally), _flat(draws_of(family, key, step + 1, moved, ascent.num_draws))


def solid(values, slopes):
    """Broken draws get slope zero here, draw by draw; a finite value whose slope is not finite is broken, too."""
    good = jnp.all(jnp.isfinite(slopes), axis=1)
    values = jnp.where(good | ~jnp.isfinite(values), values, jnp.nan)
    return values, jnp.where((good & jnp.isfinite(values))[:, None], slopes, 0.0)


def surrogates(estimator, family, params, draws, slopes, weight):
    """For each of a stack and each of its draws, the scalar that the estimator differentiates."""

    def of_member(member, points, slopes):
        log_prob = partial(family.log_prob, member)
        return jax.vmap(lambda z, slope: estimator.surrogate(slope, log_prob, z, weight))(points, slopes)

    return jax.vmap(of_member)(params, draws, jax.lax.stop_gradient(slopes).reshape(draws.shape))


def guarded_update(optimizer, grads, state, params):
    """An optimiser step, or none at all if the gradient is not finite."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads)]))
    updates, new_state = optimizer.update(grads, state, params)
    moved = optax.apply_updates(params, updates)
    return choose(finite, moved, params), choose(finite, new_state, state)

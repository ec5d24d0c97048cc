"""Gradient ascent with any Optax optimiser: serves every family and estimator."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

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
from relbo.objectives.estimators import combine


def default_optimizer(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    """Adam whose learning rate falls to a hundredth along a cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.01))


class GradientAscent(AbstractAscent):
    """`optimizer` ascends; without one, Adam with a falling learning rate."""

    num_steps: int = eqx.field(static=True, default=500)
    num_draws: int = eqx.field(static=True, default=16)
    learning_rate: float = eqx.field(static=True, default=0.05)
    optimizer: optax.GradientTransformation | None = eqx.field(static=True, default=None)

    def check(self, family):
        del family  # every family will do

    def annealed(self, round_index):
        return self  # the schedule inside falls anew in every round

    def improve(self, key, target, mixture, objective, estimator, params, iteration):
        weight = objective.entropy_weight(iteration)

        optimizer = self._optimizer()

        def loss(one, one_key):
            residual = proposal_residual(target.subsample(one_key), mixture, objective, one, iteration)
            scalar, values = self._surrogate(one_key, mixture.family, estimator, one, residual, weight)
            return -scalar, values

        def body(carry, step_key):
            now, state = carry
            grads, values = jax.grad(loss, has_aux=True)(now, step_key)
            moved, state = guarded_update(optimizer, grads, state, now)
            seen = (masked_mean(values), masked_std_err(values), jnp.sum(jnp.isnan(values)))
            return (mixture.family.project(moved), state), seen

        def ascend(one_key, one):
            start = (one, optimizer.init(one))
            (moved, _), seen = jax.lax.scan(body, start, jax.random.split(one_key, self.num_steps))
            return moved, seen

        num = jax.tree.leaves(params)[0].shape[0]
        moved, (values, std_errs, num_nan) = jax.vmap(ascend, out_axes=(0, 1))(jax.random.split(key, num), params)
        return improved(moved, values, std_errs, num_nan)

    def refine(self, key, target, mixture, estimator):
        optimizer = self._optimizer()

        def loss(params, now, step_key):
            residual = mixture_residual(target.subsample(step_key), now)
            keys = jax.random.split(step_key, now.capacity)
            scalars, values = jax.vmap(lambda k, one: self._surrogate(k, now.family, estimator, one, residual, 1.0))(
                keys, params
            )
            num_nan = jnp.where(now.active[:, None], jnp.isnan(values), False).sum()
            weighted = jnp.where(now.active, jnp.exp(now.log_weights) * scalars, 0.0)
            return -jnp.sum(weighted), (jax.vmap(masked_mean)(values), num_nan)

        def body(carry, step_key):
            params, state, log_weights = carry
            now = eqx.tree_at(lambda m: (m.params, m.log_weights), mixture, (params, log_weights))
            grads, (values, num_nan) = jax.grad(loss, has_aux=True)(params, now, step_key)
            moved, state = guarded_update(optimizer, grads, state, params)
            moved = jax.vmap(now.family.project)(moved)
            return (choose(now.active, moved, params), state, step_weights(now, values, jnp.asarray(0.1))), num_nan

        start = (mixture.params, optimizer.init(mixture.params), mixture.log_weights)
        (params, _, log_weights), num_nan = jax.lax.scan(body, start, jax.random.split(key, self.num_steps))
        return eqx.tree_at(lambda m: (m.params, m.log_weights), mixture, (params, log_weights)), num_nan.sum()

    def _optimizer(self):
        return self.optimizer or default_optimizer(self.learning_rate, self.num_steps)

    def _surrogate(self, key, family, estimator, params, residual, entropy_weight):
        points = family.sample(key, params, self.num_draws)
        scalars, values = jax.vmap(
            lambda point: estimator.surrogate(residual, lambda z: family.log_prob(params, z), point, entropy_weight)
        )(points)
        return combine(estimator, scalars, values), values


def guarded_update(optimizer, grads, state, params):
    """An optimiser step, or none at all if the gradient is not finite."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads)]))
    updates, new_state = optimizer.update(grads, state, params)
    moved = optax.apply_updates(params, updates)
    return choose(finite, moved, params), choose(finite, new_state, state)

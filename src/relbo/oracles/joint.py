r"""The joint oracle of Miller, Foti and Adams (2016): the new component and its weight, found together.

It ascends $F(s, \gamma) = \mathrm{ELBO}((1-\gamma) q + \gamma s)$ in the parameters of $s$ and the logit of $\gamma$.
With $r = \log p - \log((1-\gamma) q + \gamma s)$, and because scores have mean zero,

$$ \nabla_s F = \gamma\, \nabla_s E_s[r] \ (\text{$r$ held fixed}), \qquad
   \partial_\gamma F = E_s[r] - E_q[r]. $$

Draws of $s$ are fresh at every step; those of $q$, which does not move, are made once. At the optimum $\gamma$ is where
a line search towards $s$ ends, too: use `step="line_search"` with this oracle, which takes that last step once more on
draws of its own, and is right also where the ascent has not quite arrived.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo._compiled import compiled
from relbo.ascent.base import improved, masked_mean, masked_std_err
from relbo.ascent.gradient import default_optimizer, guarded_update
from relbo.budgets import budget
from relbo.estimate import Estimate
from relbo.objectives.estimators import combine
from relbo.objectives.evaluate import log_density
from relbo.oracles.base import AbstractOracle, Proposal
from relbo.oracles.starts import Starts, best_starts, mixture_draws, pool_evaluations

_LARGEST_LOGIT = 12.0  # weights below 1e-5, or that near to one, are of no use


class JointOracle(AbstractOracle):
    """Adam on the component and the logit of its weight together, from the best starts, for every family.

    The objective of the booster is not looked at: this oracle has its own, the ELBO of the mixture after the step.
    """

    num_steps: int = eqx.field(static=True, default=500)
    num_draws: int = eqx.field(static=True, default=16)
    learning_rate: float = eqx.field(static=True, default=0.05)
    num_restarts: int = eqx.field(static=True, default=2)
    starts: Starts = Starts()

    def __check_init__(self):
        if self.num_restarts < 1:
            raise ValueError(f"num_restarts must be at least 1, got {self.num_restarts}.")

    def check(self, family):
        del family  # every family will do

    @compiled
    def propose(self, key, target, mixture, modes, objective, estimator, iteration):
        *pool_keys, draw_key, ascent_key = jax.random.split(key, 5)
        sampled = target.subsample(key)
        params = best_starts(pool_keys, sampled, mixture, self.starts, modes, self.num_restarts, iteration)
        draws = mixture_draws(draw_key, sampled, mixture, known=jax.tree.leaves(params)[0].ravel())
        found, _ = self.ascend(ascent_key, target, mixture, estimator, draws, params, iteration)
        best = found.best()
        value = Estimate(found.value[best], found.std_err[best], self.num_draws * max(1, self.num_steps // 4))
        return Proposal(jax.tree.map(lambda leaf: leaf[best], found.params), value, found.num_nan)

    def num_evaluations(self, mixture):
        moved = self.num_restarts * self.num_steps * self.num_draws
        return moved + pool_evaluations(self.starts, mixture.dim) + budget(mixture.dim).pool_draws

    def ascend(self, key, target, mixture, estimator, draws, params: PyTree, iteration):
        """Each of a stack of components with its ELBO, and the weights that were found with them."""
        optimizer = default_optimizer(self.learning_rate, self.num_steps)

        def loss(moving, step_key):
            scalar, seen = self._surrogate(step_key, target.subsample(step_key), mixture, estimator, draws, *moving)
            return -scalar, seen

        def body(carry, step_key):
            moving, state = carry
            grads, seen = jax.grad(loss, has_aux=True)(moving, step_key)
            (one, logit), state = guarded_update(optimizer, grads, state, moving)
            logit = jnp.clip(logit, -_LARGEST_LOGIT, _LARGEST_LOGIT)
            return ((mixture.family.project(one), logit), state), seen

        def ascend_one(one_key, one):
            start = (one, -jnp.log(jnp.asarray(iteration, mixture.dtype) + 1))  # gamma = 1 / (t + 2)
            carry = (start, optimizer.init(start))
            (moved, _), seen = jax.lax.scan(body, carry, jax.random.split(one_key, self.num_steps))
            return moved, seen

        keys = jax.random.split(key, self.num_restarts)
        (moved, logits), seen = jax.vmap(ascend_one, out_axes=(0, 1))(keys, params)
        return improved(moved, *seen), jax.nn.sigmoid(logits)

    def _surrogate(self, key, target, mixture, estimator, draws, params, logit):
        """A scalar with the gradient of F, that by the component divided by gamma, which Adam does not see."""
        family = mixture.family
        frozen, gamma = jax.lax.stop_gradient((params, jax.nn.sigmoid(logit)))

        def residual(point):
            log_s = family.log_prob(frozen, point)
            return _log_ratio(log_density(target, point), mixture.log_prob(point), log_s, jax.lax.stop_gradient(logit))

        scalars, values = jax.vmap(
            lambda point: estimator.surrogate(residual, lambda z: family.log_prob(params, z), point, 1.0)
        )(family.sample(key, params, self.num_draws))
        log_s = jax.vmap(lambda z: family.log_prob(frozen, z))(draws.points)
        there = jnp.sum(draws.weights * _log_ratio(draws.log_p, draws.log_q, log_s, jax.lax.stop_gradient(logit)))
        own = masked_mean(values)
        slope = jnp.where(jnp.isfinite(own), jax.lax.stop_gradient(own - there), 0.0)
        scalar = combine(estimator, scalars, values) + jax.nn.sigmoid(logit) * slope
        elbo = (1 - gamma) * there + gamma * own
        return scalar, (elbo, gamma * masked_std_err(values), jnp.sum(jnp.isnan(values)))


def _log_ratio(log_p, log_q, log_s, logit) -> Float[Array, "..."]:
    """log p - log((1 - gamma) q + gamma s), from the logit of gamma."""
    return log_p - jnp.logaddexp(jax.nn.log_sigmoid(-logit) + log_q, jax.nn.log_sigmoid(logit) + log_s)

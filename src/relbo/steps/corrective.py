"""Variant 2: re-optimise every weight."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from relbo.steps.base import AbstractStep, WeightUpdate, to_log_weights, weight_problem


class FullyCorrective(AbstractStep):
    r"""$\min_{w \in \Delta} \mathrm{KL}(q_w \| p)$ on cached draws, by mirror descent with unit step.

    $\log w \leftarrow \log w - g(w)$, renormalised. The objective is 1-smooth relative to the entropy, because
    $\mathrm{KL}(q_{w'} \| q_w) \le \mathrm{KL}(w' \| w)$, so every exact step descends and there is nothing to tune.
    Weights below `drop` are set to zero, and their slots are empty again.
    """

    kinds = ("fully-corrective",)
    monotone = True
    num_draws: int = eqx.field(static=True, default=256)
    num_steps: int = eqx.field(static=True, default=200)
    drop: float = 1e-5

    def init(self, dtype):
        return ()

    def update(self, key, target, mixture, slot, iteration, memory):
        problem = weight_problem(key, target, mixture, slot, self.num_draws)
        gamma = (1 / (iteration + 1.0)).astype(mixture.dtype)
        start = (mixture.log_weights + jnp.log1p(-gamma)).at[slot].set(jnp.log(gamma))
        start = jnp.log(problem.inside(jnp.exp(start)))

        def descend(log_weights, _):
            moved = log_weights - problem.gradient(jnp.exp(log_weights))
            return moved - logsumexp(moved), None

        log_weights, _ = jax.lax.scan(descend, start, length=self.num_steps)
        kept = jnp.where(jnp.exp(log_weights) < self.drop, -jnp.inf, log_weights)
        kept = to_log_weights(problem.whole(jnp.exp(kept)))
        return WeightUpdate(kept, jnp.exp(kept[slot]), jnp.asarray(0), problem.num_nan), memory

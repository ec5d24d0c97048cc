r"""Steps that may also take weight away from the worst component (Lacoste-Julien and Jaggi 2015).

The worst component $v$ has the largest $E_v[\log q - \log p]$ among those with weight. A step that takes all of its
weight is a *drop step*, and empties its slot.
"""

import equinox as eqx
import jax.numpy as jnp

from relbo.steps.base import AbstractStep, WeightUpdate, search, to_log_weights, weight_problem


class Away(AbstractStep):
    r"""Towards the proposal, $s - q$, or away from the worst component, $q - v$, whichever promises more."""

    kinds = ("frank-wolfe", "away")
    monotone = True
    num_draws: int = eqx.field(static=True, default=256)

    def init(self, dtype):
        return ()

    def update(self, key, target, mixture, slot, iteration, memory):
        problem = weight_problem(key, target, mixture, slot, self.num_draws)
        weights = problem.inside(jnp.exp(mixture.log_weights))
        gradient = problem.gradient(weights)
        worst = _worst(mixture, gradient)
        basis = jnp.eye(mixture.capacity, dtype=mixture.dtype)
        towards, away = basis[slot] - weights, weights - basis[worst]
        go_away = (away @ gradient < towards @ gradient) & (weights[worst] < 1)
        direction = jnp.where(go_away, away, towards)
        # At weight 1 there is nothing to move the weight to; the division is guarded, the branch is not taken.
        largest_away = weights[worst] / jnp.maximum(1 - weights[worst], jnp.finfo(mixture.dtype).eps)
        gamma = search(problem, weights, direction, jnp.where(go_away, largest_away, 1.0).astype(mixture.dtype))
        return _along(problem, weights, direction, gamma, go_away.astype(int)), memory


class Pairwise(AbstractStep):
    """Weight moves from the worst component straight to the proposal, $s - v$."""

    kinds = ("pairwise",)
    monotone = True
    num_draws: int = eqx.field(static=True, default=256)

    def init(self, dtype):
        return ()

    def update(self, key, target, mixture, slot, iteration, memory):
        problem = weight_problem(key, target, mixture, slot, self.num_draws)
        weights = problem.inside(jnp.exp(mixture.log_weights))
        worst = _worst(mixture, problem.gradient(weights))
        basis = jnp.eye(mixture.capacity, dtype=mixture.dtype)
        direction = basis[slot] - basis[worst]
        gamma = search(problem, weights, direction, weights[worst])
        return _along(problem, weights, direction, gamma, jnp.asarray(0)), memory


def _worst(mixture, gradient):
    return jnp.argmax(jnp.where(mixture.active, gradient, -jnp.inf))


def _along(problem, weights, direction, gamma, kind) -> WeightUpdate:
    moved = weights + gamma * direction
    moved = jnp.where(moved < 10 * jnp.finfo(moved.dtype).eps, 0.0, moved)  # a drop step leaves rounding behind
    return WeightUpdate(to_log_weights(problem.whole(moved)), gamma, kind, problem.num_nan)

r"""Steps towards the proposal: fixed (variant 0), line search (variant 1), and locally adaptive."""

import equinox as eqx
import jax
import jax.numpy as jnp

from relbo.steps.base import AbstractStep, WeightUpdate, search, to_log_weights, weight_problem


class Fixed(AbstractStep):
    r"""Variant 0: $\gamma_t = 2 / (\delta t + 2)$, $\delta$ the accuracy of the oracle. Not monotone."""

    kinds = ("frank-wolfe",)
    monotone = False
    delta: float = 1.0
    num_draws: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if isinstance(self.delta, float | int) and not 0 < self.delta <= 1:
            raise ValueError(f"delta must be in (0, 1], got {self.delta}.")

    def init(self, dtype):
        return ()

    def update(self, key, target, mixture, slot, iteration, memory):
        gamma = (2 / (self.delta * iteration + 2)).astype(mixture.dtype)
        weights = ((1 - gamma) * jnp.exp(mixture.log_weights)).at[slot].add(gamma)
        return WeightUpdate(to_log_weights(weights), gamma, jnp.asarray(0), jnp.asarray(0)), memory


class LineSearch(AbstractStep):
    r"""Variant 1: $\gamma = \arg\min \mathrm{KL}((1-\gamma) q + \gamma s \,\|\, p)$, by bisection on the derivative."""

    kinds = ("frank-wolfe",)
    monotone = True
    num_draws: int = eqx.field(static=True, default=256)

    def init(self, dtype):
        return ()

    def update(self, key, target, mixture, slot, iteration, memory):
        problem = weight_problem(key, target, mixture, slot, self.num_draws)
        weights = problem.inside(jnp.exp(mixture.log_weights))
        direction = jnp.zeros_like(weights).at[slot].set(1.0) - weights
        gamma = search(problem, weights, direction, jnp.ones((), mixture.dtype))
        return along(problem, slot, weights + gamma * direction), memory


class Adaptive(AbstractStep):
    r"""Backtracking on a local curvature estimate $C$ (Dresdner et al. 2021; Pedregosa et al. 2020).

    With $g$ the duality gap towards $s$: $\gamma = \min(1, g / C)$ is taken once $f(q_\gamma) \le f(q) - \gamma g +
    \tfrac12 \gamma^2 C$; until then $C$ is multiplied by `growth`. Between iterations $C$ shrinks by `shrink`, so that
    the estimate can also fall.
    """

    kinds = ("frank-wolfe",)
    monotone = True
    num_draws: int = eqx.field(static=True, default=256)
    growth: float = 2.0
    shrink: float = 0.9
    max_backtracks: int = eqx.field(static=True, default=40)

    def init(self, dtype):
        return jnp.ones((), dtype)

    def update(self, key, target, mixture, slot, iteration, memory):
        problem = weight_problem(key, target, mixture, slot, self.num_draws)
        weights = problem.inside(jnp.exp(mixture.log_weights))
        direction = jnp.zeros_like(weights).at[slot].set(1.0) - weights
        gap = -jnp.sum(direction * problem.gradient(weights))

        def step_of(curvature):
            return jnp.clip(gap / curvature, 0.0, 1.0)

        def slope(gamma):
            return jnp.sum(direction * problem.gradient(weights + gamma * direction))

        def too_bold(carry):
            curvature, count = carry
            gamma = step_of(curvature)
            # Simpson's rule on the slope: on cached draws f itself is not quite an integral of it, and for a gap below
            # their noise no step would ever do.
            middle, end = slope(0.5 * gamma), slope(gamma)
            rise = (4 * middle + end - gap) / 6
            return (rise > -gap + 0.5 * gamma * curvature) & (count < self.max_backtracks)

        first = (memory * self.shrink, jnp.asarray(0))
        curvature, _ = jax.lax.while_loop(too_bold, lambda c: (c[0] * self.growth, c[1] + 1), first)
        return along(problem, slot, weights + step_of(curvature) * direction), curvature


def along(problem, slot, moved) -> WeightUpdate:
    log_weights = to_log_weights(problem.whole(moved))
    return WeightUpdate(log_weights, jnp.exp(log_weights[slot]), jnp.asarray(0), problem.num_nan)

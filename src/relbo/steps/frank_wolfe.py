r"""Steps towards the proposal: fixed (variant 0), line search (variant 1), and locally adaptive."""

import equinox as eqx
import numpy as np

from relbo.steps.base import AbstractStep, WeightProblem, WeightUpdate, search, unit


class Fixed(AbstractStep):
    r"""Variant 0: $\gamma_t = 2 / (\delta t + 2)$, $\delta$ the accuracy of the oracle. Not monotone."""

    kinds = ("frank-wolfe",)
    monotone = False
    at_once = 1
    delta: float = 1.0
    num_draws: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if not 0 < self.delta <= 1:
            raise ValueError(f"delta must be in (0, 1], got {self.delta}.")

    def update(self, problem, mixture, slots, iteration, memory):
        gamma = float(2 / (self.delta * iteration + 2))
        weights = (1 - gamma) * problem.weights
        weights[slots] += gamma
        return WeightUpdate(weights, gamma), memory


class LineSearch(AbstractStep):
    r"""Variant 1: $\gamma = \arg\min \mathrm{KL}((1-\gamma) q + \gamma s \,\|\, p)$, by bisection on the derivative."""

    kinds = ("frank-wolfe",)
    monotone = True
    at_once = 1
    num_draws: int = eqx.field(static=True, default=256)

    def update(self, problem, mixture, slots, iteration, memory):
        weights, direction = _towards(problem, slots)
        gamma = search(problem, weights, direction, 1.0)
        return _along(problem, slots, weights + gamma * direction), memory


class Adaptive(AbstractStep):
    r"""Backtracking on a local curvature estimate $C$ (Dresdner et al. 2021; Pedregosa et al. 2020).

    With $g$ the duality gap towards $s$: $\gamma = \min(1, g / C)$ is taken once $f(q_\gamma) \le f(q) - \gamma g +
    \tfrac12 \gamma^2 C$; until then $C$ is multiplied by `growth`. Between iterations $C$ shrinks by `shrink`, so that
    the estimate can also fall.
    """

    kinds = ("frank-wolfe",)
    monotone = True
    at_once = 1
    num_draws: int = eqx.field(static=True, default=256)
    growth: float = 2.0
    shrink: float = 0.9
    max_backtracks: int = eqx.field(static=True, default=40)

    def init(self):
        return np.ones((), np.float32)

    def update(self, problem, mixture, slots, iteration, memory):
        weights, direction = _towards(problem, slots)
        gap = -float(direction @ problem.gradient(weights))

        def slope(gamma: float) -> float:
            return float(direction @ problem.gradient(weights + gamma * direction))

        def too_bold(curvature: float) -> bool:
            gamma = np.clip(gap / curvature, 0.0, 1.0)
            # Simpson's rule on the slope: on cached draws f itself is not quite an integral of it, and for a gap below
            # their noise no step would ever do.
            rise = (4 * slope(0.5 * gamma) + slope(gamma) - gap) / 6
            return bool(rise > -gap + 0.5 * gamma * curvature)

        curvature, count = float(memory) * self.shrink, 0
        while too_bold(curvature) and count < self.max_backtracks:
            curvature, count = curvature * self.growth, count + 1
        gamma = np.clip(gap / curvature, 0.0, 1.0)
        return _along(problem, slots, weights + gamma * direction), np.asarray(curvature, np.float32)


def _towards(problem: WeightProblem, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights now, and the direction from them to the proposal."""
    weights = problem.inside
    return weights, unit(len(weights), slots[0]) - weights


def _along(problem: WeightProblem, slots: np.ndarray, moved: np.ndarray) -> WeightUpdate:
    weights = problem.whole(moved)
    return WeightUpdate(weights, float(weights[slots[0]]))

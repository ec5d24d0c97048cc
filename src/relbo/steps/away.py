r"""Steps that may also take weight away from the worst component (Lacoste-Julien and Jaggi 2015).

The worst component $v$ has the largest $E_v[\log q - \log p]$ among those with weight. A step that takes all of its
weight is a *drop step*, and empties its slot.
"""

import equinox as eqx
import numpy as np

from relbo.steps.base import AbstractStep, WeightProblem, WeightUpdate, search, unit

_ROUNDING = 10 * np.finfo(float).eps  # what a drop step leaves behind


class Away(AbstractStep):
    r"""Towards the proposal, $s - q$, or away from the worst component, $q - v$, whichever promises more."""

    kinds = ("frank-wolfe", "away")
    monotone = True
    at_once = 1
    num_draws: int = eqx.field(static=True, default=256)

    def update(self, problem, mixture, slots, iteration, memory):
        weights = problem.inside
        gradient = problem.gradient(weights)
        worst = _worst(problem, gradient)
        towards, away = unit(len(weights), slots[0]) - weights, weights - unit(len(weights), worst)
        if away @ gradient < towards @ gradient and weights[worst] < 1:
            gamma = search(problem, weights, away, weights[worst] / (1 - weights[worst]))
            return _along(problem, weights, away, gamma, 1), memory
        return _along(problem, weights, towards, search(problem, weights, towards, 1.0), 0), memory


class Pairwise(AbstractStep):
    """Weight moves from the worst component straight to the proposal, $s - v$."""

    kinds = ("pairwise",)
    monotone = True
    at_once = 1
    num_draws: int = eqx.field(static=True, default=256)

    def update(self, problem, mixture, slots, iteration, memory):
        weights = problem.inside
        worst = _worst(problem, problem.gradient(weights))
        direction = unit(len(weights), slots[0]) - unit(len(weights), worst)
        gamma = search(problem, weights, direction, weights[worst])
        return _along(problem, weights, direction, gamma, 0), memory


def _worst(problem: WeightProblem, gradient: np.ndarray) -> int:
    return int(np.argmax(np.where(problem.weights > 0, gradient, -np.inf)))


def _along(problem: WeightProblem, weights: np.ndarray, direction: np.ndarray, gamma: float, kind: int) -> WeightUpdate:
    moved = weights + gamma * direction
    return WeightUpdate(problem.whole(np.where(moved < _ROUNDING, 0.0, moved)), gamma, kind)

"""Weights by quadrature, which no draws blur, and the line search of the authors' two-mode script."""

import math

import equinox as eqx
import numpy as np
from scipy.special import logsumexp

from experiments.hull import Hull, Problem
from relbo.steps import AbstractStep, WeightUpdate

_PER_DEVIATION = 8  # places of the quadrature in the smallest deviation
_DEVIATIONS = 9
_MOST_PLACES = 200_001
_BISECTIONS = 40


def spread_of(mixture, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Locations and deviations of some of a mixture's normal components."""
    return np.asarray(mixture.params.loc, np.float64)[used], np.exp(np.asarray(mixture.params.scale, np.float64))[used]


def problem_of(spec: tuple, locations: np.ndarray, scales: np.ndarray) -> Problem:
    """KL to a mixture of normals in one dimension, as a function of the weights of these components."""
    reach = np.max(np.abs(locations)) + _DEVIATIONS * np.max(scales)
    num = int(min(_MOST_PLACES, 2 * math.ceil(reach / np.min(scales) * _PER_DEVIATION) + 1))
    hull = Hull(locations, scales, np.linspace(-reach, reach, num))
    weights, centres, deviations = (np.asarray(part, np.float64) for part in spec)
    each = -0.5 * ((hull.points - centres) / deviations) ** 2 - np.log(deviations) - 0.5 * math.log(2 * math.pi)
    return Problem(hull, logsumexp(np.log(weights) + each, axis=1))


def corrected(spec: tuple, mixture) -> tuple[float, float]:
    """The least KL of any weights of a mixture's components, and its certificate, the duality gap."""
    used = np.flatnonzero(np.asarray(mixture.log_weights) > -np.inf)
    problem = problem_of(spec, *spread_of(mixture, used))
    weights, gap = problem.best()
    return problem.value(weights), gap


class ByQuadrature(AbstractStep):
    """Line search, or with `every` full correction, on the KL itself: what is left when draws play no part."""

    kinds = ("quadrature",)
    monotone = True
    at_once = 1
    spec: tuple = eqx.field(static=True)
    every: bool = eqx.field(static=True)
    num_draws: int = eqx.field(static=True, default=1)
    drop: float = 1e-5

    def update(self, problem, mixture, slots, iteration, memory):
        weights = np.array(problem.weights, np.float64)
        used = np.flatnonzero((weights > 0) | np.isin(np.arange(len(weights)), slots))
        exact = problem_of(self.spec, *spread_of(mixture, used))
        if self.every:
            found = exact.best()[0]
            found = np.where(found < self.drop, 0.0, found)
        else:
            found = _searched(exact, weights[used], np.isin(used, slots).astype(float))
        weights[used] = found / found.sum()
        return WeightUpdate(weights, float(weights[slots].sum())), memory


class ShortSearch(AbstractStep):
    """The line search of the authors' two-mode script: from 2/(t+2), ten steps of 0.1/n along the slope on ten draws.

    Their ten draws of the mixture are ten of each component here, which is less noise. Theirs are made with the wrong
    deviations, too (softplus of the variance); here they are right.
    """

    kinds = ("short search",)
    monotone = False
    at_once = 1
    num_draws: int = eqx.field(static=True, default=10)
    num_steps: int = eqx.field(static=True, default=10)
    rate: float = 0.1

    def update(self, problem, mixture, slots, iteration, memory):
        direction = -np.array(problem.weights, np.float64)
        direction[slots] += 1.0
        gamma = 2.0 / (iteration + 2.0)
        for number in range(1, self.num_steps + 1):
            slope = float(direction @ problem.gradient(problem.weights + gamma * direction))
            gamma = float(np.clip(gamma - self.rate / number * slope, 0.0, 1.0))
            if gamma in (0.0, 1.0):
                break
        return WeightUpdate(problem.weights + gamma * direction, gamma), memory


def _searched(problem: Problem, weights: np.ndarray, corner: np.ndarray) -> np.ndarray:
    """The best weights between these and a corner, by bisection on the derivative."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        rising = (corner - weights) @ problem.gradient(weights + middle * (corner - weights)) > 0
        low, high = (low, middle) if rising else (middle, high)
    return weights + low * (corner - weights)

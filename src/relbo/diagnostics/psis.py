"""Pareto-smoothed importance sampling: how heavy the tail of importance weights is, and weights with a smoothed tail.

The Pareto tail fit is written here, in thirty lines of NumPy, because the packages that have it (ArviZ) take seconds to
import and are no dependency of ours; a test holds it equal to ArviZ's.
"""

import math

import numpy as np


def k_hat_limit(num_draws: int) -> float:
    """Above it the error of importance sampling with so many draws cannot be trusted (Vehtari et al. 2024)."""
    return min(1 - 1 / math.log10(num_draws), 0.7)


def psis(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed, normalised log weights and k-hat (Vehtari, Simpson, Gelman, Yao and Gabry 2024)."""
    shifted = log_ratios - log_ratios.max()
    tail, cutoff = _tail_of(shifted)
    if len(tail) <= 4:
        return shifted - np.logaddexp.reduce(shifted), math.inf
    excess = np.exp(shifted[tail]) - math.exp(cutoff)
    k_hat, scale = _fit_pareto(excess)
    smoothed = shifted.copy()
    if math.isfinite(k_hat):
        levels = (np.arange(len(tail)) + 0.5) / len(tail)
        quantiles = scale * np.expm1(-k_hat * np.log1p(-levels)) / k_hat if k_hat else -scale * np.log1p(-levels)
        smoothed[tail] = np.minimum(np.log(quantiles + math.exp(cutoff)), 0.0)
    return smoothed - np.logaddexp.reduce(smoothed), k_hat


def tail_k_hat(log_sizes: np.ndarray) -> float:
    """The shape of the upper tail of positive numbers, given by their logarithms; +inf if there is no tail."""
    shifted = log_sizes - log_sizes.max()
    tail, cutoff = _tail_of(shifted)
    return _fit_pareto(np.exp(shifted[tail]) - math.exp(cutoff))[0] if len(tail) > 4 else math.inf


def tail_stake(log_ratios: np.ndarray) -> float:
    """The part of the total weight that lies above the threshold from which on the tail is fitted.

    k-hat knows the shape of the tail and not its size: weights between 0.999 and 1.001 may have any k-hat, and nothing
    is at stake. What the largest weights have beyond the threshold is what a tail fit, or its failure, is about.
    """
    shifted = log_ratios - log_ratios.max()
    tail, cutoff = _tail_of(shifted)
    weights = np.exp(shifted)
    return float(np.sum(weights[tail] - math.exp(cutoff)) / np.sum(weights))


def num_tail(num_draws: int) -> int:
    """How many of the largest weights the tail is fitted to."""
    return math.ceil(min(num_draws / 5, 3 * math.sqrt(num_draws)))


def _tail_of(shifted: np.ndarray) -> tuple[np.ndarray, float]:
    """Indices of the largest values, in ascending order, and the logarithm of the threshold below them."""
    num = num_tail(len(shifted))
    order = np.argsort(shifted, kind="stable")
    tail = order[-num:]
    cutoff = max(shifted[order[-num - 1]], math.log(np.finfo(float).tiny))
    return tail[shifted[tail] > cutoff], cutoff


def _fit_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto law for sorted excesses (Zhang and Stephens 2009), with a weak prior."""
    num = len(excess)
    num_grid = 30 + int(math.sqrt(num))
    grid = 1 - np.sqrt(num_grid / (np.arange(1, num_grid + 1) - 0.5))
    grid = grid / (3 * excess[int(num / 4 + 0.5) - 1]) + 1 / excess[-1]
    shapes = np.log1p(-grid[:, None] * excess).mean(axis=1)
    log_likelihood = num * (np.log(-grid / shapes) - shapes - 1)
    with np.errstate(over="ignore"):  # a hopeless grid point gets weight 1 / inf = 0
        weights = 1 / np.exp(log_likelihood - log_likelihood[:, None]).sum(axis=1)
    keep = weights >= 10 * np.finfo(float).eps
    weights, grid = weights[keep] / weights[keep].sum(), grid[keep]
    point = np.sum(grid * weights)
    shape = np.log1p(-point * excess).mean()
    scale = -shape / point
    return float((num * shape + 10 * 0.5) / (num + 10)), float(scale)

"""Posteriors that are nearly normal and dear to evaluate: importance sampling from the normal at their mode.

Draws come in pairs z, 2 m - z about the mode m, which takes skewness out of the error of log Z. The effective number of
draws says how nearly normal the posterior is, and so whether this may be trusted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp


@dataclass(frozen=True)
class Weighted:
    log_z: float
    log_z_std_err: float
    mean: np.ndarray
    sd: np.ndarray
    mean_mcse: np.ndarray
    sd_mcse: np.ndarray
    ess: float


def weigh(log_density: Callable, data: tuple, dim: int, num_pairs: int, seed: int = 0) -> Weighted:
    """log Z and moments; the pairs are independent, which is what the errors rest on."""
    mode, factor = _laplace(log_density, data, dim)
    white = np.random.default_rng(seed).standard_normal((num_pairs, dim))
    white = np.stack([white, -white])
    draws = mode + white @ factor.T
    evaluate = jax.jit(lambda z, data: jax.lax.map(lambda one: log_density(one, *data), z, batch_size=16))
    values = np.asarray(evaluate(draws.reshape(-1, dim), data)).reshape(2, num_pairs)
    log_normal = -0.5 * np.sum(white**2, axis=-1) - 0.5 * dim * np.log(2 * np.pi) - np.log(np.diag(factor)).sum()
    log_weights = values - log_normal
    log_z = logsumexp(log_weights) - np.log(log_weights.size)
    weights = np.exp(log_weights - logsumexp(log_weights))
    mean = np.einsum("pn,pnd->d", weights, draws)
    squares = (draws - mean) ** 2
    sd = np.sqrt(np.einsum("pn,pnd->d", weights, squares))
    return Weighted(
        float(log_z),
        float(np.std(num_pairs * weights.sum(axis=0), ddof=1) / np.sqrt(num_pairs)),
        mean,
        sd,
        _error(weights, draws - mean),
        _error(weights, squares - sd**2) / (2 * sd),
        float(1 / np.sum(weights**2)),
    )


def _laplace(log_density: Callable, data: tuple, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The mode, and the Cholesky factor of the inverse curvature there."""
    value_and_grad = jax.jit(jax.value_and_grad(log_density))

    def objective(z):
        value, gradient = value_and_grad(z, *data)
        return -float(value), -np.asarray(gradient)

    mode = minimize(objective, np.zeros(dim), jac=True, method="L-BFGS-B", options={"ftol": 1e-14}).x
    precision = -np.asarray(jax.jit(jax.hessian(log_density))(mode, *data))
    return mode, np.linalg.cholesky(np.linalg.inv(precision))


def _error(weights: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(np.einsum("pn,pnd->nd", weights, deviations) ** 2, axis=0))

r"""Posteriors with few awkward coordinates: a grid over those, the rest integrated out in closed form or nearly so.

The trapezoid rule on a wide, fine grid over u converges exponentially. In some models the rest b is normal given u:
its mean m(u) and precision P(u) follow from a gradient and a Hessian at b = 0, and
$\int p(u, b) db = p(u, m) (2\pi)^{k/2} |P|^{-1/2}$.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp


@dataclass(frozen=True)
class Grid:
    """Axes (from, to, points) for u, and `given(u)`: log density of u, mean and variance of z given u."""

    axes: tuple[tuple[float, float, int], ...]
    given: Callable[[Any], tuple[Any, Any, Any]]


@dataclass(frozen=True)
class Integral:
    log_z: float
    mean: np.ndarray
    sd: np.ndarray
    num_points: int
    halved_change: float
    """Change of log Z when every other point of each axis is left out: a bound on the error of the finer grid."""


def integrate(grid: Grid) -> Integral:
    """log Z, means and standard deviations of z."""
    axes = [np.linspace(*axis) for axis in grid.axes]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    evaluate = jax.jit(lambda u: jax.lax.map(grid.given, u, batch_size=64))
    values, means, variances = map(np.asarray, evaluate(points.reshape(-1, len(axes))))
    values = values.reshape(points.shape[:-1])
    _check_edges(values)
    log_z = _log_sum(values, axes)
    weights = np.exp(values - values.max()).ravel()
    weights /= weights.sum()
    mean = weights @ means
    sd = np.sqrt(weights @ variances + weights @ (means - mean) ** 2)
    coarse = _log_sum(values[(slice(None, None, 2),) * len(axes)], [axis[::2] for axis in axes])
    return Integral(log_z, mean, sd, values.size, abs(coarse - log_z))


def normal_rest(log_density: Callable, to_model: Callable, num_rest: int, log_det: Callable | None = None) -> Callable:
    """`given` for z = to_model(u, b), affine in b, where b is normal given u; `log_det(u)` is the map's Jacobian."""

    def given(u):
        def joint(rest):
            return log_density(to_model(u, rest))

        origin = jnp.zeros(num_rest)
        factor = jnp.linalg.cholesky(-jax.hessian(joint)(origin))
        center = jax.scipy.linalg.cho_solve((factor, True), jax.grad(joint)(origin))
        log_volume = 0.5 * num_rest * jnp.log(2 * jnp.pi) - jnp.sum(jnp.log(jnp.diagonal(factor)))
        slopes = jax.jacobian(lambda rest: to_model(u, rest))(origin)
        spread = jax.scipy.linalg.solve_triangular(factor, slopes.T, lower=True)
        value = joint(center) + log_volume + (0.0 if log_det is None else log_det(u))
        return value, to_model(u, center), jnp.sum(spread**2, axis=0)

    return given


def _log_sum(values: np.ndarray, axes: list[np.ndarray]) -> float:
    cell = sum(np.log(axis[1] - axis[0]) for axis in axes)
    return float(logsumexp(values) + cell)


def _check_edges(values: np.ndarray) -> None:
    for axis in range(values.ndim):
        for end in (0, -1):
            edge = np.take(values, end, axis=axis).max() - values.max()
            if edge > np.log(1e-6):
                raise ValueError(f"axis {axis} ends too early: its density there is e^{edge:.1f} of the greatest.")

"""What is measured of a method's draws, in float64, after the clock has stopped."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from methods.base import Density, Outcome

MAX_NUMBERS = 20_000_000
"""How many data numbers times draws are evaluated at once."""


def measure(model: Any, data: tuple, outcome: Outcome) -> dict[str, Any]:
    """Moments and mode counts of the draws, and ELBO and k-hat where there is a density."""
    draws = np.asarray(outcome.draws, np.float64)
    facts = {"num_draws": len(draws), "mean": draws.mean(axis=0), "sd": draws.std(axis=0, ddof=1)}
    if model.num_modes > 1:
        facts["mode_counts"] = np.bincount(np.asarray(model.mode_of(draws)), minlength=model.num_modes)
    if outcome.density is not None:
        facts |= measure_density(model, data, outcome.density())
    return facts


def measure_density(model: Any, data: tuple, density: Density) -> dict[str, Any]:
    """ELBO with its standard error, and k-hat. A draw of zero or undefined density makes the ELBO unknown."""
    from relbo.diagnostics.psis import psis

    ratios = log_densities(model, data, density.draws) - np.asarray(density.log_q, np.float64)
    fine = ratios[np.isfinite(ratios)]
    facts: dict[str, Any] = {"num_bad_draws": len(ratios) - len(fine), "elbo": None, "elbo_std_err": None}
    if len(fine) == len(ratios):
        facts |= {"elbo": ratios.mean(), "elbo_std_err": ratios.std(ddof=1) / np.sqrt(len(ratios))}
    facts["k_hat"] = psis(fine)[1] if len(fine) > 100 else None
    return facts


def log_densities(model: Any, data: tuple, draws: np.ndarray) -> np.ndarray:
    """log p at every draw in float64, in batches that large data fit into memory with."""
    largest = max((np.size(array) for array in data), default=1)
    batch = int(np.clip(MAX_NUMBERS // max(largest, model.dim**2), 1, 1000))

    def over_draws(z, data):
        return jax.lax.map(lambda point: model.log_density(point, *data), z, batch_size=batch)

    with jax.enable_x64(True):
        arrays = tuple(jnp.asarray(array) for array in data)
        return np.asarray(jax.jit(over_draws)(jnp.asarray(draws, jnp.float64), arrays))


def plain(value: Any) -> Any:
    """For JSON: arrays as lists, and a number that is not finite as None."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(entry) for entry in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value

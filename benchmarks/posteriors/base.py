"""What a model of the peer benchmark is, and what is known of its posterior."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Model:
    """A posterior on R^dim, the same for every method. Nothing is computed before `data()` is called."""

    name: str
    title: str
    dim: int
    log_density: Callable[..., Any]
    """`log_density(z, *data)`: plain JAX, one point of shape (dim,), Jacobians and normalising constants included."""
    data: Callable[[], tuple[Any, ...]] = tuple
    """NumPy arrays; raises `targets.MissingData` where a file is needed that is not there."""
    pymc: Callable[[], Any] | None = None
    """Builds the same model in PyMC. Its free variables come in the order of z, so its own coordinates are z."""
    from_pymc: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None
    """Named constrained draws, each (draws, ...), to (draws, dim) in the coordinates of z."""
    num_modes: int = 1
    mode_of: Callable[[np.ndarray], np.ndarray] | None = None
    """Draws (num, dim) to labels 0 .. num_modes - 1; None where there is one mode."""
    through: str = "jax"
    """"callable": relbo is given `host_density` instead of `log_density`."""
    host_density: Callable[..., tuple[float, np.ndarray]] | None = None
    """`host_density(z, *data)`: NumPy, the value and gradient of `log_density`."""


@dataclass(frozen=True)
class Reference:
    """Moments and log Z of a posterior, per coordinate of z, with their Monte Carlo standard errors."""

    name: str
    dim: int
    log_z: float | None
    """None where a standard error of 0.01 was not reached; `log_z_std_err` then says what was."""
    log_z_std_err: float | None
    log_z_how: str
    mean: list[float]
    sd: list[float]
    mean_mcse: list[float]
    sd_mcse: list[float]
    mode_mass: list[float] | None
    ess_min: float | None
    r_hat_max: float | None
    """Both None where nothing was sampled."""
    how: str


def columns(draws: dict[str, np.ndarray], **maps: Callable[[np.ndarray], np.ndarray] | None) -> np.ndarray:
    """Named draws side by side, (draws, dim), each through its map to the real line (None: as it is)."""
    num_draws = len(next(iter(draws.values())))
    parts = [(to_real or np.asarray)(np.asarray(draws[name])) for name, to_real in maps.items()]
    return np.concatenate([part.reshape(num_draws, -1) for part in parts], axis=1)

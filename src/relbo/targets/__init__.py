"""Model in, target out: a log density on R^d with names, shapes and the map back to the model's own parameters."""

from relbo.targets.base import AbstractTarget
from relbo.targets.callable_target import CallableTarget, from_callable
from relbo.targets.jax_target import JaxTarget, from_log_density
from relbo.targets.stan import StanTarget, from_stan

__all__ = [
    "AbstractTarget",
    "CallableTarget",
    "JaxTarget",
    "StanTarget",
    "from_callable",
    "from_log_density",
    "from_stan",
]

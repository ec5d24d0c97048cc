"""Model in, target out: a log density on R^d with names, shapes and the map back to the model's own parameters."""

from relbo.targets.base import AbstractTarget
from relbo.targets.callable_target import CallableTarget, from_callable
from relbo.targets.coerce import as_target
from relbo.targets.jax_target import JaxTarget, from_log_density
from relbo.targets.pymc_target import PyMCTarget, from_pymc

__all__ = [
    "AbstractTarget",
    "CallableTarget",
    "JaxTarget",
    "PyMCTarget",
    "as_target",
    "from_callable",
    "from_log_density",
    "from_pymc",
]

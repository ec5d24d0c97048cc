"""Model in, target out: a log density on R^d with names, shapes and the map back to the model's own parameters."""

from relbo.targets.base import AbstractTarget, AbstractWrapper
from relbo.targets.callable_target import CallableTarget, from_callable
from relbo.targets.coerce import as_target
from relbo.targets.jax_target import JaxTarget, from_log_density
from relbo.targets.minibatch import Anchored
from relbo.targets.numpyro import from_numpyro
from relbo.targets.pymc import PyMCTarget, from_pymc
from relbo.targets.rows import RowsTarget, from_rows
from relbo.targets.stan import StanTarget, from_stan

__all__ = [
    "AbstractTarget",
    "AbstractWrapper",
    "Anchored",
    "CallableTarget",
    "JaxTarget",
    "PyMCTarget",
    "RowsTarget",
    "StanTarget",
    "as_target",
    "from_callable",
    "from_log_density",
    "from_numpyro",
    "from_pymc",
    "from_rows",
    "from_stan",
]

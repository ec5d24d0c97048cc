"""relbo: boosted black-box variational inference.

A name is imported when it is first used, so that `import relbo` and `relbo --help` need not wait for JAX.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relbo import distributed, families, objectives, oracles, plots, steps
    from relbo.boosting.booster import Booster
    from relbo.boosting.state import State
    from relbo.boosting.stopping import (
        GapBelow,
        MaxComponents,
        MaxEvaluations,
        MaxIterations,
        MaxSeconds,
        Near,
        Stalled,
    )
    from relbo.calibration import Calibration, calibrate
    from relbo.comparison import Agreement, compare
    from relbo.coordinates.race import Preconditioner
    from relbo.diagnostics import Diagnosis, diagnose, resample
    from relbo.distributed.starting import local_rows
    from relbo.loop.fits import Fits
    from relbo.loop.fitting import fit
    from relbo.loop.many import fit_many
    from relbo.objectives import RELBO, FiniteStep
    from relbo.oracles import GradientOracle, JointOracle, LaplaceOracle, NaturalOracle, Starts
    from relbo.posterior.posterior import Posterior
    from relbo.posterior.prediction import predict
    from relbo.records.estimate import Estimate
    from relbo.records.outcome import Stop
    from relbo.records.trace import Record
    from relbo.reporting import report
    from relbo.runtime.compiling import enable_compile_cache
    from relbo.settings.names import make_booster, paper
    from relbo.settings.presets import preset
    from relbo.steps import Adaptive, Away, Fixed, FullyCorrective, LineSearch, NormCorrective, Pairwise
    from relbo.storage import load, save
    from relbo.targets import from_callable, from_log_density, from_numpyro, from_pymc, from_rows, from_stan
    from relbo.views.arviz import to_arviz

__version__ = "0.1.0"

__all__ = [
    "RELBO",
    "Adaptive",
    "Agreement",
    "Away",
    "Booster",
    "Calibration",
    "Diagnosis",
    "Estimate",
    "FiniteStep",
    "Fits",
    "Fixed",
    "FullyCorrective",
    "GapBelow",
    "GradientOracle",
    "JointOracle",
    "LaplaceOracle",
    "LineSearch",
    "MaxComponents",
    "MaxEvaluations",
    "MaxIterations",
    "MaxSeconds",
    "NaturalOracle",
    "Near",
    "NormCorrective",
    "Pairwise",
    "Posterior",
    "Preconditioner",
    "Record",
    "Stalled",
    "Starts",
    "State",
    "Stop",
    "calibrate",
    "compare",
    "diagnose",
    "distributed",
    "enable_compile_cache",
    "families",
    "fit",
    "fit_many",
    "from_callable",
    "from_log_density",
    "from_numpyro",
    "from_pymc",
    "from_rows",
    "from_stan",
    "load",
    "local_rows",
    "make_booster",
    "objectives",
    "oracles",
    "paper",
    "plots",
    "predict",
    "preset",
    "report",
    "resample",
    "save",
    "steps",
    "to_arviz",
]

_HOMES = {
    "boosting.booster": "Booster",
    "boosting.state": "State",
    "boosting.stopping": "GapBelow MaxComponents MaxEvaluations MaxIterations MaxSeconds Near Stalled",
    "calibration": "Calibration calibrate",
    "comparison": "Agreement compare",
    "coordinates.race": "Preconditioner",
    "diagnostics": "Diagnosis diagnose resample",
    "distributed.starting": "local_rows",
    "loop.fits": "Fits",
    "loop.fitting": "fit",
    "loop.many": "fit_many",
    "objectives": "RELBO FiniteStep",
    "oracles": "GradientOracle JointOracle LaplaceOracle NaturalOracle Starts",
    "posterior.posterior": "Posterior",
    "posterior.prediction": "predict",
    "records.estimate": "Estimate",
    "records.outcome": "Stop",
    "records.trace": "Record",
    "reporting": "report",
    "runtime.compiling": "enable_compile_cache",
    "settings.names": "make_booster paper",
    "settings.presets": "preset",
    "steps": "Adaptive Away Fixed FullyCorrective LineSearch NormCorrective Pairwise",
    "storage": "load save",
    "targets": "from_callable from_log_density from_numpyro from_pymc from_rows from_stan",
    "views.arviz": "to_arviz",
}
"""The public names by the module that they are in; those that are missing here are modules themselves."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def _import(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"relbo.{_MODULE_OF[name]}"), name)
    if name.startswith("__") or importlib.util.find_spec(f"relbo.{name}") is None:
        raise AttributeError(f"module 'relbo' has no attribute {name!r}")
    return importlib.import_module(f"relbo.{name}")


if not TYPE_CHECKING:  # a type checker knows the names from the imports above, and a name that is not there is an error

    def __getattr__(name: str) -> Any:
        value = _import(name)
        globals()[name] = value  # asked for once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

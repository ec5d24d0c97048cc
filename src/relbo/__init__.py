"""relbo: boosted black-box variational inference.

A name is imported when it is first used, so that `import relbo` and `relbo --help` need not wait for JAX.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relbo import families, objectives, oracles, plots, steps
    from relbo._compiled import enable_compile_cache
    from relbo.arviz_export import to_arviz
    from relbo.boosting import Booster, State
    from relbo.calibration import Calibration, calibrate
    from relbo.comparison import Agreement, compare
    from relbo.diagnostics import Diagnosis, diagnose, resample
    from relbo.estimate import Estimate
    from relbo.fitting import fit
    from relbo.objectives import RELBO, FiniteStep
    from relbo.oracles import GradientOracle, JointOracle, LaplaceOracle, NaturalOracle, Starts
    from relbo.outcome import Stop
    from relbo.posterior import Posterior
    from relbo.precondition import Preconditioner
    from relbo.prediction import predict
    from relbo.presets import preset
    from relbo.reporting import report
    from relbo.settings import make_booster, paper
    from relbo.steps import Adaptive, Away, Fixed, FullyCorrective, LineSearch, NormCorrective, Pairwise
    from relbo.stopping import GapBelow, MaxComponents, MaxEvaluations, MaxIterations, MaxSeconds, Near, Stalled
    from relbo.storage import load, save
    from relbo.targets import from_callable, from_log_density, from_numpyro, from_pymc, from_stan
    from relbo.trace import Record

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
    "enable_compile_cache",
    "families",
    "fit",
    "from_callable",
    "from_log_density",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "load",
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
    "_compiled": "enable_compile_cache",
    "arviz_export": "to_arviz",
    "boosting": "Booster State",
    "calibration": "Calibration calibrate",
    "comparison": "Agreement compare",
    "diagnostics": "Diagnosis diagnose resample",
    "estimate": "Estimate",
    "fitting": "fit",
    "objectives": "RELBO FiniteStep",
    "oracles": "GradientOracle JointOracle LaplaceOracle NaturalOracle Starts",
    "outcome": "Stop",
    "posterior": "Posterior",
    "precondition": "Preconditioner",
    "prediction": "predict",
    "presets": "preset",
    "reporting": "report",
    "settings": "make_booster paper",
    "steps": "Adaptive Away Fixed FullyCorrective LineSearch NormCorrective Pairwise",
    "stopping": "GapBelow MaxComponents MaxEvaluations MaxIterations MaxSeconds Near Stalled",
    "storage": "load save",
    "targets": "from_callable from_log_density from_numpyro from_pymc from_stan",
    "trace": "Record",
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

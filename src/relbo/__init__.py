"""relbo: boosted black-box variational inference."""

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

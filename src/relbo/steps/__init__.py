"""Step rules: fixed, line search, adaptive, fully corrective, norm-corrective, away and pairwise."""

from relbo.steps.away import Away, Pairwise
from relbo.steps.base import AbstractStep, WeightProblem, WeightUpdate
from relbo.steps.corrective import FullyCorrective
from relbo.steps.frank_wolfe import Adaptive, Fixed, LineSearch
from relbo.steps.norm_corrective import NormCorrective

STEPS: dict[str, AbstractStep] = {
    "fixed": Fixed(),
    "line_search": LineSearch(),
    "fully_corrective": FullyCorrective(),
    "adaptive": Adaptive(),
    "norm_corrective": NormCorrective(),
    "away": Away(),
    "pairwise": Pairwise(),
}

__all__ = [
    "STEPS",
    "AbstractStep",
    "Adaptive",
    "Away",
    "Fixed",
    "FullyCorrective",
    "LineSearch",
    "NormCorrective",
    "Pairwise",
    "WeightProblem",
    "WeightUpdate",
]

"""Objectives, gradient estimators, and Monte Carlo estimates of ELBO and duality gap."""

from relbo.objectives.estimators import (
    ESTIMATORS,
    AbstractEstimator,
    Reparameterized,
    ScoreFunction,
    StickingTheLanding,
)
from relbo.objectives.evaluate import Comparison, Evaluation, compare, duality_gap, elbo, log_ratio
from relbo.objectives.residual import ELBO, RELBO, SCHEDULES, AbstractObjective, FiniteStep

__all__ = [
    "ELBO",
    "ESTIMATORS",
    "RELBO",
    "SCHEDULES",
    "AbstractEstimator",
    "AbstractObjective",
    "Comparison",
    "Evaluation",
    "FiniteStep",
    "Reparameterized",
    "ScoreFunction",
    "StickingTheLanding",
    "compare",
    "duality_gap",
    "elbo",
    "log_ratio",
]

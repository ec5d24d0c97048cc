"""Objectives, gradient estimators, and Monte Carlo estimates of ELBO and duality gap."""

from relbo.objectives.estimators import (
    ESTIMATORS,
    AbstractEstimator,
    Reparameterized,
    ScoreFunction,
    StickingTheLanding,
)
from relbo.objectives.evaluate import Evaluation, duality_gap
from relbo.objectives.residual import ELBO, RELBO, SCHEDULES, AbstractObjective, FiniteStep

__all__ = [
    "ELBO",
    "ESTIMATORS",
    "RELBO",
    "SCHEDULES",
    "AbstractEstimator",
    "AbstractObjective",
    "Evaluation",
    "FiniteStep",
    "Reparameterized",
    "ScoreFunction",
    "StickingTheLanding",
    "duality_gap",
]

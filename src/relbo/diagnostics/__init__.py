"""Did it work? What is measured of a posterior, what it certifies, and a verdict."""

from relbo.diagnostics.diagnosis import Defensive, Diagnosis
from relbo.diagnostics.measure import Measurements, diagnose, diagnosis_of, measure
from relbo.diagnostics.modes import Modes, modes_of
from relbo.diagnostics.parameters import ParameterCheck
from relbo.diagnostics.psis import k_hat_limit, psis
from relbo.diagnostics.resampling import resample, resample_whitened

__all__ = [
    "Defensive",
    "Diagnosis",
    "Measurements",
    "Modes",
    "ParameterCheck",
    "diagnose",
    "diagnosis_of",
    "k_hat_limit",
    "measure",
    "modes_of",
    "psis",
    "resample",
    "resample_whitened",
]

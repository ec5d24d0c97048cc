"""Did it work? What is measured of a posterior, what it certifies, and a verdict."""

from relbo.diagnostics.diagnosis import Diagnosis, diagnose, k_hat_limit, psis
from relbo.diagnostics.modes import Modes, modes_of

__all__ = ["Diagnosis", "Modes", "diagnose", "k_hat_limit", "modes_of", "psis"]

"""A posterior against reference draws."""

from relbo.comparison.agreement import Agreement, Difference, ModeAgreement, ParameterAgreement
from relbo.comparison.differences import compare

__all__ = ["Agreement", "Difference", "ModeAgreement", "ParameterAgreement", "compare"]

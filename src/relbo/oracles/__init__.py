"""Oracles: where the next component is sought, and how."""

from relbo.oracles.ascending import AscentOracle, GradientOracle, NaturalOracle
from relbo.oracles.base import AbstractOracle, Proposal
from relbo.oracles.joint import JointOracle
from relbo.oracles.laplace import LaplaceOracle
from relbo.oracles.starts import Starts, find_modes, mode_evaluations

__all__ = [
    "AbstractOracle",
    "AscentOracle",
    "GradientOracle",
    "JointOracle",
    "LaplaceOracle",
    "NaturalOracle",
    "Proposal",
    "Starts",
    "find_modes",
    "mode_evaluations",
]

"""Oracles: where the next components are sought, and how."""

from relbo.oracles.ascending import AscentOracle, GradientOracle, NaturalOracle
from relbo.oracles.base import AbstractOracle, Proposals
from relbo.oracles.cloud import Cloud, make_cloud
from relbo.oracles.joint import JointOracle
from relbo.oracles.laplace import LaplaceOracle
from relbo.oracles.modes import find_modes, search_modes
from relbo.oracles.starts import Starts

__all__ = [
    "AbstractOracle",
    "AscentOracle",
    "Cloud",
    "GradientOracle",
    "JointOracle",
    "LaplaceOracle",
    "NaturalOracle",
    "Proposals",
    "Starts",
    "find_modes",
    "make_cloud",
    "search_modes",
]

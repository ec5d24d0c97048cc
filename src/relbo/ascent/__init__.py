"""Ascents: natural gradients for normal components, Optax gradients for every family, L-BFGS for modes."""

from relbo.ascent.base import AbstractAscent, Aim, Improved
from relbo.ascent.gradient import GradientAscent
from relbo.ascent.lbfgs import lbfgs_paths
from relbo.ascent.natural import NaturalAscent

__all__ = ["AbstractAscent", "Aim", "GradientAscent", "Improved", "NaturalAscent", "lbfgs_paths"]

"""Ascents: natural gradients for normal components, Optax gradients for every family, L-BFGS for modes."""

from relbo.ascent.base import AbstractAscent
from relbo.ascent.gradient import GradientAscent
from relbo.ascent.lbfgs import kept_steps, lbfgs_evaluations, lbfgs_path, lbfgs_paths, map_walks
from relbo.ascent.natural import NaturalAscent

__all__ = [
    "AbstractAscent",
    "GradientAscent",
    "NaturalAscent",
    "kept_steps",
    "lbfgs_evaluations",
    "lbfgs_path",
    "lbfgs_paths",
    "map_walks",
]

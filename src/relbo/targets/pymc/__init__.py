"""PyMC models as targets, by the JAX functions of their graphs."""

from relbo.targets.pymc.target import PyMCTarget, from_pymc

__all__ = ["PyMCTarget", "from_pymc"]

"""What pictures and pages show of a posterior, as plain arrays: nothing here draws."""

from relbo.views.densities import component_densities, grid_of, plane_densities
from relbo.views.palette import COLOURS, OTHERS, colour_of
from relbo.views.ratios import log_ratios
from relbo.views.scalars import Scalars, choose_names, scalars

__all__ = [
    "COLOURS",
    "OTHERS",
    "Scalars",
    "choose_names",
    "colour_of",
    "component_densities",
    "grid_of",
    "log_ratios",
    "plane_densities",
    "scalars",
]

"""Pictures of fits, by matplotlib (extra `plots`). Every function takes Axes, or makes them, and returns them.

    axes = relbo.plots.marginals(posterior)
    axes[0].figure.savefig("marginals.png")

Colours are those of `relbo.views.palette`, which the colour-blind can tell apart.
"""

from relbo.plots.components import components
from relbo.plots.coordinates import coordinates
from relbo.plots.draws import marginals, pairs
from relbo.plots.iterations import elbo, gap, weights
from relbo.plots.ranks import ranks
from relbo.plots.ratios import k_hats, ratios

__all__ = [
    "components",
    "coordinates",
    "elbo",
    "gap",
    "k_hats",
    "marginals",
    "pairs",
    "ranks",
    "ratios",
    "weights",
]

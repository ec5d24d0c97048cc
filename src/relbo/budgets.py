r"""How much work the default settings do, by the number of dimensions: the one place where it is decided.

Up to `DENSE_LIMIT` dimensions every number below stands as it is, but for what a step draws. In many dimensions a draw
costs more, and what is left to gain is larger: the noise of a sum over $d$ coordinates grows like the square root of
$d$ where the sum itself grows like $d$, so that its relative error falls. So beyond the limit a budget is halved for
every doubling of the dimension, as far as a least number that still gives an error bar or a choice. What a user sets
is never touched.
"""

import dataclasses
import math

from relbo.families import DENSE_LIMIT
from relbo.runtime.quasi import MOST_COORDINATES

ENOUGH = 0.005
"""Nats. Nearer to the target, judged by half the variance of log p - log q, a fit has nothing left to do that is
worth its evaluations."""
ENOUGH_LEARNED = 0.05
"""The same in coordinates that were learned, where boosting finds little: an iteration in vain is a fifth of a fit."""
MOST_COMPONENTS = 32  # of a fit, unless the user says more: what is not near by then needs another family
MIN_IMPROVEMENT = 1e-4  # nats, for an iteration to be kept: far below what `ENOUGH` leaves over
_FEW_DIMENSIONS = 32
"""Up to here a mixture has all its slots at once. Beyond, a step over empty slots costs more than to compile again when
they are full: the work of a refinement grows with their square."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """The numbers that depend on the dimension. Draws are for each component and step, unless said otherwise."""

    capacity: int
    """Slots of a mixture until they are full, and doubled. Every evaluation of the mixture visits all, empty or not."""
    ascent_draws: int
    """Draws of a natural-gradient step: of the race for the map and the oracle."""
    refine_draws: int
    """Draws of such a step in a refinement, where all components move."""
    step_size: float
    """Of the first of these steps. Beyond the limit components are diagonal: their steps overshoot along a direction
    in which many coordinates go together, the more so the more there are."""
    refine_step_size: float
    """Of the first step of a refinement. The noise of full covariances costs about $\\rho d s^2 / 4n$ nats at step size
    rho, with n draws and a spread s of log p - log q: in many dimensions steps must be shorter for a refinement to
    gain more than it loses."""
    num_restarts: int
    """Starts that the oracle moves uphill."""
    num_walks: int
    """L-BFGS walks that look for modes."""
    num_curved: int
    """Points of such walks that take part in the race for the map; the other runners start at the first point."""
    num_residual: int
    """Residual draws in the oracle's pool of starts."""
    num_initial: int
    """Points given by the user in that pool, taking turns."""
    start_draws: int
    """Draws that score a start."""
    weight_draws: int
    """Draws on which weights are found, and against which starts are scored."""
    measure_draws: int
    """Draws, over all slots, on which an iteration is measured at the most; fewer where fewer tell enough."""
    min_gain: float
    """Nats a component, below which a fit counts as stalled: beyond the limit, a hundred-thousandth a coordinate."""
    min_share: float
    """And the share of what is left to gain, below which it does too: in many dimensions iterations are expensive."""
    rank: int
    """Of the affine map beyond `DENSE_LIMIT`."""


def budget(dim: int) -> Budget:
    """The budget in `dim` dimensions."""

    def thinned(num: int, least: int) -> int:
        halvings = max(0, math.ceil(math.log2(dim / DENSE_LIMIT)))
        return max(least, num >> halvings)

    return Budget(
        capacity=32 if dim <= _FEW_DIMENSIONS else 16,
        ascent_draws=thinned(_draws(dim), 4),
        refine_draws=thinned(_draws(dim), 4),
        step_size=thinned(4, 1) / 10,
        refine_step_size=min(0.4, 0.4 * 24 / dim) if dim <= DENSE_LIMIT else thinned(4, 1) / 10,
        num_restarts=thinned(6, 2),
        num_walks=thinned(12, 2),
        num_curved=thinned(4, 1),
        num_residual=thinned(16, 2),
        num_initial=thinned(4, 1),
        start_draws=thinned(8, 4),
        weight_draws=thinned(64, 32),
        measure_draws=thinned(8192, 512),
        min_gain=max(5e-4, min(1e-5 * dim, 0.3)) if dim > DENSE_LIMIT else 5e-4,
        min_share=0.0 if dim <= _FEW_DIMENSIONS else 0.1,
        rank=thinned(64, 10) if dim > DENSE_LIMIT else 10,
    )


def _draws(dim: int) -> int:
    """Of a natural-gradient step. In few dimensions they are quasi-random, and half as many leave less noise."""
    if dim <= MOST_COORDINATES:
        return 8
    return 16 if dim <= 24 else 32


FEW = budget(DENSE_LIMIT)
"""In few dimensions."""

r"""How much work the default settings do, by the number of dimensions: the one place where it is decided.

Up to `DENSE_LIMIT` dimensions every number below stands as it is. In many dimensions a draw costs more, and what is
left to gain is larger: the noise of a sum over $d$ coordinates grows like the square root of $d$ where the sum itself
grows like $d$, so that its relative error falls. So beyond the limit a budget is halved for every doubling of the
dimension, as far as a least number that still gives an error bar or a choice. What a user sets is never touched.
"""

import dataclasses
import math

from relbo.families import DENSE_LIMIT


@dataclasses.dataclass(frozen=True)
class Budget:
    """The numbers that depend on the dimension. Draws are for each component and step, unless said otherwise."""

    capacity: int
    """Slots of a mixture until they are full. Every evaluation of the mixture visits all of them, empty or not."""
    slots_at_once: int
    """Slots that are worked on together in a refinement; a group without a component is skipped."""
    ascent_draws: int
    """Draws of a natural-gradient step: of the race for the map, the oracle and the refinement."""
    step_size: float
    """Of the first of these steps. Beyond the limit components are diagonal: their steps overshoot along a direction
    in which many coordinates go together, the more so the more there are."""
    num_restarts: int
    """Starts that the oracle moves uphill."""
    num_walks: int
    """L-BFGS walks that look for modes."""
    num_curved: int
    """Ends of such walks that take part in the race for the map."""
    num_widths: int
    """Normals at the first starting point that take part in it, each of another width."""
    num_residual: int
    """Residual draws in the oracle's pool of starts."""
    num_initial: int
    """Points given by the user in that pool, taking turns."""
    start_draws: int
    """Draws that score a start."""
    pool_draws: int
    """Draws of the mixture, over all slots, against which starts are scored."""
    weight_draws: int
    """Draws on which weights are found."""
    measure_draws: int
    """Draws, over all slots, on which an iteration is measured."""
    min_gain: float
    """Nats a component, below which a fit counts as stalled: beyond the limit, a hundred-thousandth a coordinate."""
    rank: int
    """Of the affine map beyond `DENSE_LIMIT`."""


def budget(dim: int) -> Budget:
    """The budget in `dim` dimensions."""

    def thinned(num: int, least: int) -> int:
        halvings = max(0, math.ceil(math.log2(dim / DENSE_LIMIT)))
        return max(least, num >> halvings)

    return Budget(
        capacity=thinned(32, 8),
        slots_at_once=thinned(8, 1),
        ascent_draws=thinned(32, 4),
        step_size=thinned(4, 1) / 10,
        num_restarts=thinned(6, 2),
        num_walks=thinned(48, 2),
        num_curved=thinned(4, 1),
        num_widths=thinned(3, 2),
        num_residual=thinned(24, 2),
        num_initial=thinned(8, 1),
        start_draws=thinned(32, 4),
        pool_draws=thinned(1024, 64),
        weight_draws=thinned(256, 32),
        measure_draws=thinned(16384, 512),
        min_gain=max(5e-4, min(1e-5 * dim, 0.3)) if dim > DENSE_LIMIT else 5e-4,
        rank=thinned(64, 10) if dim > DENSE_LIMIT else 10,
    )


FEW = budget(DENSE_LIMIT)
"""In few dimensions."""

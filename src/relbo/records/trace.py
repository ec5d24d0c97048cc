"""The record of one iteration: what a person may read, in plain numbers."""

import math
from dataclasses import dataclass, field

import numpy as np

from relbo.records.estimate import Estimate


@dataclass(frozen=True)
class Record:
    """One iteration of a fit. Estimates carry standard errors; `evaluations` and `seconds` are of this iteration."""

    iteration: int
    kind: str
    """The kind of step: "first", "fully-corrective", "frank-wolfe", "away", "pairwise", "flow", "polish"."""
    accepted: bool
    num_components: int
    weights: np.ndarray
    step_size: float
    elbo: Estimate
    """Of the mixture after this iteration."""
    improvement: Estimate | None
    """ELBO after less ELBO before, on common random numbers, of what was tried (kept only if accepted)."""
    gap: Estimate | None
    """Duality gap of the mixture before this iteration, measured with the component that was proposed."""
    objective: Estimate | None
    """The oracle's objective for that component."""
    seconds: float
    evaluations: int
    num_nan: int
    """Draws skipped because their log density was NaN."""
    num_zero: int
    """Draws outside the support, where the density is zero."""
    nan_fraction: float
    """The share of this iteration's measuring draws that were NaN."""
    spread: float = math.nan
    """The standard deviation of log p - log q under the mixture that was measured, in nats."""
    rounding: float = 0.0
    """What the last digit of log p was worth at the draws that measured this iteration, in nats. Errors contain it."""
    several_modes: bool = False
    """Whether walks for modes ended in different places: there may be more."""
    compile_seconds: float = 0.0
    """Of `seconds`, those in which JAX traced and compiled programs."""
    spent: dict[str, int] = field(default_factory=dict)
    """`evaluations` by purpose: walks, curvature, race, flow, starts, proposals, weights, refinement, measuring,
    checks."""


def spread_of(records: list[Record]) -> float:
    """The spread of the mixture that there is: of the last iteration that was kept."""
    return next((record.spread for record in reversed(records) if record.accepted), math.inf)

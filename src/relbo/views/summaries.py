"""A posterior in a table: every scalar parameter with its mean, its standard deviation and its quantiles."""

import math
from dataclasses import dataclass

import numpy as np

from relbo.diagnostics.parameters import named_columns
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate

LEVELS = (0.05, 0.5, 0.95)  # a 90 % interval and the median, as Stan's summaries have


@dataclass(frozen=True)
class ParameterSummary:
    """One scalar parameter, constrained. Errors are those of the draws: how good the fit is, `diagnose` says."""

    name: str
    mean: Estimate
    sd: Estimate
    quantiles: tuple[float, ...]
    """At `LEVELS`."""


def summarize(posterior: Posterior, num_draws: int = 2000, seed: int = 0) -> list[ParameterSummary]:
    """In the order of the model. Where only a file's own draws are there, fewer may be taken."""
    target = posterior.target
    if target.stored is not None and target.stored.layout is None:
        num_draws = target.stored.at_most(num_draws)
    names, columns = named_columns(posterior.sample(num_draws, seed=seed), target.first_index)
    return [_summary(name, column) for name, column in zip(names, columns.T, strict=True)]


def _summary(name: str, values: np.ndarray) -> ParameterSummary:
    """Standard errors of independent draws; that of the standard deviation by the delta method."""
    num, mean = len(values), float(values.mean())
    squares = (values - mean) ** 2
    sd = math.sqrt(float(squares.mean()))
    sd_error = float(squares.std()) / (2 * sd * math.sqrt(num)) if sd > 0 else 0.0
    quantiles = tuple(float(level) for level in np.quantile(values, LEVELS))
    return ParameterSummary(name, Estimate(mean, sd / math.sqrt(num), num), Estimate(sd, sd_error, num), quantiles)

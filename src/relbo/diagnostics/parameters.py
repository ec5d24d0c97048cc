r"""Parameter by parameter: how far the mixture's mean and standard deviation are off, and whether weights mend them.

An importance-sampling estimate of $E[h]$ is as good as the tail of $w |h|$ is light, which may be heavier than that of
$w$ alone (Vehtari et al. 2024, section on k-hat for functions): a mean may be safe where a variance is not.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import PyTree

from relbo.diagnostics.estimates import Weighted
from relbo.diagnostics.psis import tail_k_hat
from relbo.records.estimate import Estimate
from relbo.targets.layout import entry_names, named_leaves

MOST_FITTED = 50
"""Tails are fitted for so many parameters, those where single draws weigh most."""
_FEWEST_BEHIND = 50
"""A weighted variance made by fewer draws than this, effectively, may not exist: it is held against no mixture."""


@dataclass(frozen=True)
class ParameterCheck:
    """One scalar parameter, constrained, as in `posterior.sample`. The truth here is what importance weights say."""

    name: str
    mean_error: Estimate
    """The mixture's mean less the weighted one, in weighted standard deviations."""
    log_sd_error: Estimate
    """The logarithm of the mixture's standard deviation over the weighted one: -0.1 is ten per cent too narrow."""
    k_hat_mean: float
    """Of the weighted mean; NaN if not fitted."""
    k_hat_variance: float

    def describe(self) -> str:
        """In words, the larger of the two errors."""
        if abs(float(self.log_sd_error.value)) < abs(float(self.mean_error.value)):
            return f"the mean of {self.name} is off by {self.mean_error.value:+.2g} sd"
        ratio = math.exp(self.log_sd_error.value)
        return f"the sd of {self.name} is {ratio:.2g} times what it should be"


def named_columns(values: PyTree, first_index: int = 0) -> tuple[list[str], np.ndarray]:
    """A tree of draws as names and a matrix: one column for every scalar parameter, counted from `first_index`."""
    names, columns = [], []
    for name, leaf in named_leaves(values)[0]:
        array = np.asarray(leaf)
        if not np.issubdtype(array.dtype, np.number):
            continue
        flat = array.reshape(len(array), -1).astype(np.float64)
        names += entry_names(name, array.shape[1:], first_index)
        columns.append(flat)
    return names, np.concatenate(columns, axis=1) if columns else np.zeros((0, 0))


def check_parameters(
    names: list[str], values: np.ndarray, weighted: Weighted, num_own: int
) -> tuple[ParameterCheck, ...]:
    """Every column of `values` (num_draws, num_parameters), the most wrong first. Constant columns are left out."""
    if not weighted.ess:
        return ()
    values = values[weighted.keep]
    # A draw outside the support is none of the posterior's: `sample` rejects it.
    own = (weighted.keep < num_own) & np.isfinite(weighted.log_weights)
    weights = np.exp(weighted.log_weights)
    # A draw without weight may lie where a parameter overflows.
    values = np.where((weights[:, None] < 1e-300) & ~own[:, None] & ~np.isfinite(values), 0.0, values)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mean = weights @ values
        offset = values - mean
        variance = weights @ offset**2
        mean_error = (values[own].mean(axis=0) - mean) / np.sqrt(variance)
        log_sd_error = 0.5 * np.log(values[own].var(axis=0) / variance)
        mean_se = np.sqrt(weights**2 @ offset**2 / variance + 1 / own.sum())
        squares = offset**2 / variance - 1
        sd_se = 0.5 * np.sqrt(weights**2 @ squares**2 + np.mean(squares[own] ** 2, axis=0) / own.sum())
        leading = weights[:, None] * offset**2 / variance
        sd_se = np.where(1 / np.sum(leading**2, axis=0) < _FEWEST_BEHIND, np.inf, sd_se)
    varies = np.flatnonzero((variance > 0) & np.isfinite(mean_error))
    fitted = _heaviest(weights, offset, varies)
    checks = []
    for column in varies:
        k_mean, k_variance = _k_hats(weighted, offset[:, column]) if column in fitted else (float("nan"), float("nan"))
        checks.append(
            ParameterCheck(
                names[column],
                Estimate(float(mean_error[column]), float(mean_se[column]), len(weights)),
                Estimate(float(log_sd_error[column]), float(sd_se[column]), len(weights)),
                k_mean,
                k_variance,
            )
        )
    return tuple(sorted(checks, key=_size))


def _heaviest(weights: np.ndarray, offset: np.ndarray, columns: np.ndarray) -> set[int]:
    sizes = weights[:, None] * offset[:, columns] ** 2
    leading = sizes.max(axis=0) / sizes.sum(axis=0)
    return set(columns[np.argsort(-leading, kind="stable")[:MOST_FITTED]].tolist())


def _k_hats(weighted: Weighted, offset: np.ndarray) -> tuple[float, float]:
    """k-hat of the weighted mean and of the weighted variance; no better than that of the weights."""
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(offset))
    inside = np.isfinite(weighted.log_weights) & np.isfinite(log_size)
    log_weights, log_size = weighted.log_weights[inside], log_size[inside]
    first, second = (tail_k_hat(log_weights + power * log_size) for power in (1, 2))
    return max(weighted.k_hat, first), max(weighted.k_hat, second)


def _size(check: ParameterCheck) -> float:
    return -max(abs(float(check.mean_error.value)), abs(float(check.log_sd_error.value)))

r"""Estimates from plain arrays of log ratios, each with its error: nothing here knows a mixture or a device.

Draws come in two strata, of the mixture and of its heavy companion (`defensive.py`). Every estimate is a smooth
function of stratum means, and its error follows from the variance of its influence function in each stratum.
"""

import math
from dataclasses import dataclass

import numpy as np

from relbo.diagnostics.psis import k_hat_limit, num_tail, psis, tail_stake
from relbo.records.estimate import Estimate

NEGLIGIBLE_ERROR = 0.01
"""Of the total weight: if the tail can put it off by no more, its shape does not matter."""
_FEWEST_EFFECTIVE = 100  # an average over fewer is off by more than a tenth of a standard deviation


@dataclass(frozen=True)
class Weighted:
    """Importance weights of all draws, normalised, and how far they can be trusted. NaN draws are left out."""

    log_weights: np.ndarray
    """Pareto-smoothed, -inf for a draw outside the support."""
    keep: np.ndarray
    """Which draws of the sample they belong to."""
    k_hat: float
    k_hat_limit: float
    stake: float
    """The part of the weight that lies in the fitted tail (`tail_stake`)."""
    ess: float
    explored: bool
    """Whether defensive draws are among them: only then a tail that looks small is known to be small."""

    @property
    def reliable(self) -> bool:
        """Whether estimates with these weights have honest errors: a light tail, or nothing in it; and enough draws."""
        light = self.k_hat < self.k_hat_limit or (self.explored and self.tail_error < NEGLIGIBLE_ERROR)
        return bool(light and self.ess >= _FEWEST_EFFECTIVE)

    @property
    def tail_error(self) -> float:
        """How far the tail may put the total weight off: a sum of n Pareto excesses has relative error n^(k - 1)."""
        return self.stake * num_tail(len(self.keep)) ** (min(self.k_hat, 1.0) - 1)


def balanced(log_ratio: np.ndarray, log_heavy: np.ndarray, num_own: int) -> np.ndarray:
    """log p - log(a_1 q + a_2 t), the balance heuristic, from log p - log q and log t - log q."""
    share = num_own / len(log_ratio)
    if share == 1:
        return log_ratio
    return log_ratio - np.logaddexp(math.log(share), math.log1p(-share) + log_heavy)


def weigh(log_ratio: np.ndarray, explored: bool = False) -> Weighted:
    """Smoothed weights of draws with these log ratios (NaN and -inf among them)."""
    keep = np.flatnonzero(~np.isnan(log_ratio))
    inside = np.isfinite(log_ratio[keep])
    log_weights = np.full(len(keep), -np.inf)
    if inside.sum() < _FEWEST_EFFECTIVE:
        return Weighted(log_weights, keep, math.inf, 0.0, math.inf, 0.0, explored)
    ratios = log_ratio[keep][inside]
    log_weights[inside], k_hat = psis(ratios)
    ess = float(np.exp(-np.logaddexp.reduce(2 * log_weights[inside])))
    return Weighted(log_weights, keep, k_hat, k_hat_limit(len(keep)), tail_stake(ratios), ess, explored)


def elbo_influence(log_ratio: np.ndarray) -> tuple[float, np.ndarray]:
    """ELBO of the mixture restricted to the support (see `objectives/evaluate.py`) from its own draws without NaN."""
    inside = np.isfinite(log_ratio)
    if not inside.any():
        return -math.inf, np.zeros_like(log_ratio)
    mass = inside.mean()
    mean = log_ratio[inside].mean()
    influence = np.where(inside, (np.where(inside, log_ratio, 0.0) - mean + 1) / mass, 0.0) - 1
    return float(mean + np.log(mass)), influence


def log_z_influence(log_weight: np.ndarray, log_heavy: np.ndarray, num_own: int) -> tuple[float, np.ndarray]:
    r"""log of the mean weight, from draws without NaN of which the first `num_own` are the mixture's.

    The share of q in the sampling density, $q / (\alpha_1 q + \alpha_2 t)$, has mean one: as a control variate it makes
    the estimate as good as the better of the two strata alone (Owen and Zhou 2000), and exact where $p = Z q$.
    """
    if not np.isfinite(log_weight).any():
        return -math.inf, np.zeros_like(log_weight)
    shift = log_weight.max()
    weight = np.exp(log_weight - shift)
    share = num_own / len(log_weight)
    if share < 1:
        control = np.exp(-np.logaddexp(math.log(share), math.log1p(-share) + log_heavy)) - 1
        centered, weights_centered = _center(control, num_own), _center(weight, num_own)
        variance = np.sum(centered**2)
        slope = np.sum(centered * weights_centered) / variance if variance > 0 else 0.0
        adjusted = weight - slope * control
        if adjusted.mean() > 0:
            weight = adjusted
    mean = weight.mean()
    return float(shift + np.log(mean)), weight / mean - 1


def stratified_error(influence: np.ndarray, num_own: int) -> float:
    """The standard error of an estimate whose influence at draw i of N is `influence[i]`."""
    parts = [part for part in (influence[:num_own], influence[num_own:]) if len(part) > 1]
    return math.sqrt(sum(len(part) * part.var(ddof=1) for part in parts)) / len(influence)


def _center(values: np.ndarray, num_own: int) -> np.ndarray:
    parts = [part - part.mean() for part in (values[:num_own], values[num_own:]) if len(part)]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Worth:
    """What a mixture is worth: ELBO, log Z, and their difference."""

    elbo: Estimate
    log_z: Estimate
    kl: Estimate


def worth(log_ratio: np.ndarray, log_heavy: np.ndarray, num_own: int) -> Worth:
    """From all draws, NaN ones among them: they are left out."""
    valid = ~np.isnan(log_ratio)
    own = int(valid[:num_own].sum())
    ratio, heavy = log_ratio[valid], log_heavy[valid]
    num = len(ratio)
    if own < 2:
        nothing = Estimate(math.nan, math.inf, num)
        return Worth(nothing, nothing, nothing)
    elbo, elbo_part = elbo_influence(ratio[:own])
    log_z, log_z_part = log_z_influence(balanced(ratio, heavy, own), heavy, own)
    # The ELBO is a mean over the own draws alone: as a mean over all, theirs count N / n_1 times.
    elbo_all = np.concatenate([elbo_part * (num / own), np.zeros(num - own)])
    return Worth(
        Estimate(elbo, stratified_error(elbo_part, own), own),
        Estimate(log_z, stratified_error(log_z_part, own), num),
        Estimate(log_z - elbo, stratified_error(log_z_part - elbo_all, own), num),
    )


def misplaced_mass(weighted: Weighted, log_heavy: np.ndarray, num_own: int) -> float:
    """The total variation distance of q and p: no probability computed from the draws is off by more."""
    if not weighted.ess:
        return math.nan
    kept_own = int((weighted.keep < num_own).sum())
    share = kept_own / len(weighted.keep)
    own = np.ones(len(weighted.keep))
    if share < 1:
        own = np.exp(-np.logaddexp(math.log(share), math.log1p(-share) + log_heavy[weighted.keep]))
    own = np.where(np.isfinite(weighted.log_weights), own, 0.0)  # q restricted to the support, as its draws are
    return float(0.5 * np.abs(np.exp(weighted.log_weights) - own / own.sum()).sum())


def weighted_share(weighted: Weighted, chosen: np.ndarray) -> Estimate:
    """The part of the mass at `chosen` draws (of the whole sample)."""
    weights, part = np.exp(weighted.log_weights), chosen[weighted.keep]
    value = float(weights[part].sum())
    error = float(np.sqrt(np.sum(weights**2 * (part - value) ** 2)))
    return Estimate(value, error, len(weights))

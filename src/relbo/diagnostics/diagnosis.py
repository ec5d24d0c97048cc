r"""Did it work? ELBO, duality gap, k-hat, log Z and effective sample size of a fitted posterior, and a sentence.

The Pareto tail fit is written here, in thirty lines of NumPy, because the packages that have it (ArviZ) take seconds to
import and are no dependency of ours; a test holds it equal to ArviZ's.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from relbo._compiled import compiled
from relbo.estimate import Estimate
from relbo.mixture import map_chunks
from relbo.objectives import duality_gap, log_ratio
from relbo.posterior import Posterior

_GAP_DRAWS = 8192


@dataclass(frozen=True)
class Diagnosis:
    """Fresh measurements of a posterior. Printing it gives a short table."""

    elbo: Estimate
    gap: Estimate
    """Towards the best component that the oracle finds now; it certifies as far as the oracle is exact.

    The true gap is never negative: a value clearly below zero means that the oracle found nothing to add.
    """
    log_z: Estimate
    """By importance sampling; its error is honest where `k_hat` is below 0.7."""
    k_hat: float
    k_hat_limit: float
    ess: float
    num_draws: int
    num_components: int
    num_nan: int
    num_zero: int
    verdict: str

    def __str__(self) -> str:
        rows = [
            ("ELBO", str(self.elbo)),
            ("duality gap", str(self.gap)),
            ("log Z", str(self.log_z)),
            ("k-hat", f"{self.k_hat:.2f} (good below {self.k_hat_limit:.2f})"),
            ("effective draws", f"{self.ess:.0f} of {self.num_draws}"),
            ("components", str(self.num_components)),
        ]
        if self.num_nan:
            rows.append(("NaN draws", str(self.num_nan)))
        if self.num_zero:
            rows.append(("outside support", str(self.num_zero)))
        width = max(len(name) for name, _ in rows)
        return "\n".join([*(f"{name:<{width}}  {value}" for name, value in rows), self.verdict])


def diagnose(posterior: Posterior, num_draws: int = 10_000, seed: int = 0) -> Diagnosis:
    """Measure a posterior on fresh draws, and say in a sentence what the numbers mean."""
    if num_draws < 100:
        raise ValueError(f"num_draws must be at least 100, got {num_draws}: a tail fit needs a tail.")
    draw_key, oracle_key, gap_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0x5EED), 3)
    ratios = np.asarray(_log_ratios(draw_key, posterior.whitened, posterior.mixture, num_draws), np.float64)
    num_nan, num_zero = int(np.isnan(ratios).sum()), int(np.isneginf(ratios).sum())
    ratios = ratios[~np.isnan(ratios)]
    inside = ratios[np.isfinite(ratios)]
    gap = _gap(oracle_key, gap_key, posterior)
    if len(inside) < 100:
        elbo, log_z, k_hat, ess = (
            Estimate(-math.inf, math.inf, len(inside)),
            Estimate(math.nan, math.inf, 0),
            math.inf,
            0.0,
        )
    else:
        elbo = _elbo(ratios)
        log_z = _log_z(ratios)
        smoothed, k_hat = psis(inside)
        ess = float(np.exp(-np.logaddexp.reduce(2 * smoothed)))
    limit = k_hat_limit(num_draws)
    verdict = _verdict(k_hat, limit, gap, num_nan / num_draws, num_zero / num_draws)
    return Diagnosis(
        elbo, gap, log_z, k_hat, limit, ess, num_draws, posterior.num_components, num_nan, num_zero, verdict
    )


@compiled
def _log_ratios(key, target, mixture, num_draws):
    draws = mixture.sample(key, num_draws)
    return map_chunks(lambda z: log_ratio(target, mixture, z), draws, target.points_at_once)


def _gap(oracle_key, gap_key, posterior: Posterior) -> Estimate:
    booster, state, target = posterior.booster, posterior.state, posterior.whitened
    iteration = jnp.asarray(state.iteration + 1)
    proposal = booster.oracle.propose(
        oracle_key, target, posterior.mixture, state.modes, booster.objective, booster.estimator, iteration
    )
    num_each = max(2, _GAP_DRAWS // posterior.mixture.capacity)
    return _measure_gap(gap_key, target, posterior.mixture, proposal.params, num_each).estimate.to_host()


@compiled
def _measure_gap(key, target, mixture, params, num_each):
    return duality_gap(key, target, mixture, params, num_each)


def _elbo(ratios: np.ndarray) -> Estimate:
    """ELBO of the mixture restricted to the support (see `objectives/evaluate.py`)."""
    inside = np.isfinite(ratios)
    mass = inside.mean()
    mean = ratios[inside].mean()
    influence = np.where(inside, (np.where(inside, ratios, 0.0) - mean + 1) / mass, 0.0)
    return Estimate(float(mean + np.log(mass)), float(influence.std(ddof=1) / math.sqrt(len(ratios))), len(ratios))


def _log_z(ratios: np.ndarray) -> Estimate:
    shift = ratios.max()
    weights = np.exp(ratios - shift)
    mean = weights.mean()
    relative = weights.std(ddof=1) / (mean * math.sqrt(len(weights)))
    return Estimate(float(shift + np.log(mean)), float(relative), len(weights))


def k_hat_limit(num_draws: int) -> float:
    """Above it the error of importance sampling with so many draws cannot be trusted (Vehtari et al. 2024)."""
    return min(1 - 1 / math.log10(num_draws), 0.7)


def psis(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed, normalised log weights and k-hat (Vehtari, Simpson, Gelman, Yao and Gabry 2024)."""
    num = len(log_ratios)
    shifted = log_ratios - log_ratios.max()
    num_tail = math.ceil(min(num / 5, 3 * math.sqrt(num)))
    order = np.argsort(shifted, kind="stable")
    tail = order[-num_tail:]
    cutoff = max(shifted[order[-num_tail - 1]], math.log(np.finfo(float).tiny))
    tail = tail[shifted[tail] > cutoff]
    if len(tail) <= 4:
        return shifted - np.logaddexp.reduce(shifted), math.inf
    excess = np.exp(shifted[tail]) - math.exp(cutoff)
    k_hat, scale = _fit_pareto(excess)
    smoothed = shifted.copy()
    if math.isfinite(k_hat):
        levels = (np.arange(len(tail)) + 0.5) / len(tail)
        quantiles = scale * np.expm1(-k_hat * np.log1p(-levels)) / k_hat if k_hat else -scale * np.log1p(-levels)
        smoothed[tail] = np.minimum(np.log(quantiles + math.exp(cutoff)), 0.0)
    return smoothed - np.logaddexp.reduce(smoothed), k_hat


def _fit_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto law for sorted excesses (Zhang and Stephens 2009), with a weak prior."""
    num = len(excess)
    num_grid = 30 + int(math.sqrt(num))
    grid = 1 - np.sqrt(num_grid / (np.arange(1, num_grid + 1) - 0.5))
    grid = grid / (3 * excess[int(num / 4 + 0.5) - 1]) + 1 / excess[-1]
    shapes = np.log1p(-grid[:, None] * excess).mean(axis=1)
    log_likelihood = num * (np.log(-grid / shapes) - shapes - 1)
    with np.errstate(over="ignore"):  # a hopeless grid point gets weight 1 / inf = 0
        weights = 1 / np.exp(log_likelihood - log_likelihood[:, None]).sum(axis=1)
    keep = weights >= 10 * np.finfo(float).eps
    weights, grid = weights[keep] / weights[keep].sum(), grid[keep]
    point = np.sum(grid * weights)
    shape = np.log1p(-point * excess).mean()
    scale = -shape / point
    return float((num * shape + 10 * 0.5) / (num + 10)), float(scale)


def _verdict(k_hat: float, limit: float, gap: Estimate, nan_share: float, zero_share: float) -> str:
    if nan_share > 0.01:
        return f"Do not trust it: {nan_share:.0%} of the draws have a NaN log density. Check the model there."
    if zero_share > 0.05:
        return (
            f"Usable with care: {zero_share:.0%} of the draws lie outside the support. "
            "Declare the parameters' supports, so that no draw can."
        )
    if k_hat < min(0.5, limit):
        return "Good: draws can be used as they are, log Z and importance weights are reliable."
    if k_hat < limit:
        return "Good where the mass is, light in the tails: use importance weights for tail quantities."
    if gap.value - 2 * gap.std_err > 0.5:
        return "Not converged: the duality gap is still large. Continue with start= and a larger max_components."
    return "Do not trust the tails: the target's are heavier than the mixture's. Try family='student_t'."

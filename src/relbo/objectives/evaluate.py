r"""Monte Carlo estimates of what a mixture is worth, each with its standard error, from log ratios at its draws.

Draws are stratified (the same number from every component), and every estimate is a smooth function of stratum means,
so its error follows from the variance of its influence function in each stratum. All of it is arithmetic on the host,
in double precision: `ratios[k, n]` is log p - log q at draw n of slot k.

Where $p$ is zero on part of the space, the estimates are of the mixture restricted to $p > 0$, which is what rejecting
such draws samples: with $c = q(p > 0)$, $\mathrm{ELBO} = E_q[1_{p>0} (\log p - \log q)] / c + \log c$. A draw with a
NaN log density is skipped and counted; it is never read as zero density.
"""

from dataclasses import dataclass

import numpy as np

from relbo.records.estimate import Estimate

_NEAR = 0.15
"""The standard deviation of log p - log q, in nats, up to which the error bars of importance ratios are honest."""
_AGREE = 2.0
"""Standard errors within which two estimates of log Z agree."""


@dataclass(frozen=True)
class Evaluation:
    """An estimate, with the numbers of draws whose log density was NaN and of draws outside the support."""

    estimate: Estimate
    num_nan: int
    num_zero: int
    spread: float = float("nan")
    """The standard deviation of one draw's value."""
    rounding: float = 0.0
    """What the last digit of log p is worth there, in nats. It is part of the estimate's error."""

    @property
    def nan_fraction(self) -> float:
        return self.num_nan / max(1, self.estimate.num_draws)


@dataclass(frozen=True)
class Influence:
    """Weighted stratum means of `per_draw` estimate `value`; NaN draws are masked out of both."""

    value: float
    mean: float
    """Without log c: the mean ratio of the restricted mixture."""
    per_draw: np.ndarray
    mean_per_draw: np.ndarray
    valid: np.ndarray
    num_nan: int
    num_zero: int
    spread: float
    """The standard deviation of the ratio under the mixture. Half its square is the divergence, where that is small."""
    num_used: int
    """Draws of components: those of empty slots do not count."""
    log_z: float
    """The logarithm of the mean of p / q: log Z as far as q covers p, and its part under q otherwise."""
    log_z_per_draw: np.ndarray
    rounding: float
    """What the last digit of log p is worth. Errors of draws average out; that of a long sum, rounded, does not."""

    @property
    def divergence_per_draw(self) -> np.ndarray:
        return self.log_z_per_draw - self.per_draw

    def std_err(self) -> float:
        """Of the draws alone."""
        return _stratified_std_err(self.per_draw, self.valid)

    def std_err_of_mean(self) -> float:
        return _stratified_std_err(self.mean_per_draw, self.valid)

    def evaluation(self) -> Evaluation:
        """ELBO(q) = E_q[log p - log q], from draws of every component that has weight."""
        estimate = Estimate(self.value, float(np.hypot(self.std_err(), self.rounding)), self.num_used)
        return Evaluation(estimate, self.num_nan, self.num_zero, self.spread, self.rounding)


def duality_gap(inside: Influence, component_ratios: np.ndarray) -> Evaluation:
    r"""$E_s[\log p - \log q] - E_q[\log p - \log q]$ from log ratios at fresh draws of one component $s$.

    With $s$ the exact oracle's answer over the bounded family this bounds $\mathrm{KL}(q\|p) - \min_{q'}
    \mathrm{KL}(q'\|p)$ from above. With any other $s$ it is smaller: an estimate, not a certificate.
    """
    # Of restricted densities: log q - log c is the restricted mixture in both terms, and log c cancels.
    outside = influence(component_ratios[None], np.ones(1))
    std_err = float(np.hypot(np.hypot(outside.std_err_of_mean(), inside.std_err_of_mean()), inside.rounding))
    num_nan, num_zero = inside.num_nan + outside.num_nan, inside.num_zero + outside.num_zero
    num_draws = inside.num_used + component_ratios.size
    return Evaluation(Estimate(outside.mean - inside.mean, std_err, num_draws), num_nan, num_zero)


def improvement(before: Influence, after: Influence) -> Estimate:
    """`paired_improvement`, known no better than log p is rounded."""
    paired = paired_improvement(before, after)
    rounding = max(before.rounding, after.rounding)
    return Estimate(paired.value, float(np.hypot(paired.std_err, rounding)), paired.num_draws)


def paired_improvement(before: Influence, after: Influence) -> Estimate:
    r"""ELBO(after) - ELBO(before), the first draws of slot k of both made with common random numbers.

    Where both mixtures are near the target, ELBO - log Z, each by the mixture's own importance ratios, varies far less
    than the ELBO: like half the square of the ratios, not like the ratios. log Z is the same for both, so the
    difference of these estimates the same improvement, unless one of them covers more of the target: so only where
    their two log Z agree.
    """
    plain = Estimate(after.value - before.value, _paired_std_err(before, after, "per_draw"), after.num_used)
    shift, shift_std_err = after.log_z - before.log_z, _paired_std_err(before, after, "log_z_per_draw")
    if not (max(before.spread, after.spread) < _NEAR and abs(shift) <= _AGREE * shift_std_err):
        return plain
    close = Estimate(plain.value - shift, _paired_std_err(before, after, "divergence_per_draw"), after.num_used)
    return close if close.std_err < plain.std_err else plain


def _paired_std_err(before: Influence, after: Influence, draws: str) -> float:
    """Of the difference of two weighted stratum means, whose first draws share their noise."""
    num_both = min(before.valid.shape[1], after.valid.shape[1])
    parts = [getattr(each, draws)[:, :num_both] for each in (before, after)]
    valid = before.valid[:, :num_both] * after.valid[:, :num_both]
    count = np.maximum(valid.sum(1), 2)
    centered = [valid * (part - (valid * part).sum(1, keepdims=True) / count[:, None]) for part in parts]
    covariance = np.sum(centered[0] * centered[1], axis=1) / (count - 1)
    shared = np.sum(covariance * num_both) / (before.valid.shape[1] * after.valid.shape[1])
    apart = sum(_stratified_std_err(getattr(each, draws), each.valid) ** 2 for each in (before, after))
    variance = apart - 2 * shared
    return float(np.sqrt(max(variance, 0.0))) if not np.isnan(variance) else float("nan")


def influence(ratios: np.ndarray, weights: np.ndarray, in_pairs: bool = False, rounding: float = 0.0) -> Influence:
    """Of the (restricted) ELBO, from log ratios of shape (strata, num) and the weights of the strata.

    Draws `in_pairs`, neighbours being antithetic, are not independent of each other; their pairs are.
    """
    used = (weights > 0)[:, None]
    broken = (np.isnan(ratios) | (ratios == np.inf)) & used
    valid = (~broken).astype(float)  # the draws of an empty slot are zeros without error
    inside = np.isfinite(ratios) & used
    finite = np.where(inside, ratios, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weights[:, None] / np.where(used, valid.sum(1, keepdims=True), 1.0)  # of one draw; NaN draws leave inf
        total, mass = np.sum(np.where(inside, share * finite, 0.0)), np.sum(np.where(inside, share, 0.0))
        mean = total / mass if mass > 0 else 0.0  # all outside the support: log c is -inf, not NaN
        mean_per_draw = weights[:, None] * np.where(inside, (finite - mean) / mass, 0.0)
        per_draw = mean_per_draw + weights[:, None] * np.where(inside, 1 / mass, 0.0)
        lost = bool(np.any(used[:, 0] & (valid.sum(1) == 0)))
        value = np.nan if lost else float(mean + np.log(mass))
        spread = float(np.sqrt(np.sum(np.where(inside, share * (finite - mean) ** 2, 0.0)) / mass))
        top = float(np.max(ratios, where=inside, initial=-np.inf))
        relative = np.where(inside, np.exp(np.minimum(finite - top, 0.0)), 0.0)
        total_ratio = np.sum(np.where(inside, share * relative, 0.0))
        log_z, log_z_per_draw = top + float(np.log(total_ratio)), weights[:, None] * relative / total_ratio
    num_zero = int(np.sum(used & ~inside & ~broken))
    mean = np.nan if lost else float(mean)
    num_used, num_broken = int(used.sum()) * ratios.shape[1], int(broken.sum())
    if in_pairs:
        parts = (per_draw, mean_per_draw, log_z_per_draw)
        per_draw, mean_per_draw, log_z_per_draw = (part.reshape(len(part), -1, 2).mean(2) for part in parts)
        valid = valid.reshape(len(valid), -1, 2).prod(2)
    sizes = (num_broken, num_zero, spread, num_used)
    return Influence(value, mean, per_draw, mean_per_draw, valid, *sizes, log_z, log_z_per_draw, rounding)


def _stratified_std_err(per_draw: np.ndarray, valid: np.ndarray) -> float:
    count = valid.sum(1)
    mean = np.sum(per_draw * valid, 1) / np.maximum(count, 1)
    squares = np.sum(valid * (per_draw - mean[:, None]) ** 2, 1)
    known = np.all(per_draw == 0, axis=1)  # an empty slot; elsewhere one draw has no error bar, and 0 / 0 says so
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(np.where(known, 0.0, squares / (count - 1) / count))))

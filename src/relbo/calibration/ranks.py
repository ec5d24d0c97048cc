r"""Ranks of true values among posterior draws, and a test that they are uniform.

If $\theta \sim \pi$, $y \sim p(y \mid \theta)$ and $\theta_1, \dots, \theta_L$ are independent draws of the posterior
given $y$, then for any function $f(\theta, y)$ the rank of $f(\theta, y)$ among the $f(\theta_l, y)$ is exactly uniform
on $0, \dots, L$ (Talts et al. 2018). Ties are broken at random. With $U$ uniform, $u = (\text{rank} + U) / (L + 1)$ is
exactly uniform on $(0, 1)$, whatever $L$ is, and $x = \Phi^{-1}(u)$ exactly standard normal: roughly by how many
posterior sds the true value lies above the draws. Three tests with known null laws look at the $x$ of $N$ simulations:

- bias: $\sum x / \sqrt N$ is standard normal;
- width: $\sum (x - \bar x)^2$ is chi-squared with $N - 1$ degrees of freedom (as in Cook, Gelman and Rubin 2006);
- shape: the Anderson-Darling statistic of the $u$, for what the other two cannot see (a lost mode, a wrong skewness).

The first two are the most powerful ones for a shift and a wrong scale, and speak a practitioner's language. The p-value
of a quantity is three times the smallest of the three, and Holm's method adjusts it for the number of quantities.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtr, chdtrc, ndtr, ndtri  # not scipy.stats, which is slow to import

from relbo.records.estimate import Estimate

NUM_TESTS = 3  # bias, width and shape: Bonferroni
_FAR = 8.0  # up to here the series is fitted: the tail is below 1e-4 by then


def rank_of(truth: np.ndarray, draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many of `draws` (num_draws, num) lie below `truth` (num,), ties broken at random."""
    below, equal = (draws < truth).sum(axis=0), (draws == truth).sum(axis=0)
    return below + rng.integers(0, equal + 1)


@dataclass(frozen=True)
class RankTest:
    """What the ranks of one quantity say. `shift` and `width` are 0 and 1 for a calibrated fit."""

    name: str
    shift: Estimate
    """By how many posterior sds the draws lie too high on average; negative: too low."""
    width: Estimate
    """How far true values scatter around the draws' centre, in posterior sds; above 1 the draws are too narrow."""
    p_bias: float
    p_width: float
    p_shape: float

    @property
    def p_value(self) -> float:
        """For this quantity alone."""
        return min(1.0, NUM_TESTS * min(self.p_bias, self.p_width, self.p_shape))

    def problem(self, level: float) -> str:
        """What is wrong in words, judged at `level` for each of the three tests; empty if nothing is."""
        words = []
        if self.p_bias < level:
            words.append(f"too {'high' if self.shift.value > 0 else 'low'}")
        if self.p_width < level:
            words.append(f"too {'narrow' if self.width.value > 1 else 'wide'}")
        if not words and self.p_shape < level:
            words.append("of the wrong shape")
        return " and ".join(words)


def uniforms(ranks: np.ndarray, num_draws: int, seed: int) -> np.ndarray:
    """Ranks as numbers in (0, 1), exactly uniform if the ranks are."""
    noise = np.random.default_rng([seed, 0xCA11]).random(ranks.shape)
    return np.clip((ranks + noise) / (num_draws + 1), 1e-15, 1 - 1e-15)


def check_ranks(name: str, levels: np.ndarray) -> RankTest:
    """Test that `levels`, from `uniforms`, are uniform."""
    num = len(levels)
    scores = ndtri(levels)
    mean, width = scores.mean(), scores.std(ddof=1)
    squares = (scores - mean) ** 2
    tails = chdtr(num - 1, squares.sum()), chdtrc(num - 1, squares.sum())
    return RankTest(
        name,
        Estimate(float(-mean), float(width / math.sqrt(num)), num),
        Estimate(float(width), float(squares.std(ddof=1) / math.sqrt(num) / (2 * width)), num),
        float(2 * ndtr(-abs(mean) * math.sqrt(num))),
        float(min(1.0, 2 * min(tails))),
        anderson_darling(levels),
    )


def anderson_darling(levels: np.ndarray) -> float:
    """The p-value of the Anderson-Darling test of uniformity (Marsaglia and Marsaglia 2004, asymptotic law)."""
    ordered, num = np.sort(levels), len(levels)
    odd = 2 * np.arange(num) + 1
    statistic = -num - np.mean(odd * (np.log(ordered) + np.log1p(-ordered[::-1])))
    if statistic > _FAR:  # the series is fitted up to here; beyond, the tail falls at least as exp(-z)
        return _upper_tail(_FAR) * math.exp(_FAR - statistic)
    return _upper_tail(statistic)


def _upper_tail(z: float) -> float:
    if z < 2:
        series = _horner((2.00012, 0.247105, -0.0649821, 0.0347962, -0.0116720, 0.00168691), z)
        return 1 - math.exp(-1.2337141 / z) / math.sqrt(z) * series
    return -math.expm1(-math.exp(_horner((1.0776, -2.30695, 0.43424, -0.082433, 0.008056, -0.0003146), z)))


def _horner(coefficients: tuple[float, ...], z: float) -> float:
    total = 0.0
    for coefficient in reversed(coefficients):
        total = total * z + coefficient
    return total


def holm(p_values: np.ndarray) -> np.ndarray:
    """Adjusted for their number, so that any below `level` is a false alarm with probability at most `level`."""
    order, num = np.argsort(p_values, kind="stable"), len(p_values)
    adjusted = np.empty(num)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * (num - np.arange(num))))
    return adjusted

r"""The Wasserstein-1 distance of two samples on a line, and how large it is by chance.

$W_1 = \int |F - G| = E_g[\phi] - E_f[\phi]$ with $\phi' = \mathrm{sign}(F - G)$: the difference of two means, which
gives the standard error. For two samples of one law, of $n$ and $m$ draws, $W_1 \sqrt{nm / (n+m)}$ tends to
$\int |B(F(x))|\, dx$ with $B$ a Brownian bridge (del Barrio, Giné and Matrán 1999). Bridges are
simulated, and a shifted gamma law with their mean, variance and skewness gives limits far out in the tail, which is
lighter than a gamma's.
"""

import math

import numpy as np
from scipy.special import gammainccinv

_NUM_BRIDGES = 2000  # moments to a few percent: limits come from a gamma law, not from quantiles of these
_NUM_LEVELS = 300  # evenly in the logit: tails count
_NUM_PERMUTATIONS = 200  # as above, and each costs a pass over all directions
_LEAST_SKEWNESS = 0.5  # estimates of it are noisy, and too small a one makes limits too small


def distance(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """The distance, and the variance of its potential under each of the two samples."""
    gaps, order, difference = _difference(one, other)
    slopes = np.sign(difference) * gaps
    potential = np.concatenate([[0.0], np.cumsum(slopes)])
    first = order < len(one)
    value = float(np.sum(np.abs(difference) * gaps))
    return value, float(potential[first].var()), float(potential[~first].var())


def _difference(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaps of the pooled sample, its order, and F - G in every gap."""
    pooled = np.concatenate([one, other])
    order = np.argsort(pooled, kind="stable")
    steps = np.where(order < len(one), 1 / len(one), -1 / len(other))
    return np.diff(pooled[order]), order, np.cumsum(steps)[:-1]


def chance_distances(pooled: np.ndarray) -> np.ndarray:
    """Draws of $\\int |B(F)|$ for every column of `pooled` (num, columns): shape (draws, columns)."""
    edge = math.log(2 * len(pooled))
    levels = 1 / (1 + np.exp(-np.linspace(-edge, edge, _NUM_LEVELS)))
    middles = (levels[1:] + levels[:-1]) / 2
    gaps = np.diff(np.quantile(pooled, levels, axis=0), axis=0)
    noise = np.random.default_rng(0).standard_normal((_NUM_BRIDGES, len(middles) + 1))
    motion = np.cumsum(noise * np.sqrt(np.diff(np.concatenate([[0.0], middles, [1.0]]))), axis=1)
    return np.abs(motion[:, :-1] - middles * motion[:, -1:]) @ gaps


def chance_limit(draws: np.ndarray, risk: float) -> np.ndarray:
    """What a shifted gamma variable with the moments of `draws` (num, ...) exceeds with probability `risk`."""
    mean, spread = draws.mean(axis=0), draws.std(axis=0)
    skewness = np.maximum(np.mean((draws - mean) ** 3, axis=0) / spread**3, _LEAST_SKEWNESS)
    shape = 4 / skewness**2
    return np.asarray(mean + spread * (gammainccinv(shape, risk) - shape) * skewness / 2)


def sliced(one: np.ndarray, other: np.ndarray, directions: np.ndarray) -> tuple[float, float, float]:
    """The mean distance along `directions` (num, dim), and the variance of its potential under each sample."""
    value, potential = 0.0, np.zeros(len(one) + len(other))
    for direction in directions:
        gaps, order, difference = _difference(one @ direction, other @ direction)
        value += float(np.sum(np.abs(difference) * gaps)) / len(directions)
        potential[order[1:]] += np.cumsum(np.sign(difference) * gaps) / len(directions)
    return value, float(potential[: len(one)].var()), float(potential[len(one) :].var())


def sliced_chance_distances(pooled: np.ndarray, directions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws of the sliced distance of two halves of `pooled`, times sqrt(nm / (n+m)), by random permutations."""
    half = len(pooled) // 2
    rows = rng.permuted(np.tile(np.arange(2 * half) < half, (_NUM_PERMUTATIONS, 1)), axis=1)
    signs = np.where(rows, 1 / half, -1 / half).astype(np.float32)
    totals = np.zeros(_NUM_PERMUTATIONS)
    for direction in directions:
        projected = pooled[: 2 * half] @ direction
        order = np.argsort(projected)
        totals += np.abs(np.cumsum(signs[:, order], axis=1)[:, :-1]) @ np.diff(projected[order])
    return totals * math.sqrt(half / 2) / len(directions)

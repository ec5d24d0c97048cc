r"""The Wasserstein-1 distance of two samples on a line, and how large it is by chance.

$W_1 = \int |F - G| = E_g[\phi] - E_f[\phi]$ with $\phi' = \mathrm{sign}(F - G)$: the difference of two means, which
gives the standard error. For two samples of one law, of $n$ and $m$ draws, $W_1 \sqrt{nm / (n+m)}$ tends to
$\int |B(F(x))|\, dx$ with $B$ a Brownian bridge (del Barrio, Giné and Matrán 1999). Its mean and variance are found by
simulating bridges, and a gamma law with these moments gives its limits: the true tail is lighter.
"""

import math

import numpy as np

_NUM_BRIDGES = 1000
_NUM_LEVELS = 300


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


def chance_moments(pooled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of $\\int |B(F)|$ for every column of `pooled` (num, columns)."""
    num = len(pooled)
    edge = math.log(2 * num)
    levels = 1 / (1 + np.exp(-np.linspace(-edge, edge, _NUM_LEVELS)))
    middles = (levels[1:] + levels[:-1]) / 2
    gaps = np.diff(np.quantile(pooled, levels, axis=0), axis=0)
    noise = np.random.default_rng(0).standard_normal((_NUM_BRIDGES, len(middles) + 1))
    motion = np.cumsum(noise * np.sqrt(np.diff(np.concatenate([[0.0], middles, [1.0]]))), axis=1)
    bridges = motion[:, :-1] - middles * motion[:, -1:]
    found = np.abs(bridges) @ gaps
    return found.mean(axis=0), found.std(axis=0)


def gamma_limit(mean, spread, risk: float):
    """What a gamma variable of this mean and sd exceeds with probability `risk`."""
    from scipy.special import gammainccinv

    shape = (mean / spread) ** 2
    return gammainccinv(shape, risk) * spread**2 / mean


def sliced(one: np.ndarray, other: np.ndarray, directions: np.ndarray) -> tuple[float, float, float]:
    """The mean distance along `directions` (num, dim), and the variance of its potential under each sample."""
    value, potential = 0.0, np.zeros(len(one) + len(other))
    for direction in directions:
        gaps, order, difference = _difference(one @ direction, other @ direction)
        value += float(np.sum(np.abs(difference) * gaps)) / len(directions)
        potential[order[1:]] += np.cumsum(np.sign(difference) * gaps) / len(directions)
    return value, float(potential[: len(one)].var()), float(potential[len(one) :].var())


def sliced_chance_moments(
    pooled: np.ndarray, directions: np.ndarray, rng: np.random.Generator, num_permutations: int = 100
) -> tuple[float, float]:
    """Mean and sd of the sliced distance of two halves of `pooled`, times sqrt(nm / (n+m)), by random permutations."""
    half = len(pooled) // 2
    rows = rng.permuted(np.tile(np.arange(2 * half) < half, (num_permutations, 1)), axis=1)
    signs = np.where(rows, 1 / half, -1 / half)
    found = np.zeros(num_permutations)
    for direction in directions:
        projected = pooled[: 2 * half] @ direction
        order = np.argsort(projected)
        found += np.abs(np.cumsum(signs[:, order], axis=1)[:, :-1]) @ np.diff(projected[order])
    found *= math.sqrt(half / 2) / len(directions)
    return float(found.mean()), float(found.std(ddof=1))

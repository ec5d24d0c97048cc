r"""The modes of a mixture: which of its components make one hill.

Two components lie on one hill if the way between them leads through no valley. Ways are straight segments between
locations, their height is the lowest $\log q$ along them. Going down from the highest way, two hills become one if the
lower of them rises less than `DIP` nats above the pass where they meet (persistence; Chazal et al. 2013). A chain of
overlapping components, such as a banana's, is one hill though the straight way between its ends is deep below; a wide
component in the valley between two hills joins one of them, and does not join them to each other.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import ArrayLike

from relbo.mixture import locations_of, map_chunks
from relbo.model.whitening import unwhitened
from relbo.posterior.posterior import Posterior
from relbo.runtime.compiling import compiled

DIP = 0.5
"""Nats. Two equal normals are told apart from a distance of about three standard deviations on."""
_POINTS_BETWEEN = 15  # a valley narrower than a sixteenth of the way separates nothing
_MOST_CONFIRMED = 16  # the heaviest: pairs grow with their square
_NEIGHBOURS = 32
"""Ways are tried from each component to so many nearest ones, so that their number grows with the components'."""


@dataclass(frozen=True)
class Modes:
    """The modes of a posterior, the heaviest first."""

    weights: np.ndarray
    """The mass of each mode, shape (num_modes,)."""
    locations: np.ndarray
    """The location of the component where q is highest, in unconstrained coordinates, shape (num_modes, dim)."""
    labels: np.ndarray = field(repr=False)
    """The mode of every slot of the mixture, -1 for an empty one."""
    posterior: Posterior = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.weights)

    def assign(self, z: ArrayLike) -> np.ndarray:
        """For unconstrained points (num, dim) the index of the mode with the largest responsibility, shape (num,)."""
        z = np.asarray(z, self.posterior.whitened.dtype)
        if z.ndim != 2 or z.shape[1] != self.posterior.dim:
            raise ValueError(f"z must have shape (num, {self.posterior.dim}), got {z.shape}.")
        parts = np.asarray(_weighted_log_probs(self.posterior.whitened, self.posterior.mixture, z))
        scores = [np.logaddexp.reduce(parts[:, self.labels == mode], axis=1) for mode in range(len(self))]
        return np.argmax(scores, axis=0)


def modes_of(posterior: Posterior) -> Modes:
    """Count the modes of a fitted mixture, and weigh them."""
    log_weights = np.asarray(posterior.mixture.log_weights, np.float64)
    slots = np.flatnonzero(log_weights > -np.inf)
    weights = np.exp(log_weights[slots])
    locations = np.asarray(locations_of(posterior.mixture.family, posterior.mixture.params))[slots]
    pairs = _near_pairs(locations)
    heights, passes = _heights(posterior, locations, pairs)
    hills = hills_of(heights, pairs, passes)
    mass = np.array([weights[hills == hill].sum() for hill in range(hills.max() + 1)])
    order = np.argsort(-mass, kind="stable")
    labels = np.full(len(log_weights), -1)
    labels[slots] = np.argsort(order)[hills]
    tops = [np.flatnonzero(hills == hill)[np.argmax(heights[hills == hill])] for hill in order]
    return Modes(mass[order], unwhitened(posterior.whitened, locations)[tops], labels, posterior)


def confirmed(modes: Modes) -> np.ndarray:
    """The weights of the hills that a valley of the target parts, too, the heaviest first.

    Components that cover a narrow neck (a funnel's) may leave valleys between them that the posterior has not: hills of
    the mixture are joined where log p falls by less than `DIP` on the straight way between their tops.
    """
    num = min(len(modes), _MOST_CONFIRMED)
    if num < 2:
        return modes.weights
    tops = modes.locations[:num].astype(np.float64)
    pairs = np.stack(np.triu_indices(num, 1), axis=1)
    shares = np.linspace(0.0, 1.0, _POINTS_BETWEEN + 2)[:, None]
    ways = tops[pairs[:, 0], None] + shares * (tops[pairs[:, 1]] - tops[pairs[:, 0]])[:, None]
    log_p = modes.posterior.log_target(ways.reshape(-1, tops.shape[1])).reshape(len(pairs), -1)
    log_p = np.where(np.isnan(log_p), np.inf, log_p)  # what is broken is no valley
    heights = np.empty(num)
    heights[pairs[:, 0]], heights[pairs[:, 1]] = log_p[:, 0], log_p[:, -1]
    hills = hills_of(heights, pairs, log_p.min(axis=1))
    mass = np.array([modes.weights[:num][hills == hill].sum() for hill in range(hills.max() + 1)])
    return np.sort(np.concatenate([mass, modes.weights[num:]]))[::-1]


def hills_of(heights: np.ndarray, pairs: np.ndarray, passes: np.ndarray, dip: float = DIP) -> np.ndarray:
    """The hill of every peak, numbered from 0: `passes` are the heights of the ways between `pairs` of peaks."""
    top = np.arange(len(heights))  # the highest peak known of the hill that each belongs to
    for way in np.argsort(-passes, kind="stable"):
        one, other = (top[peak] for peak in pairs[way])
        lower, higher = (one, other) if heights[one] < heights[other] else (other, one)
        if lower != higher and heights[lower] - passes[way] <= dip:
            top[top == lower] = higher
    return np.unique(top, return_inverse=True)[1]


def _near_pairs(locations: np.ndarray) -> np.ndarray:
    """Pairs (one < other) of each component and its nearest others, in whitened coordinates."""
    squares = np.sum(locations**2, axis=1)
    distances = squares[:, None] + squares - 2 * locations @ locations.T
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1)[:, : min(_NEIGHBOURS, len(locations) - 1)]
    pairs = np.stack([np.repeat(np.arange(len(locations)), nearest.shape[1]), nearest.ravel()], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0)


def _heights(posterior: Posterior, locations: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log q at the locations, and its lowest value along the way between each pair."""
    shares = (np.arange(1, _POINTS_BETWEEN + 1) / (_POINTS_BETWEEN + 1)).astype(locations.dtype)[:, None]
    begin, end = locations[pairs[:, 0], None], locations[pairs[:, 1], None]
    between = (begin + shares * (end - begin)).reshape(-1, locations.shape[1])
    points = _padded(np.concatenate([locations, between]))
    parts = np.asarray(_weighted_log_probs_whitened(posterior.mixture, points), np.float64)
    log_q = np.logaddexp.reduce(parts, axis=1)
    heights = log_q[: len(locations)]
    ways = log_q[len(locations) : len(locations) + len(between)].reshape(len(pairs), _POINTS_BETWEEN)
    ends = np.minimum(heights[pairs[:, 0]], heights[pairs[:, 1]])
    return heights, np.minimum(ends, ways.min(axis=1, initial=np.inf))


def _padded(points: np.ndarray) -> np.ndarray:
    """A power of four points, so that mixtures of few and of many components share a program."""
    num = 4 ** math.ceil(math.log(max(1024, len(points)), 4))
    return np.concatenate([points, np.zeros((num - len(points), points.shape[1]), points.dtype)])


@compiled
def _weighted_log_probs_whitened(mixture, points):
    return map_chunks(lambda u: mixture.component_log_probs(u) + mixture.log_weights, points)


@compiled
def _weighted_log_probs(whitened, mixture, points):
    return map_chunks(lambda z: mixture.component_log_probs(whitened.whiten(z)) + mixture.log_weights, points)

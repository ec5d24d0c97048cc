"""Low rank plus diagonal, in many dimensions: the diagonal map, stretched where the target is wider."""

import numpy as np

from relbo.ascent.curvature import NEAR, softest
from relbo.model.door import Door
from relbo.runtime.compiling import host_random

SCORE_DRAWS = 32  # candidates differ by nats, and share their noise
_TILTS = (1.0, 0.5, 0.0)  # the whole stretch, half of it, none
_SOFTEST = 1e-4  # the least curvature that a tilt believes


def best_tilt(key, tilted, rank: int, num_draws: int) -> Door:
    r"""Low rank + diagonal: the diagonal map stretched along the directions in which the target is wider than it.

    In the diagonally whitened coordinates the mean curvature $P$ of $-\log p$ under the fitted normal has a diagonal of
    ones. An eigenvalue $\lambda < 1$ costs $(\lambda - 1 - \log \lambda) / 2$ nats, all of which stretching by
    $\lambda^{-1/2}$ along its eigenvector wins back. Where $p$ is not normal that may be too much, so half of it (in
    the exponent) and nothing compete, by their ELBOs. `tilted(U)` is the door with the tilt U, None for no tilt.
    """
    rng = host_random(key)
    plain = tilted(None)
    if not num_draws:
        return plain
    dim = plain.dim
    values, vectors = softest(_mean_curvature(rng, plain, num_draws), dim, rank, min(dim, 3 * rank + 20))
    widths = np.maximum(1.0, 1 / np.sqrt(np.maximum(np.abs(values), _SOFTEST)))
    noise = rng.standard_normal((SCORE_DRAWS, dim))
    doors = [tilted(vectors * np.sqrt(widths**power - 1)) for power in _TILTS]
    scores = [float(np.mean(each.numbers(noise, "race")[0])) for each in doors]
    return doors[int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf)))]


def _mean_curvature(rng, door: Door, num_draws: int):
    """The product of a vector with the mean of -hess log p over draws of the standard normal."""
    half = rng.standard_normal(((num_draws + 1) // 2, door.dim))
    points = np.concatenate([half, -half])

    def times(vector):
        both = np.concatenate([points + NEAR * vector, points - NEAR * vector])
        slopes = door.numbers(both, "curvature")[1]
        along = (slopes[: len(points)] - slopes[len(points) :]) / (2 * NEAR)
        return -np.mean(np.where(np.isfinite(along), along, 0.0), axis=0)

    return times

"""A density that does not fall off has no posterior: a look far out, and a warning."""

import numpy as np

from relbo.families import LocationScaleParams
from relbo.model.door import Door
from relbo.runtime.warn import warn

_FAR = (1e2, 1e4, 1e6)
"""Standard deviations from the center at which a proper density has fallen."""
_SLOWEST = 1.05
"""The least power of the distance by which it falls there, in the end, with some room for rounding."""


def check_proper(door: Door, scale, params: LocationScaleParams) -> None:
    """Warn of a target whose log density does not fall off along some direction from the fitted normal.

    A density that overflows far out says nothing: each direction is judged by the largest distance at which it is a
    number, zero density counting as fallen.
    """
    loc, directions = np.asarray(params.loc, np.float64), _directions(scale, params)
    distances = np.asarray(_FAR)
    points = loc + distances[:, None, None] * directions
    values, _ = door.numbers(np.concatenate([loc[None], points.reshape(-1, door.dim)]), "checks")
    with np.errstate(invalid="ignore"):
        # By more than |x|^(-1/2) would.
        falls = values[0] - values[1:].reshape(len(distances), -1) - 0.5 * np.log(distances)[:, None]
    known = ~np.isnan(falls)
    last = len(distances) - 1 - np.argmax(known[::-1], axis=0)
    flat = known.any(axis=0) & ~(falls[last, np.arange(falls.shape[1])] > 0)
    if not np.isfinite(values[0]):
        return
    if not flat.any():
        _check_tails(values[1:].reshape(len(distances), -1), distances, directions, door)
        return
    worst = int(np.flatnonzero(flat)[0])
    warn(
        f"The log density may be improper: it does not fall off in the direction of {_moved(door, directions[worst])} "
        f"(at {distances[last[worst]]:g} standard deviations it is as high as at the center). If that is so, no "
        "posterior exists: give that parameter a proper prior, or fix it."
    )


def _check_tails(values: np.ndarray, distances: np.ndarray, directions: np.ndarray, door: Door) -> None:
    """Warn where the density falls no faster than 1 / r between the two largest distances."""
    with np.errstate(invalid="ignore"):
        powers = (values[-2] - values[-1]) / np.log(distances[-1] / distances[-2])
    slow = np.isfinite(powers) & (powers < _SLOWEST)
    if not slow.any():
        return
    worst = int(np.argmin(np.where(slow, powers, np.inf)))
    warn(
        f"The log density may be improper: far out it falls only as r^-{max(powers[worst], 0.0):.2g} in the direction "
        f"of {_moved(door, directions[worst])}, and what falls no faster than 1 / r has no finite integral. Give that "
        "parameter a proper prior."
    )


def _moved(door: Door, direction: np.ndarray) -> str:
    """The coordinates that a direction is mostly about."""
    sizes, names = np.abs(direction), door.target.coordinate_names()
    return ", ".join(names[i] for i in np.argsort(-sizes)[:3].tolist() if sizes[i] > 0.1 * sizes.max())


def _directions(scale, params: LocationScaleParams) -> np.ndarray:
    """A standard deviation along the widest axes and the widest principal axes, both ways."""
    dim = len(np.asarray(params.loc))
    num_axes = min(dim, 16)
    spread, principal = scale.widths(params.scale), np.zeros((0, dim))
    if scale.is_dense:
        matrix = np.asarray(params.scale, np.float64)
        left, sizes, _ = np.linalg.svd(np.tril(matrix, -1) + np.diag(np.exp(np.diagonal(matrix))))
        principal = (left * sizes).T[: min(dim, 4)]
    widest = np.argsort(-spread)[:num_axes]
    axes = np.zeros((num_axes, dim))
    axes[np.arange(num_axes), widest] = spread[widest]
    both = np.concatenate([axes, principal])
    return np.concatenate([both, -both])

r"""Standard normals that fill space more evenly than random ones: a randomly shifted Sobol sequence, by Box and Muller.

In few dimensions what limits an ascent is the noise of its draws, and that of averages over such points falls nearly
with their number instead of its root. Each block of $2^m$ points is a net of its own, so that a step of eight
(antithetic) draws has four that lie well, and the steps after it fill the gaps. A shift (an exclusive or of all binary
digits with the same random ones) makes every point uniform, and averages unbiased.

Written here because `scipy.stats.qmc` takes a second to import, a tenth of a fit.
"""

import functools

import numpy as np

MOST_COORDINATES = 4
"""In more of them the four points of a step cannot lie much better than random ones."""
_POLYNOMIALS = ((1, 0, (1,)), (2, 1, (1, 3)), (3, 1, (1, 3, 1)))
"""Degree, coefficients and first direction numbers of the second to the fourth coordinate (Joe and Kuo 2008)."""
_BITS = 32  # more than float32 can tell apart


def quasi_normals(rng: np.random.Generator, num_sets: int, num_points: int, dim: int) -> np.ndarray:
    """Of shape (num_points, num_sets, dim): in each set a sequence of its own, all of the same law."""
    pairs = 2 * -(-dim // 2)
    shifts = rng.integers(0, 2**_BITS, (num_sets, pairs), dtype=np.uint64)
    uniform = ((_sequence(num_points, pairs)[:, None] ^ shifts) + 0.5) / 2**_BITS
    radius, angle = np.sqrt(-2 * np.log(uniform[..., 0::2])), 2 * np.pi * uniform[..., 1::2]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)[..., :dim]


@functools.cache
def _sequence(num: int, dim: int) -> np.ndarray:
    """The first points of the sequence, as whole numbers of `_BITS` digits."""
    numbers = np.arange(num, dtype=np.uint64)
    points = np.zeros((num, dim), np.uint64)
    for digit in range(num.bit_length()):
        is_set = (numbers >> np.uint64(digit)) & np.uint64(1)
        points ^= is_set[:, None] * _directions(dim)[digit]
    return points


@functools.cache
def _directions(dim: int) -> np.ndarray:
    """By digit and coordinate. The first coordinate is that of van der Corput: the digits in reverse order."""
    columns = [[1 << (_BITS - 1 - digit) for digit in range(_BITS)]]
    for degree, coefficients, first in _POLYNOMIALS[: dim - 1]:
        column = [number << (_BITS - 1 - digit) for digit, number in enumerate(first)]
        for digit in range(degree, _BITS):
            new = column[digit - degree] ^ (column[digit - degree] >> degree)
            for back in range(1, degree):
                if (coefficients >> (degree - 1 - back)) & 1:
                    new ^= column[digit - back]
            column.append(new)
        columns.append(column)
    return np.array(columns, np.uint64).T

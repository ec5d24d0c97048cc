"""The normal law with the curvature of a function at a point: Laplace's approximation, made safe."""

import numpy as np
from jaxtyping import Float

_MAX_CONDITION = 1e6  # beyond, curvature may be no more than the rounding of float32
NEAR = 0.1
"""Standard deviations between the gradients whose difference is a curvature: far enough to be more than rounding, near
enough for the curvature of a smooth function to be that of the point."""
_PASSES = 2
"""The first finds the standard deviations that the second steps by."""


def laplace_factors(evaluate, points: Float[np.ndarray, "num dim"]) -> Float[np.ndarray, "num dim dim"]:
    """For each point a lower triangular L with L L^T = |H|^-1, H the Hessian there, eigenvalues taken absolutely.

    Indefinite or flat curvature (a saddle, a funnel's neck) gives a usable scale instead of a failure. `evaluate` gives
    gradients at many points, in double precision; H is made of their differences, twice, the second time in the
    coordinates that the first has found.
    """
    num, dim = points.shape
    factors = np.tile(0.01 * np.eye(dim), (num, 1, 1))  # small steps first: 1e-3 to either side
    for _ in range(_PASSES):
        steps = NEAR * np.swapaxes(factors, 1, 2)  # rows are directions
        both = np.concatenate([points[:, None] + steps, points[:, None] - steps], axis=1)
        slopes = evaluate(both.reshape(-1, dim)).reshape(num, 2, dim, dim)
        with np.errstate(invalid="ignore"):
            change = (slopes[:, 0] - slopes[:, 1]) / (2 * NEAR)  # rows: how the gradient changes along a direction
            bend = -change @ factors
        inner = [_factor(0.5 * (matrix + matrix.T)) for matrix in bend]
        factors = np.stack([_lower(old @ new) for old, new in zip(factors, inner, strict=True)])
    return factors


def _factor(precision: np.ndarray) -> np.ndarray:
    """A root of the inverse of |precision|, of any shape."""
    if not np.isfinite(precision).all():
        return np.full_like(precision, np.nan)
    values, vectors = np.linalg.eigh(precision)
    values = np.abs(values)
    largest = values.max(initial=0.0)
    values = np.maximum(values, largest / _MAX_CONDITION if largest > 0 else 1.0)
    return vectors / np.sqrt(values)


def _lower(root: np.ndarray) -> np.ndarray:
    """The lower triangular L with L L^T = root root^T: the R of a QR factorisation, without squaring the condition."""
    if not np.isfinite(root).all():
        return np.full_like(root, np.nan)
    upper = np.asarray(np.linalg.qr(root.T, mode="r"))
    return (upper * np.where(np.diagonal(upper) < 0, -1.0, 1.0)[:, None]).T


def softest(times, dim: int, num: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The `num` smallest eigenvalues of a symmetric matrix, known by its product `times` a vector, and eigenvectors.

    By Lanczos' method with full orthogonalisation, twice over.
    """
    first = np.cos(2.39996 * np.arange(dim) ** 2 / dim + np.arange(dim))
    vector, last, length = first / np.linalg.norm(first), np.zeros(dim), 0.0
    basis, diagonals, lengths = np.zeros((num_steps, dim)), np.zeros(num_steps), np.zeros(num_steps)
    for index in range(num_steps):
        basis[index] = vector
        image = times(vector)
        diagonals[index] = image @ vector
        rest = image - diagonals[index] * vector - length * last
        for _ in range(2):
            rest = rest - basis.T @ (basis @ rest)
        length = lengths[index] = float(np.linalg.norm(rest))
        vector, last = rest / max(length, np.finfo(float).tiny), vector
    band = np.diag(lengths[:-1], 1)
    values, vectors = np.linalg.eigh(np.diag(diagonals) + band + band.T)
    return values[:num], basis.T @ vectors[:, :num]

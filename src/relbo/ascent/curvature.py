"""The normal law with the curvature of a function at a point: Laplace's approximation, made safe."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_MAX_CONDITION = 1e6


def laplace_factor(function, point: Float[Array, " dim"], twice_differentiable: bool) -> Float[Array, "dim dim"]:
    """A lower triangular L with L L^T = |H|^-1 for the Hessian H of `function`, eigenvalues taken absolutely.

    Indefinite or flat curvature (a saddle, a funnel's neck) gives a usable scale instead of a failure. Where the
    function has first derivatives only, H comes from central differences of the gradient.
    """
    hessian = jax.hessian(function)(point) if twice_differentiable else _gradient_differences(function, point)
    values, vectors = jnp.linalg.eigh(0.5 * (hessian + hessian.T))
    precision = jnp.abs(values)
    largest = jnp.max(precision)
    precision = jnp.maximum(precision, jnp.where(largest > 0, largest / _MAX_CONDITION, 1.0))
    # The R of a QR factorisation of the symmetric root is its Cholesky factor, without squaring the condition number.
    upper = jnp.linalg.qr((vectors / jnp.sqrt(precision)).T, mode="r")
    return (upper * jnp.sign(jnp.diagonal(upper))[:, None]).T


def _gradient_differences(function, point):
    width = jnp.finfo(point.dtype).eps ** (1 / 3) * jnp.maximum(1.0, jnp.abs(point))
    # One call for both sides: two would be two independent loops under a memory limit (see `mixture.map_chunks`).
    both = jnp.stack([point + jnp.diag(width), point - jnp.diag(width)])
    forward, backward = jax.vmap(jax.vmap(jax.grad(function)))(both)
    return (forward - backward) / (2 * width[:, None])


def softest(times, dim: int, num: int, num_steps: int, dtype) -> tuple[Float[Array, " num"], Float[Array, "dim num"]]:
    """The `num` smallest eigenvalues of a symmetric matrix, known by its product `times` a vector, and eigenvectors.

    By Lanczos' method with full orthogonalisation, twice over, so that it stands in float32.
    """

    def body(carry, index):
        basis, vector, last, length = carry
        basis = basis.at[index].set(vector)
        image = times(vector)
        diagonal = image @ vector
        rest = image - diagonal * vector - length * last
        for _ in range(2):
            rest = rest - basis.T @ (basis @ rest)
        new_length = jnp.linalg.norm(rest)
        following = rest / jnp.maximum(new_length, jnp.finfo(dtype).tiny)
        return (basis, following, vector, new_length), (diagonal, new_length)

    first = jnp.cos(2.39996 * jnp.arange(dim, dtype=dtype) ** 2 / dim + jnp.arange(dim, dtype=dtype))
    zeros = jnp.zeros(dim, dtype)
    start = (jnp.zeros((num_steps, dim), dtype), first / jnp.linalg.norm(first), zeros, jnp.zeros((), dtype))
    (basis, *_), (diagonal, lengths) = jax.lax.scan(body, start, jnp.arange(num_steps))
    values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(lengths[:-1], 1) + jnp.diag(lengths[:-1], -1))
    return values[:num], basis.T @ vectors[:, :num]

r"""Small dense factorisations of many matrices at once.

On a CPU, JAX 0.10 gives a stack of matrices to LAPACK in pieces, on the same threads that run the program, and the
thread that asked blocks until all pieces are done. A program in which as many such calls as there are threads do not
depend on each other (the densities of two mixtures, say) then waits forever. So a program here asks for one stack at a
time: the densities of two mixtures are two calls of one program.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def inverse_lower(lower: Float[Array, "*stack dim dim"]) -> Float[Array, "*stack dim dim"]:
    """The inverse of a lower triangular matrix, or of each of a stack."""
    eye = jnp.broadcast_to(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower.shape)
    return jax.lax.linalg.triangular_solve(lower, eye, left_side=True, lower=True)


def inverse_and_log_det(matrix: Float[Array, "dim dim"]) -> tuple[Float[Array, "dim dim"], Float[Array, ""]]:
    """Of a symmetric positive definite matrix, by the sweep operator: one pivot after the other, none too small."""

    def sweep(index, carry):
        swept, log_det = carry
        pivot = swept[index, index]
        row = swept[index] / pivot
        rest = swept - jnp.outer(swept[:, index], row)
        rest = rest.at[index].set(row).at[:, index].set(row).at[index, index].set(-1 / pivot)
        return rest, log_det + jnp.log(pivot)

    start = (matrix, jnp.zeros((), matrix.dtype))
    swept, log_det = jax.lax.fori_loop(0, matrix.shape[0], sweep, start)
    return -swept, log_det

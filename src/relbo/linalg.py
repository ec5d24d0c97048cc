r"""Small dense factorisations of many matrices at once, by matrix products alone.

On a CPU, JAX 0.10 gives a stack of matrices to LAPACK in pieces, on the same threads that run the program, and the
thread that asked blocks until all pieces are done. A program in which as many such calls as there are threads do not
depend on each other (the densities of two mixtures, say) then waits forever. So what is evaluated inside a program for
stacks of matrices is written here without LAPACK; it also runs on every kind of device. Single matrices, and a single
stack at a time, may go to LAPACK.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def inverse_lower(lower: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    r"""The inverse of a lower triangular matrix, by doubling.

    From the inverses of two neighbouring blocks on the diagonal comes that of the block which holds both,
    $\begin{pmatrix} A & 0 \\ B & C \end{pmatrix}^{-1} = \begin{pmatrix} A^{-1} & 0 \\ -C^{-1} B A^{-1} & C^{-1}
    \end{pmatrix}$, from width 1 to the whole. As stable as substitution, in $\log_2 d$ steps.
    """
    dim = lower.shape[0]
    size = 2 ** math.ceil(math.log2(max(dim, 1)))
    padded = jnp.eye(size, dtype=lower.dtype).at[:dim, :dim].set(lower)
    inverses = (1 / jnp.diagonal(padded))[:, None, None]
    while inverses.shape[0] > 1:
        width = inverses.shape[1]
        first = jnp.arange(0, size, 2 * width)[:, None] + jnp.arange(width)
        below = padded[(first + width)[:, :, None], first[:, None, :]]
        above, right = inverses[0::2], inverses[1::2]
        upper_half = jnp.concatenate([above, jnp.zeros_like(above)], axis=2)
        lower_half = jnp.concatenate([-right @ below @ above, right], axis=2)
        inverses = jnp.concatenate([upper_half, lower_half], axis=1)
    return inverses[0, :dim, :dim]


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

"""Lower triangular matrices with a positive diagonal as one unconstrained matrix: its diagonal holds logarithms."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def to_tril(params: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The lower triangular matrix of `Cholesky` parameters."""
    return jnp.tril(params, -1) + jnp.diag(jnp.exp(jnp.diagonal(params)))


def from_tril(lower: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The parameters of a lower triangular matrix."""
    return jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diagonal(lower)))

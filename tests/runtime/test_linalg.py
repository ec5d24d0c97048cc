"""Factorisations without LAPACK: against NumPy's in double precision, differentiable, in any dimension."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.runtime.linalg import inverse_and_log_det, inverse_lower


def positive_definite(dim, num=3):
    factor = np.random.default_rng(dim).normal(size=(num, dim, 2 * dim))
    return factor @ factor.transpose(0, 2, 1)


@pytest.mark.parametrize("dim", [1, 2, 5, 16, 33])
def test_inverse_of_a_triangle(dim):
    lower = np.linalg.cholesky(positive_definite(dim))
    found = jax.vmap(inverse_lower)(jnp.asarray(lower, jnp.float32))
    np.testing.assert_allclose(found, np.linalg.inv(lower), atol=1e-5 * np.abs(np.linalg.inv(lower)).max())
    assert np.all(np.triu(found, 1) == 0)


@pytest.mark.parametrize("dim", [1, 3, 10])
def test_inverse_and_determinant_of_a_positive_definite_matrix(dim):
    matrix = positive_definite(dim)
    inverse, log_det = jax.vmap(inverse_and_log_det)(jnp.asarray(matrix, jnp.float32))
    np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrix)[1], rtol=1e-5)


def test_derivatives():
    lower = jnp.asarray(np.linalg.cholesky(positive_definite(6)[0]), jnp.float32)
    along = jnp.tril(jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)), jnp.float32))
    inverse, change = jax.jvp(inverse_lower, (lower,), (along,))
    np.testing.assert_allclose(change, -inverse @ along @ inverse, atol=1e-5)
    slope = jax.grad(lambda matrix: inverse_and_log_det(matrix)[1])(lower @ lower.T)
    np.testing.assert_allclose(slope + slope.T, 2 * np.linalg.inv(lower @ lower.T), rtol=1e-3, atol=1e-5)

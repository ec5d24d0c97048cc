"""Threads of BLAS while a fit runs."""

import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import relbo
from relbo.runtime.threads import one_blas_thread


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


def test_one_inside_and_as_before_afterwards(two_threads):
    with one_blas_thread():
        assert blas_threads() == {1}
    assert blas_threads() == {2}
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == {2}
    with one_blas_thread(wanted=False):
        assert blas_threads() == {2}


def square(z):
    return -0.5 * jnp.sum(z**2)


def test_steps_of_a_fit_run_on_one(two_threads, monkeypatch):
    seen = []
    original = relbo.Booster.find_modes
    watched = lambda self, *args: (seen.append(blas_threads()), original(self, *args))[1]  # noqa: E731
    monkeypatch.setattr(relbo.Booster, "find_modes", watched)
    relbo.fit(relbo.from_log_density(square, jnp.zeros(2)), progress_bar=False)
    assert seen and all(each == {1} for each in seen)
    assert blas_threads() == {2}


def test_a_function_of_the_user_keeps_its_threads(two_threads):
    seen = []

    def value_and_gradient(z):
        seen.append(blas_threads())
        return -0.5 * np.sum(z**2), -z

    relbo.fit(relbo.from_callable(value_and_gradient, 2), progress_bar=False, max_evaluations=500)
    assert seen and all(each == {2} for each in seen)

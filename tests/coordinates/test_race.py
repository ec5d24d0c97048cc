"""The race for the map: not run where the mode's curvature says all, run where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import within
from relbo.targets import from_log_density

DIM = 6
SCALES = np.array([0.02, 0.1, 0.3, 1.0, 3.0, 10.0])


def nearly_normal(z):
    """Of very different scales, and a little skewed."""
    u = (z - 1.0) / jnp.asarray(SCALES)
    return -0.5 * jnp.sum(u**2) + 0.01 * jnp.sum(jnp.tanh(u) ** 3)


def peak_on_a_hill(z):
    """A twentieth of the mass in a peak a hundred times as narrow: the mode, and the wrong place to stand."""
    logs = [
        jnp.log(weight) + jnp.sum(jax.scipy.stats.norm.logpdf(z, 0.0, scale))
        for weight, scale in ((0.05, 0.01), (0.95, 1.0))
    ]
    return jnp.logaddexp(*logs)


@pytest.fixture(scope="module")
def settled():
    return relbo.fit(from_log_density(nearly_normal, np.zeros(DIM, np.float32)), seed=0, progress_bar=False)


def test_a_posterior_that_is_nearly_normal_needs_no_race(settled):
    assert settled.evaluations["race"] <= 200, "one look at the normal, and around it"
    assert settled.num_evaluations < 8000
    assert settled.num_components == 1


def test_and_its_normal_is_right(settled):
    draws = settled.sample_unconstrained(4000, seed=1)
    means, std_errs = np.mean(draws, axis=0), np.std(draws, axis=0) / np.sqrt(len(draws))
    assert within(means, std_errs, np.ones(DIM), rounding=0.02 * SCALES)  # its skewness moves means by less than that
    assert within(np.std(draws, axis=0) / SCALES, np.full(DIM, (2 * len(draws)) ** -0.5), 1.0, rounding=0.02)


def test_a_narrow_peak_on_a_wide_hill_is_raced():
    posterior = relbo.fit(from_log_density(peak_on_a_hill, np.zeros(3, np.float32)), seed=0, progress_bar=False)
    assert posterior.evaluations["race"] > 200
    first = posterior.trace[0].elbo
    assert first.value > np.log(0.5), "the first component stands on the hill"
    assert within(posterior.elbo.value, posterior.elbo.std_err, 0.0, rounding=0.06), "its peak is a twentieth"

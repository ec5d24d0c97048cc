"""Where a density is zero on part of the space, draws and their density are those of what is left."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import GRID, integrate, target_of, within
from relbo.ascent import NaturalAscent

SETTINGS = {
    "oracle": relbo.NaturalOracle(num_steps=20, num_draws=16, num_restarts=2, starts=relbo.Starts(num_modes=8)),
    "refine": NaturalAscent(num_steps=20, num_draws=16),
    "max_components": 2,
    "progress_bar": False,
}
EDGE = 0.5


def half(z, edge):
    return jnp.where(z[0] > edge, -0.5 * z[0] ** 2, -jnp.inf)


@pytest.fixture(scope="module")
def posterior():
    target = relbo.from_log_density(half, jnp.ones(1), args=(np.float32(EDGE),))
    with pytest.warns(UserWarning, match=r"-inf in about \d+% of the mixture.*sample rejects.*Declare the support"):
        return relbo.fit(target, **SETTINGS)


def test_no_draw_has_zero_density(posterior):
    draws = np.asarray(posterior.sample(2000, seed=3))
    assert draws.shape == (2000, 1) and (draws > EDGE).all()
    assert np.array_equal(draws, np.asarray(posterior.sample(2000, seed=3)))
    mass = posterior.support_mass()
    assert posterior.is_restricted and 0 < mass.value < 1 and mass.std_err > 0


def test_the_density_is_that_of_the_draws(posterior):
    """It integrates to one, is zero where no draw can be, and the ELBO is its own."""
    density = np.exp(np.asarray(posterior.log_prob(GRID[:, None]), np.float64))
    mass = posterior.support_mass()
    assert (density[GRID < EDGE] == 0).all()
    assert within(integrate(density), mass.std_err / mass.value, 1.0, rounding=0.01)  # the grid cuts at the edge
    draws = posterior.sample_unconstrained(4000, seed=1)
    ratios = posterior.log_target(draws) - np.asarray(posterior.log_prob(draws), np.float64)
    error = math.hypot(ratios.std() / math.sqrt(len(ratios)), posterior.elbo.std_err, mass.std_err / mass.value)
    assert within(ratios.mean(), error, posterior.elbo.value, rounding=1e-4)


def test_a_diagnosis_judges_what_is_left(posterior):
    found = relbo.diagnose(posterior, num_draws=4000)
    draws = np.asarray(posterior.sample(4000, seed=2))
    (check,) = found.parameters
    assert found.num_zero > 0 and found.status != "model" and "sample rejects it" in str(found)
    weighted = relbo.resample(posterior, 4000)
    off = (draws.mean() - weighted.mean()) / weighted.std()
    assert abs(check.mean_error.value - off) < 0.1
    assert found.misplaced < 0.3


def test_a_file_keeps_draws_inside(posterior, tmp_path):
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=300)
    loaded = relbo.load(tmp_path / "fit.relbo")
    assert (np.asarray(loaded.sample(300)) > EDGE).all()
    with pytest.raises(ValueError, match="the file holds 300"):
        loaded.sample(301)


def test_elsewhere_nothing_is_rejected():
    posterior = relbo.fit(target_of("two_modes"), **SETTINGS)
    assert not posterior.is_restricted and posterior.support_mass() == relbo.Estimate(1.0, 0.0, 0)


def test_a_mixture_outside_its_support_is_refused(posterior, monkeypatch):
    monkeypatch.setattr(relbo.Posterior, "log_target", lambda self, z: np.full(len(z), -np.inf))
    with pytest.raises(ValueError, match=r"less than one in 100 draws.*Declare the supports"):
        posterior.sample(10)

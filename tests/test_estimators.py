"""Estimators of gradients: the same mean, and the right one; and zero where it can be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from helpers import (
    GRID,
    TWO_BLOBS,
    TWO_MODES,
    integrate,
    mean_is,
    noise_for,
    normals,
    target_of,
)
from relbo.ascent.base import mixture_residual, proposal_residual
from relbo.ascent.natural import _statistics
from relbo.families import LocationScale
from relbo.objectives import (
    ELBO,
    ESTIMATORS,
    RELBO,
    FiniteStep,
    ScoreFunction,
    StickingTheLanding,
)
from relbo.objectives.estimators import combine

FULL = LocationScale()
OBJECTIVES = {"elbo": (ELBO(), 0), "relbo": (RELBO(), 3), "finite step": (FiniteStep(), 1)}
AT_LOC, AT_SCALE = 0.4, 1.6
FEW = 4  # draws per estimate: few, so that a bias of order 1 / num_draws would show


def proposals_mixture():
    return normals([1.2, -0.5], [1.3, 0.9], [0.8, 0.2])


@functools.cache
def exact_gradient(name):
    """E[eps R] and -E[(eps^2 - 1) R] by quadrature: slope and curvature, by Stein's identity, no derivatives taken."""
    _, iteration = OBJECTIVES[name]
    z = GRID
    noise = (z - AT_LOC) / AT_SCALE
    log_s = stats.norm(AT_LOC, AT_SCALE).logpdf(z)
    log_q = np.logaddexp(np.log(0.8) + stats.norm(1.2, 1.3).logpdf(z), np.log(0.2) + stats.norm(-0.5, 0.9).logpdf(z))
    log_p = TWO_MODES.log_density(z[:, None])
    residual = {
        "elbo": log_p - log_s,
        "relbo": log_p - log_q - log_s / np.sqrt(iteration + 1),
        "finite step": log_p - np.logaddexp(np.log(2 / 3) + log_q, np.log(1 / 3) + log_s),
    }[name]
    weight = np.exp(log_s)
    return integrate(weight * noise * residual), -integrate(weight * (noise**2 - 1) * residual)


@functools.cache
def gradients(name):
    """For each estimator, replications of (slope, curvature): natural statistics, and from the surrogate's gradient."""
    objective, iteration = OBJECTIVES[name]
    mixture, target = proposals_mixture(), target_of("two_modes")
    params, iteration = FULL.init(jnp.full(1, AT_LOC), jnp.full(1, AT_SCALE)), jnp.asarray(iteration)
    weight = objective.entropy_weight(iteration)

    def natural(key, estimator):
        residual = proposal_residual(target, mixture, objective, params, iteration)
        seen = _statistics(noise_for(key, FEW, params), FULL, estimator, params, residual, weight)
        return jnp.stack([seen.slope[0], seen.curvature[0, 0]])

    def surrogate(key, estimator):
        def scalar(p):
            residual = proposal_residual(target, mixture, objective, p, iteration)

            def of_draw(z):
                return estimator.surrogate(residual, lambda at: FULL.log_prob(p, at), z, weight)

            return combine(estimator, *jax.vmap(of_draw)(FULL.sample(key, p, FEW)))

        gradient = jax.grad(scalar)(params)
        # d/dm = slope / sigma, d/d log sigma = -curvature.
        return jnp.stack([gradient.loc[0] * AT_SCALE, -gradient.scale[0, 0]])

    @jax.jit
    def replicate(many):
        both = [jax.vmap(statistic, (0, None)) for statistic in (natural, surrogate)]
        return {label: [statistic(many, estimator) for statistic in both] for label, estimator in ESTIMATORS.items()}

    return replicate(jax.random.split(jax.random.key(2), 20_000))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_natural_statistics_have_the_exact_mean(name, estimator):
    assert mean_is(gradients(name)[estimator][0], exact_gradient(name))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_surrogate_gradients_have_the_exact_mean(name, estimator):
    assert mean_is(gradients(name)[estimator][1], exact_gradient(name))


def test_sticking_the_landing_is_zero_at_the_target():
    """At q = p the path derivative vanishes draw by draw, and with it the natural statistics."""
    mixture = TWO_BLOBS.mixture(FULL)

    @jax.jit
    def look(target, mixture, key):
        residual = mixture_residual(target, mixture)
        slopes = jax.vmap(jax.grad(residual))(mixture.sample(key, 100))
        one = mixture.component(0)
        seen = _statistics(noise_for(key, 32, one), FULL, StickingTheLanding(), one, residual, jnp.ones(()))
        return slopes, seen.slope, seen.curvature

    for statistic in look(target_of("two_blobs"), mixture, jax.random.key(0)):
        np.testing.assert_allclose(statistic, 0.0, atol=2e-5)


def test_combine_skips_draws_that_are_not_finite():
    values = jnp.array([1.0, jnp.nan, 3.0, -jnp.inf, 5.0])
    scalars = jnp.array([10.0, jnp.nan, 30.0, jnp.nan, 50.0])
    assert combine(StickingTheLanding(), scalars, values) == 30.0
    # Scores: each residual less the mean of the other two finite ones.
    expected = np.mean([(1 - 4) * 10.0, (3 - 3) * 30.0, (5 - 2) * 50.0])
    clean = jnp.array([10.0, 20.0, 30.0, 40.0, 50.0])
    np.testing.assert_allclose(combine(ScoreFunction(), clean, values), expected, rtol=1e-6)

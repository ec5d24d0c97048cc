"""Estimators of gradients: the same mean, and the right one; and zero where it can be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from helpers import (
    GRID,
    TWO_BLOBS,
    TWO_MODES,
    integrate,
    mean_is,
    normals,
    seen_at,
    stack_of_one,
    target_of,
)
from relbo.ascent import GradientAscent, gradient, natural
from relbo.ascent.bank import noise_at
from relbo.ascent.base import Drawn
from relbo.ascent.natural import _bounds, _Pace, _points
from relbo.ascent.turns import Turns
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
FEW = 4  # draws per estimate, in pairs: few, so that a bias of order 1 / num_draws would show
RATE = 1e-2  # of a gradient step: so small that none ends at the bounds of the family


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
    """For each estimator, replications of (slope, curvature): from a natural step, and from a plain gradient step."""
    objective, iteration = OBJECTIVES[name]
    mixture, target = proposals_mixture(), target_of("two_modes")
    params = stack_of_one(FULL.init(jnp.full(1, AT_LOC), jnp.full(1, AT_SCALE)))
    bounds, fresh = _bounds(FULL.box, np.float32), np.asarray(True)
    plain = GradientAscent(1, FEW, optimizer=optax.sgd(RATE))

    def by_natural_step(key, estimator):
        half = jax.random.normal(key, (1, FEW // 2, 1))
        bank = (half, 0, FEW // 2)
        points = _points(FULL.scale, params, noise_at(bank, 1))
        begun = natural._begin(params, np.zeros(1, np.float32))
        drawn, pace = Drawn(bank, seen_at(target, points), points), _Pace(np.float32(0.1), bounds, fresh, bank)
        walk = natural._improve_step.__wrapped__((mixture, objective, estimator), drawn, begun, pace, iteration)[0].walk
        return jnp.stack([walk.slope[0, 0], walk.curvature[0, 0, 0]])

    def by_gradient_step(key, estimator):
        begun = gradient._begin.__wrapped__(plain, params, None)
        points = gradient._draw.__wrapped__(plain, FULL, key, params, 0)
        drawn, when = Drawn(key, seen_at(target, points), points), (0, fresh, iteration)
        moved = gradient._improve_step.__wrapped__(plain, (mixture, objective, estimator), drawn, begun, when)[0].params
        # d/dm = slope / sigma, d/d log sigma = -curvature.
        loc, scale = moved.loc[0, 0] - params.loc[0, 0], moved.scale[0, 0, 0] - params.scale[0, 0, 0]
        return jnp.stack([loc * AT_SCALE, -scale]) / RATE

    @jax.jit
    def replicate(many):
        both = [jax.vmap(statistic, (0, None)) for statistic in (by_natural_step, by_gradient_step)]
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
    """At q = p the path derivative vanishes draw by draw, and with it the statistics of a refinement."""
    mixture = TWO_BLOBS.mixture(FULL)

    @jax.jit
    def look(target, mixture, key):
        bank = (jax.random.normal(key, (1, 2 * 16, 2)), 0, 16)
        points = _points(FULL.scale, mixture.params, noise_at(bank, 2))
        seen = seen_at(target, points)
        begun = natural._begin(mixture.params, np.log(TWO_BLOBS.weights).astype(np.float32))
        pace = _Pace(np.float32(0.1), _bounds(FULL.box, np.float32), np.asarray(True), bank)
        drawn, turn = Drawn(bank, seen), Turns.of(2, 2, 2).at(0)
        walk = natural._refine_step.__wrapped__(FULL, StickingTheLanding(), drawn, begun, pace, turn)[0].walk
        return seen.slopes - mixture.at(points).slope, walk.slope, walk.curvature

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

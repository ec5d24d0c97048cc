"""Signs and error bars: what is maximised, and that its errors are honest."""

import equinox as eqx
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
    kl_to,
    log_prob_on_grid,
    mean_is,
    noise_for,
    normals,
    target_of,
    unit_spread,
    within,
)
from relbo.ascent.base import proposal_residual
from relbo.ascent.natural import _statistics
from relbo.families import LocationScale
from relbo.objectives import (
    ELBO,
    RELBO,
    SCHEDULES,
    FiniteStep,
    StickingTheLanding,
    compare,
    duality_gap,
    elbo,
    log_ratio,
)
from relbo.objectives.evaluate import _truncated_mean
from relbo.targets import from_log_density

FULL = LocationScale()
NUM_DRAWS = 128
NUM_REPLICATIONS = 1000


@eqx.filter_jit
def elbo_of(key, target, mixture):
    return elbo(key, target, mixture, NUM_DRAWS)


@eqx.filter_jit
def elbos(keys, target, mixture):
    return jax.vmap(lambda key: elbo(key, target, mixture, NUM_DRAWS))(keys)


@eqx.filter_jit
def comparisons(keys, target, old, new, params):
    return jax.vmap(lambda key: compare(key, target, old, new, params, NUM_DRAWS))(keys)


def keys(num=NUM_REPLICATIONS, seed=0):
    return jax.random.split(jax.random.key(seed), num)


# Signs


def test_the_elbo_of_the_target_itself_is_log_z_without_error():
    for known, name in ((TWO_BLOBS, "two_blobs"), (TWO_MODES, "two_modes")):
        seen = elbo_of(jax.random.key(0), target_of(name), known.mixture(FULL, 3))
        np.testing.assert_allclose(seen.estimate.value, known.log_z, rtol=1e-5)
        assert seen.estimate.std_err < 1e-6
        assert seen.num_nan == 0 and seen.num_zero == 0


def test_a_constant_shifts_the_elbo_and_leaves_the_gap(shifted_normals):
    m, mixture, params, target = shifted_normals
    shift = -321.5
    shifted = from_log_density(unit_normal, np.zeros(1, np.float32), args=(m, 7.0 + shift))
    seen, same = (comparisons(keys(1), p, mixture, mixture, params) for p in (target, shifted))
    np.testing.assert_allclose(same.elbo.estimate.value - seen.elbo.estimate.value, shift, rtol=1e-6)
    np.testing.assert_allclose(same.elbo.estimate.std_err, seen.elbo.estimate.std_err, rtol=1e-3)
    np.testing.assert_allclose(same.gap.estimate.value, seen.gap.estimate.value, atol=1e-3)
    np.testing.assert_allclose(same.gap.estimate.std_err, seen.gap.estimate.std_err, rtol=1e-3)


def test_residuals_by_hand():
    log_p, log_q, log_s, second = jnp.float32(-1.0), jnp.float32(-2.5), jnp.float32(-0.5), jnp.asarray(1)
    assert ELBO().residual(log_p, log_q, log_s, second) == -0.5
    np.testing.assert_allclose(RELBO().residual(log_p, log_q, log_s, second), 1.5 + 0.5 / np.sqrt(2), rtol=1e-6)
    third = 2 * np.exp(-2.5) / 3 + np.exp(-0.5) / 3
    np.testing.assert_allclose(FiniteStep().residual(log_p, log_q, log_s, second), -1.0 - np.log(third), rtol=1e-6)


def test_the_finite_step_tends_to_the_linearised_objective():
    """J - (log p - log q) = -log(1 + gamma (s/q - 1)) -> 0, at first order in gamma; for all gamma it is bounded."""
    log_p, log_q, log_s = jnp.float32(-3.0), jnp.float32(-4.0), jnp.float32(-1.7)
    zero = jnp.asarray(0)
    for gamma in (0.5, 1e-1, 1e-2, 1e-3, 1e-4):
        objective = FiniteStep(step_size=lambda iteration, gamma=gamma: jnp.full((), gamma))
        value = objective.residual(log_p, log_q, log_s, zero)
        difference = -np.log1p(gamma * np.expm1(2.3))
        np.testing.assert_allclose(value, 1.0 + difference, rtol=1e-5)
        assert value <= log_p - log_s - np.log(gamma)
    # Far in the tails of q, where the linearised objective is unbounded, this one is not.
    assert FiniteStep().residual(log_p, jnp.float32(-1e30), log_s, zero) <= log_p - log_s + np.log(2) + 1e-6
    assert FiniteStep().residual(log_p, jnp.float32(-jnp.inf), log_s, zero) <= log_p - log_s + np.log(2) + 1e-6


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("1/sqrt(t+1)", [1.0, 1 / np.sqrt(2), 0.5, 1 / 3]),
        ("1/(t+1)", [1.0, 0.5, 0.25, 1 / 9]),
        ("1/log(t+2)", [1 / np.log(2), 1 / np.log(3), 1 / np.log(5), 1 / np.log(10)]),
        (0.3, [0.3] * 4),
        (1, [1.0] * 4),
        (lambda t: 1.0 / (t + 4.0), [0.25, 0.2, 1 / 7, 1 / 12]),
    ],
)
def test_schedules_of_lambda(schedule, values):
    objective = RELBO(schedule)
    for iteration, value in zip((0, 1, 3, 8), values, strict=True):
        np.testing.assert_allclose(objective.entropy_weight(jnp.asarray(iteration)), value, rtol=1e-6)
        seen = objective.residual(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(1.0), jnp.asarray(iteration))
        np.testing.assert_allclose(seen, -value, rtol=1e-6)


def test_an_unknown_schedule_lists_the_choices():
    with pytest.raises(ValueError, match=r"Unknown schedule '1/t'.*1/sqrt\(t\+1\).*1/\(t\+1\).*1/log\(t\+2\)"):
        RELBO("1/t")
    assert len(SCHEDULES) == 3


every_objective = pytest.mark.parametrize(
    "make", [ELBO, RELBO, lambda: RELBO(0.5), FiniteStep], ids=["elbo", "relbo", "constant", "finite"]
)


@every_objective
def test_equal_objectives_share_compiled_programs(make):
    assert make() == make() and hash(make()) == hash(make())


@every_objective
def test_objectives_keep_single_precision_in_a_session_of_double(make):
    with jax.enable_x64(True):
        one, iteration = jnp.ones((), jnp.float32), jnp.asarray(1)
        assert make().residual(one, one, one, iteration).dtype == jnp.float32
        assert (make().entropy_weight(iteration) * one).dtype == jnp.float32


# Honest error bars


@pytest.fixture(scope="session")
def shifted_normals():
    """q = N(0, 1), and p = s = N(m, 1): the gap is KL(s, q) + KL(q, p) = m^2. q has an empty slot."""
    m = 0.8
    mixture = normals([0.0, 5.0], [1.0, 1.0], [1.0, 0.0])
    target = from_log_density(unit_normal, np.zeros(1, np.float32), args=(m, 7.0))
    return m, mixture, FULL.init(jnp.full(1, m), jnp.ones(1)), target


def unit_normal(z, m, shift):
    return -0.5 * jnp.sum((z - m) ** 2) + shift


@pytest.fixture(scope="session")
def compared(shifted_normals):
    """One program for gap, ELBO and improvement; the new mixture fills the empty slot with a poor component."""
    _, old, params, target = shifted_normals
    new = normals([0.1, -1.5], [1.0, 1.5], [0.5, 0.5])
    return new, comparisons(keys(), target, old, new, params)


def test_the_gap_is_known_and_its_error_honest(shifted_normals, compared):
    m, _, _, _ = shifted_normals
    gap = compared[1].gap.estimate
    assert mean_is(gap.value, m**2)
    assert unit_spread(gap.value, gap.std_err, m**2)


def test_duality_gap_alone(shifted_normals):
    """The same number as `compare` gives, from the same definition."""
    m, mixture, params, target = shifted_normals
    seen = eqx.filter_jit(duality_gap)(jax.random.key(3), target, mixture, params, NUM_DRAWS)
    assert seen.estimate.num_draws == 2 * mixture.capacity * NUM_DRAWS
    assert within(seen.estimate.value, seen.estimate.std_err, m**2)


def elbo_by_quadrature(mixture, m):
    log_q = log_prob_on_grid(mixture)
    return integrate(np.exp(log_q) * (7.0 - 0.5 * (GRID - m) ** 2 - log_q))


def test_the_elbo_after_a_step_has_an_honest_error(shifted_normals, compared):
    new, seen = compared
    truth = elbo_by_quadrature(new, shifted_normals[0])
    assert unit_spread(seen.elbo.estimate.value, seen.elbo.estimate.std_err, truth)


def test_the_improvement_of_a_new_component_has_an_honest_error(shifted_normals, compared):
    """A slot that was empty before has draws of its own, and their noise belongs to the error."""
    m, old, _, _ = shifted_normals
    new, seen = compared
    truth = elbo_by_quadrature(new, m) - elbo_by_quadrature(old, m)
    assert mean_is(seen.improvement.value, truth)
    assert unit_spread(seen.improvement.value, seen.improvement.std_err, truth)


@pytest.fixture(scope="session")
def replicated():
    """A mixture of two components and an empty slot, against two modes."""
    mixture = normals([-1.5, 1.0, 3.0], [0.8, 1.4, 1.0], [0.45, 0.55, 0.0])
    return mixture, elbos(keys(seed=4), target_of("two_modes"), mixture)


def test_the_elbo_of_a_mixture_has_an_honest_error(replicated):
    mixture, seen = replicated
    truth = TWO_MODES.log_z - kl_to(TWO_MODES, mixture)
    assert mean_is(seen.estimate.value, truth)
    assert unit_spread(seen.estimate.value, seen.estimate.std_err, truth)
    assert np.all(seen.num_nan == 0) and np.all(seen.num_zero == 0)


def test_the_objective_an_ascent_reports_has_an_honest_error(shifted_normals):
    """Antithetic pairs are not independent: of a residual that is even in the noise, half of the draws are copies."""
    m, mixture, _, target = shifted_normals
    scale, num_draws = 1.3, 2048  # many draws: the square of a normal is skewed
    params = FULL.init(jnp.full(1, m), jnp.full(1, scale))
    residual = proposal_residual(target, mixture, ELBO(), params, jnp.asarray(0))

    @jax.jit
    @jax.vmap
    def replicate(key):
        seen = _statistics(
            noise_for(key, num_draws, params), FULL, StickingTheLanding(), params, residual, jnp.ones(())
        )
        return seen.value, seen.std_err

    values, std_errs = replicate(keys(500, seed=5))
    truth = 7.0 - 0.5 * scale**2 + stats.norm(m, scale).entropy()
    assert mean_is(values, truth)
    assert unit_spread(values, std_errs, truth)


def test_one_draw_has_no_error_bar():
    """Not one of zero: nothing is known about the error."""
    ratios = jnp.array([[0.3], [1.2]])
    seen = _truncated_mean(ratios, jnp.array([0.4, 0.6])).evaluation(2).estimate
    assert not seen.std_err <= 0, f"one draw of each component claims an error of {seen.std_err}"


def test_comparing_a_mixture_with_itself_gives_exactly_nothing(shifted_normals):
    _, old, params, target = shifted_normals
    seen = comparisons(keys(), target, old, old, params)
    np.testing.assert_array_equal(seen.improvement.value, 0.0)
    np.testing.assert_array_equal(seen.improvement.std_err, 0.0)


# Zero density, and broken density


def piecewise(z, low, high):
    """A unit normal; zero below `low`, NaN above `high`, +inf above `high + 1`."""
    value = -0.5 * jnp.sum(z**2)
    value = jnp.where(z[0] < low, -jnp.inf, value)
    return jnp.where(z[0] > high, jnp.where(z[0] > high + 1, jnp.inf, jnp.nan), value)


def half_normal():
    return from_log_density(piecewise, np.ones(1, np.float32), args=(0.0, np.inf))


def test_a_truncated_support_gives_the_elbo_of_the_restricted_mixture():
    """p = exp(-x^2/2) on x > 0 and q = N(m, 1) restricted to it: a closed form, with an honest error."""
    m, target = 0.6, half_normal()
    mixture = normals([m, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    inside = stats.norm.cdf(m)
    truth = -0.5 * m**2 - m * stats.norm.pdf(m) / inside + 0.5 * np.log(2 * np.pi) + np.log(inside)
    seen = elbos(keys(seed=6), target, mixture)
    assert unit_spread(seen.estimate.value, seen.estimate.std_err, truth)
    assert mean_is(seen.num_zero / NUM_DRAWS, 1 - inside)
    assert np.all(seen.num_nan == 0)


def test_the_gap_of_a_mixture_that_is_the_target_where_it_lives():
    """q restricted to p > 0 is p: nothing can be gained, and the gap is zero towards every s."""
    target = half_normal()
    mixture = normals([0.0, 0.0], [1.0, 1.0], [1.0, 0.0])
    params = FULL.init(jnp.full(1, 1.0), jnp.ones(1))
    gap = comparisons(keys(seed=7), target, mixture, mixture, params).gap.estimate
    assert mean_is(gap.value, 0.0, rounding=1e-4)


def test_broken_draws_are_counted_and_skipped():
    """NaN and +inf alike; never read as zero density, which is counted apart and shortens the mixture."""
    target = from_log_density(piecewise, np.zeros(1, np.float32), args=(-1.0, 1.0))
    mixture = normals([0.0, 0.5, 9.0], [1.0, 2.0, 1.0], [0.4, 0.6, 0.0])
    key = jax.random.key(8)
    draws = np.asarray(mixture.sample_stratified(key, NUM_DRAWS))[:2, :, 0].astype(float)
    log_q = np.asarray(jax.jit(jax.vmap(jax.vmap(mixture.log_prob)))(jnp.asarray(draws, jnp.float32)[..., None]), float)
    broken, zero = draws > 1, draws < -1
    share = np.array([0.4, 0.6])[:, None] * ~broken / (~broken).sum(1, keepdims=True)
    mass = np.sum(share * ~zero)
    expected = np.sum(share * np.where(zero, 0.0, -0.5 * draws**2 - log_q)) / mass + np.log(mass)
    seen = elbo_of(key, target, mixture)
    assert (seen.num_nan, seen.num_zero) == (broken.sum(), zero.sum())
    assert broken.sum() > 0 and zero.sum() > 0
    np.testing.assert_allclose(seen.estimate.value, expected, rtol=1e-5)
    ratios = jax.jit(jax.vmap(lambda z: log_ratio(target, mixture, z)))(jnp.array([[1.5], [2.5], [-1.5], [0.0]]))
    assert np.all(np.isnan(ratios[:2])) and np.isneginf(ratios[2]) and np.isfinite(ratios[3])


def test_broken_draws_in_an_empty_slot_do_not_count():
    target = from_log_density(piecewise, np.zeros(1, np.float32), args=(-np.inf, 30.0))
    mixture = normals([0.0, 0.5, 90.0], [1.0, 2.0, 1.0], [0.4, 0.6, 0.0])
    seen = elbo_of(jax.random.key(8), target, mixture)
    assert seen.num_nan == 0 and np.isfinite(seen.estimate.value) and np.isfinite(seen.estimate.std_err)


def test_a_component_that_is_broken_everywhere_breaks_the_elbo():
    target = from_log_density(piecewise, np.zeros(1, np.float32), args=(-np.inf, 30.0))
    mixture = normals([0.0, 90.0, 0.0], [1.0, 1.0, 1.0], [0.999, 0.001, 0.0])
    seen = elbo_of(jax.random.key(8), target, mixture)
    assert np.isnan(seen.estimate.value) and seen.num_nan == NUM_DRAWS


def test_a_mixture_where_the_density_is_zero_has_an_elbo_of_minus_infinity():
    """Zero density is not NaN: log c tends to minus infinity with the share c of the mixture inside."""
    target = from_log_density(piecewise, np.zeros(1, np.float32), args=(-30.0, np.inf))
    mixture = normals([-90.0, -95.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.0])
    seen = elbo_of(jax.random.key(8), target, mixture)
    assert seen.num_zero == 2 * NUM_DRAWS and seen.num_nan == 0
    assert np.isneginf(seen.estimate.value)

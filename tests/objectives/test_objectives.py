"""Signs and error bars: what is maximised, and that its errors are honest."""

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
    kl_to,
    log_prob_on_grid,
    mean_is,
    normals,
    seen_at,
    stack_of_one,
    unit_spread,
)
from relbo.ascent import natural
from relbo.ascent.bank import noise_at
from relbo.ascent.base import Drawn
from relbo.families import LocationScale
from relbo.mixture import weights_of
from relbo.objectives import ELBO, RELBO, SCHEDULES, FiniteStep, StickingTheLanding, duality_gap
from relbo.objectives.evaluate import improvement, influence
from relbo.targets import from_log_density

FULL = LocationScale()
NUM_DRAWS = 128
NUM_REPLICATIONS = 1000


@functools.partial(jax.jit, static_argnums=3)
def _draws(key, drawn, mixture, num_draws):
    """Stratified draws of one mixture, (capacity, num, dim), and the log density of another there."""
    points = drawn.sample_stratified(key, num_draws)
    return points, jax.vmap(mixture.at)(points).log_q


def ratios_of(key, mixture, log_p, num_replications=NUM_REPLICATIONS, drawn=None):
    """log p - log q at stratified draws, (replications, capacity, num); `log_p` takes points (num, dim) in NumPy."""
    points, log_q = _draws(key, drawn or mixture, mixture, num_replications * NUM_DRAWS)
    points, log_q = np.asarray(points, np.float64), np.asarray(log_q, np.float64)
    with np.errstate(invalid="ignore"):
        ratios = log_p(points.reshape(-1, points.shape[-1])).reshape(log_q.shape) - log_q
    return np.swapaxes(ratios.reshape(len(ratios), num_replications, NUM_DRAWS), 0, 1)


def estimates(each):
    """Values and standard errors of a list of estimates, as arrays."""
    return np.asarray([one.value for one in each]), np.asarray([one.std_err for one in each])


def elbos(key, mixture, log_p, num_replications=NUM_REPLICATIONS):
    return [
        influence(ratios, weights_of(mixture)).evaluation()
        for ratios in ratios_of(key, mixture, log_p, num_replications)
    ]


def elbo_of(mixture, log_p, seed=8):
    return elbos(jax.random.key(seed), mixture, log_p, 1)[0]


# Signs


def test_the_elbo_of_the_target_itself_is_log_z_without_error():
    for known in (TWO_BLOBS, TWO_MODES):
        seen = elbo_of(known.mixture(FULL, 3), known.log_density)
        np.testing.assert_allclose(seen.estimate.value, known.log_z, rtol=1e-5)
        assert seen.estimate.std_err < 1e-6
        assert seen.num_nan == 0 and seen.num_zero == 0


def test_a_constant_shifts_the_elbo_and_leaves_the_gap():
    ratios = ratios_of(jax.random.key(0), OLD, log_p, 1)[0]
    outside = ratios_of(jax.random.key(1), OLD, log_p, 1, S)[0, 0]
    seen, same = (influence(ratios + shift, weights_of(OLD)) for shift in (0.0, -321.5))
    np.testing.assert_allclose(same.value - seen.value, -321.5, rtol=1e-12)
    np.testing.assert_allclose(same.std_err(), seen.std_err(), rtol=1e-9)
    gap, again = (duality_gap(*parts).estimate for parts in ((seen, outside), (same, outside - 321.5)))
    np.testing.assert_allclose([again.value, again.std_err], [gap.value, gap.std_err], rtol=1e-9)


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


# Honest error bars: q = N(0, 1), and p = s = N(m, 1), so that the gap is KL(s, q) + KL(q, p) = m^2

M = 0.8
OLD = normals([0.0, 5.0], [1.0, 1.0], [1.0, 0.0])
NEW = normals([0.1, -1.5], [1.0, 1.5], [0.5, 0.5])
"""Fills the empty slot of the old mixture with a poor component."""
S = normals([M], [1.0], [1.0])


def log_p(z):
    return 7.0 - 0.5 * (z[:, 0] - M) ** 2


def elbo_by_quadrature(mixture):
    log_q = log_prob_on_grid(mixture)
    return integrate(np.exp(log_q) * (log_p(GRID[:, None]) - log_q))


@functools.cache
def influences():
    """Replications of what is known of the old mixture and of the new, with common random numbers."""
    both = [(mixture, ratios_of(jax.random.key(0), mixture, log_p)) for mixture in (OLD, NEW)]
    return [[influence(one, weights_of(mixture)) for one in ratios] for mixture, ratios in both]


def test_the_gap_is_known_and_its_error_honest():
    outside = ratios_of(jax.random.key(3), OLD, log_p, drawn=S)[:, 0]
    gaps = [duality_gap(inside, ratios) for inside, ratios in zip(influences()[0], outside, strict=True)]
    values, std_errs = estimates([gap.estimate for gap in gaps])
    assert mean_is(values, M**2)
    assert unit_spread(values, std_errs, M**2)
    assert gaps[0].estimate.num_draws == 2 * NUM_DRAWS, "of the slot that is not empty, and of s"


def test_the_elbo_after_a_step_has_an_honest_error():
    values, std_errs = estimates([one.evaluation().estimate for one in influences()[1]])
    assert unit_spread(values, std_errs, elbo_by_quadrature(NEW))


def test_the_improvement_of_a_new_component_has_an_honest_error():
    """A slot that was empty before has draws of its own, and their noise belongs to the error."""
    values, std_errs = estimates([improvement(*both) for both in zip(*influences(), strict=True)])
    truth = elbo_by_quadrature(NEW) - elbo_by_quadrature(OLD)
    assert mean_is(values, truth)
    assert unit_spread(values, std_errs, truth)


def test_the_elbo_of_a_mixture_has_an_honest_error():
    """Two components and an empty slot, against two modes."""
    mixture = normals([-1.5, 1.0, 3.0], [0.8, 1.4, 1.0], [0.45, 0.55, 0.0])
    seen = elbos(jax.random.key(4), mixture, TWO_MODES.log_density)
    values, std_errs = estimates([one.estimate for one in seen])
    truth = TWO_MODES.log_z - kl_to(TWO_MODES, mixture)
    assert mean_is(values, truth)
    assert unit_spread(values, std_errs, truth)
    assert all(one.num_nan == 0 and one.num_zero == 0 for one in seen)


def test_the_objective_an_ascent_reports_has_an_honest_error():
    """Antithetic pairs are not independent: of a residual that is even in the noise, half of the draws are copies."""
    scale, num_draws = 1.3, 2048  # many draws: the square of a normal is skewed
    params = stack_of_one(FULL.init(jnp.full(1, M), jnp.full(1, scale)))
    target = from_log_density(unit_normal, np.zeros(1, np.float32))
    bounds = natural._bounds(FULL.box, np.float32)

    @jax.jit
    @jax.vmap
    def replicate(key):
        bank = (jax.random.normal(key, (1, num_draws // 2, 1)), 0, num_draws // 2)
        points = natural._points(FULL.scale, params, noise_at(bank, 1))
        begun = natural._begin(params, np.zeros(1, np.float32))
        drawn = Drawn(bank, seen_at(target, points), points)
        pace = natural._Pace(np.float32(0.1), bounds, np.asarray(True), bank)
        tally = natural._improve_step.__wrapped__((OLD, ELBO(), StickingTheLanding()), drawn, begun, pace, 0)[0].tally
        return tally.total[0], jnp.sqrt(tally.variance[0]), tally.count[0]

    values, std_errs, counts = replicate(jax.random.split(jax.random.key(5), 500))
    truth = 7.0 - 0.5 * scale**2 + stats.norm(M, scale).entropy()
    assert np.all(counts == 1)
    assert mean_is(values, truth)
    assert unit_spread(values, std_errs, truth)


def unit_normal(z):
    return 7.0 - 0.5 * jnp.sum((z - M) ** 2)


def test_one_draw_has_no_error_bar():
    """Not one of zero: nothing is known about the error."""
    seen = influence(np.array([[0.3], [1.2]]), np.array([0.4, 0.6])).evaluation().estimate
    assert not seen.std_err <= 0, f"one draw of each component claims an error of {seen.std_err}"


def test_comparing_a_mixture_with_itself_gives_exactly_nothing():
    one = influences()[1][0]
    seen = improvement(one, one)
    assert seen.value == 0.0 and seen.std_err == 0.0


def test_an_empty_slot_has_no_part_in_any_estimate():
    """Whatever is written where its draws would be."""
    ratios, weights = np.random.default_rng(0).normal(size=(3, 50)), np.array([0.3, 0.7, 0.0])
    first, second = ratios.copy(), ratios.copy()
    first[2], second[2] = 0.0, np.where(np.arange(50) % 2, np.nan, 1e9)
    seen, same = influence(first, weights), influence(second, weights)
    assert seen.evaluation().estimate.value == same.evaluation().estimate.value
    assert seen.std_err() == same.std_err() and same.num_nan == 0


# Zero density, and broken density


def piecewise(low, high):
    """A unit normal; zero below `low`, NaN above `high`, +inf above `high + 1`."""

    def log_density(z):
        value = np.where(z[:, 0] < low, -np.inf, -0.5 * z[:, 0] ** 2)
        return np.where(z[:, 0] > high, np.where(z[:, 0] > high + 1, np.inf, np.nan), value)

    return log_density


def test_a_truncated_support_gives_the_elbo_of_the_restricted_mixture():
    """p = exp(-x^2/2) on x > 0 and q = N(m, 1) restricted to it: a closed form, with an honest error."""
    m = 0.6
    mixture = normals([m, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    inside = stats.norm.cdf(m)
    truth = -0.5 * m**2 - m * stats.norm.pdf(m) / inside + 0.5 * np.log(2 * np.pi) + np.log(inside)
    seen = elbos(jax.random.key(6), mixture, piecewise(0.0, np.inf))
    assert unit_spread(*estimates([one.estimate for one in seen]), truth)
    assert mean_is([one.num_zero / NUM_DRAWS for one in seen], 1 - inside)
    assert all(one.num_nan == 0 for one in seen)


def test_the_gap_of_a_mixture_that_is_the_target_where_it_lives():
    """q restricted to p > 0 is p: nothing can be gained, and the gap is zero towards every s."""
    mixture, half = normals([0.0, 0.0], [1.0, 1.0], [1.0, 0.0]), piecewise(0.0, np.inf)
    inside = [influence(one, weights_of(mixture)) for one in ratios_of(jax.random.key(7), mixture, half)]
    outside = ratios_of(jax.random.key(8), mixture, half, drawn=normals([1.0], [1.0], [1.0]))[:, 0]
    gaps = [duality_gap(one, ratios).estimate.value for one, ratios in zip(inside, outside, strict=True)]
    assert mean_is(gaps, 0.0, rounding=1e-4)


def test_broken_draws_are_counted_and_skipped():
    """NaN and +inf alike; never read as zero density, which is counted apart and shortens the mixture."""
    mixture, key = normals([0.0, 0.5, 9.0], [1.0, 2.0, 1.0], [0.4, 0.6, 0.0]), jax.random.key(8)
    draws = np.asarray(mixture.sample_stratified(key, NUM_DRAWS))[:2, :, 0].astype(float)
    parts = [np.log(0.4) + stats.norm(0.0, 1.0).logpdf(draws), np.log(0.6) + stats.norm(0.5, 2.0).logpdf(draws)]
    broken, zero = draws > 1, draws < -1
    share = np.array([0.4, 0.6])[:, None] * ~broken / (~broken).sum(1, keepdims=True)
    mass = np.sum(share * ~zero)
    expected = np.sum(share * np.where(zero, 0.0, -0.5 * draws**2 - np.logaddexp(*parts))) / mass + np.log(mass)
    seen = elbo_of(mixture, piecewise(-1.0, 1.0))
    assert (seen.num_nan, seen.num_zero) == (broken.sum(), zero.sum())
    assert broken.sum() > 0 and zero.sum() > 0
    np.testing.assert_allclose(seen.estimate.value, expected, rtol=1e-5)


def test_broken_draws_in_an_empty_slot_do_not_count():
    mixture = normals([0.0, 0.5, 90.0], [1.0, 2.0, 1.0], [0.4, 0.6, 0.0])
    seen = elbo_of(mixture, piecewise(-np.inf, 30.0))
    assert seen.num_nan == 0 and np.isfinite(seen.estimate.value) and np.isfinite(seen.estimate.std_err)


def test_a_component_that_is_broken_everywhere_breaks_the_elbo():
    mixture = normals([0.0, 90.0, 0.0], [1.0, 1.0, 1.0], [0.999, 0.001, 0.0])
    seen = elbo_of(mixture, piecewise(-np.inf, 30.0))
    assert np.isnan(seen.estimate.value) and seen.num_nan == NUM_DRAWS


def test_a_mixture_where_the_density_is_zero_has_an_elbo_of_minus_infinity():
    """Zero density is not NaN: log c tends to minus infinity with the share c of the mixture inside."""
    mixture = normals([-90.0, -95.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.0])
    seen = elbo_of(mixture, piecewise(-30.0, np.inf))
    assert seen.num_zero == 2 * NUM_DRAWS and seen.num_nan == 0
    assert np.isneginf(seen.estimate.value)

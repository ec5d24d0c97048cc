"""Measuring an iteration: known truths within the errors stated, as few draws as tell, and never more than allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import TWO_MODES, door_of, kl_to, normals, target_of, within
from relbo.families import LocationScale
from relbo.objectives.measuring import measure, measure_one
from relbo.targets import from_log_density

FULL, MOST, M = LocationScale(), 4096, 0.8
OLD = normals([0.0, 5.0], [1.0, 1.0], [1.0, 0.0])
FAR_BETTER = normals([M, 5.0], [1.0, 1.0], [1.0, 0.0])
WIDER = normals([0.0, 1.5], [1.2, 1.0], [1.0, 0.0])


def unit_normal(z, broken_from):
    return jnp.where(z[0] > broken_from, jnp.nan, 7.0 - 0.5 * jnp.sum((z - M) ** 2))


def door(broken_from=np.inf):
    return door_of(from_log_density(unit_normal, np.zeros(1, np.float32), args=(np.float32(broken_from),)))


def test_the_target_itself_is_measured_at_once():
    through = door_of(target_of("two_modes"))
    seen = measure_one(jax.random.key(0), through, TWO_MODES.mixture(FULL, 4), MOST)
    np.testing.assert_allclose(seen.estimate.value, TWO_MODES.log_z, rtol=1e-5)
    assert seen.estimate.std_err < 1e-5 and seen.estimate.num_draws == through.spent["measuring"] < MOST / 2


@pytest.mark.parametrize("most", [64, 500, MOST])
def test_an_elbo_is_known_to_its_error_and_costs_no_more_than_allowed(most):
    mixture, through = normals([-1.5, 1.0, 3.0], [0.8, 1.4, 1.0], [0.45, 0.55, 0.0]), door_of(target_of("two_modes"))
    seen = measure_one(jax.random.key(1), through, mixture, most)
    assert within(seen.estimate.value, seen.estimate.std_err, TWO_MODES.log_z - kl_to(TWO_MODES, mixture))
    assert through.num_evaluations == seen.estimate.num_draws <= most


def test_gap_and_improvement_are_known():
    """q = N(0, 1) and p = s = N(m, 1): the gap is m^2, and half of that is to be gained."""
    s = FULL.init(jnp.full(1, M), jnp.ones(1))
    seen = measure(jax.random.key(2), door(), OLD, FAR_BETTER, s, most=MOST, least=0.0)
    assert within(seen.gap.estimate.value, seen.gap.estimate.std_err, M**2)
    assert within(seen.improvement.value, seen.improvement.std_err, M**2 / 2)
    assert within(seen.elbo.estimate.value, seen.elbo.estimate.std_err, 7.0 + 0.5 * np.log(2 * np.pi), rounding=1e-5)
    assert seen.nan_before == 0


def test_what_is_clear_costs_less_than_what_is_not():
    """A wider normal is worse by a known number of nats; whether by more than that is hard to tell."""
    truth = np.log(1.2) - 0.5 * (1.2**2 - 1)
    clear, unclear = door(), door()
    measure(jax.random.key(3), clear, OLD, WIDER, None, most=2**15, least=truth + 1.0)
    seen = measure(jax.random.key(3), unclear, OLD, WIDER, None, most=2**15, least=truth)
    assert within(seen.improvement.value, seen.improvement.std_err, truth)
    assert clear.num_evaluations < unclear.num_evaluations <= 2 * 2**15


def test_a_mixture_is_compared_with_itself_for_nothing():
    """Exactly zero, up to the rounding of the error, and evaluated once."""
    through = door()
    seen = measure(jax.random.key(4), through, OLD, OLD, None, most=512, least=-np.inf)
    assert seen.improvement.value == 0 and seen.improvement.std_err < 1e-12
    assert through.num_evaluations == seen.elbo.estimate.num_draws <= 512
    assert np.isnan(seen.gap.estimate.value), "there was no component to measure it with"


def test_a_broken_model_shows_in_the_old_mixture():
    """Also if nothing of the new one can be measured."""
    lost = normals([50.0, 5.0], [1.0, 1.0], [1.0, 0.0])
    seen = measure(jax.random.key(5), door(broken_from=0.5), OLD, lost, None, most=MOST, least=0.0)
    assert 0.1 < seen.nan_before < 0.6 and np.isnan(seen.improvement.value)


def test_the_same_key_measures_the_same():
    first, second = (measure(jax.random.key(6), door(), OLD, WIDER, None, most=512, least=0.0) for _ in range(2))
    assert first.improvement == second.improvement and first.elbo == second.elbo

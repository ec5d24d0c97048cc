"""Quasi-random normals: the sequence is Sobol's, every point standard normal, and averages better than random ones."""

import jax
import numpy as np
import pytest
from scipy import stats

from helpers import FALSE_ALARM
from relbo.ascent.bank import Bank, noise_at
from relbo.runtime.quasi import _BITS, MOST_COORDINATES, _sequence, quasi_normals


@pytest.mark.parametrize("dim", range(1, MOST_COORDINATES + 1))
def test_the_sequence_is_that_of_sobol(dim):
    expected = stats.qmc.Sobol(dim, scramble=False).random_base2(7)
    made = _sequence(128, dim) / 2**_BITS
    for num in (4, 8, 64, 128):  # scipy's order is that of a Gray code: of a power of two the set is the same
        np.testing.assert_array_equal(np.unique(made[:num], axis=0), np.unique(expected[:num], axis=0))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_every_point_is_standard_normal(dim):
    """Points of one set depend on each other, those of different sets do not."""
    draws = quasi_normals(np.random.default_rng(dim), 4000, 5, dim)
    assert draws.shape == (5, 4000, dim)
    p_values = [stats.kstest(draws[point, :, axis], "norm").pvalue for point in range(5) for axis in range(dim)]
    assert min(p_values) * len(p_values) > FALSE_ALARM
    if dim > 1:
        p_value = stats.pearsonr(draws[3, :, 0], draws[3, :, 1]).pvalue
        assert p_value > FALSE_ALARM


def test_averages_are_nearer_than_those_of_random_draws():
    """Of cos(x + y), over 80 points and their mirror images: by a factor that chance does not explain."""
    rng = np.random.default_rng(0)
    quasi, random = quasi_normals(rng, 500, 80, 2), rng.standard_normal((80, 500, 2))
    errors = [np.cos(draws.sum(axis=-1)).mean(axis=0) - np.exp(-1) for draws in (quasi, random)]
    ratio = np.mean(errors[0] ** 2) / np.mean(errors[1] ** 2)
    assert stats.f.cdf(4 * ratio, 500, 500) < FALSE_ALARM  # less than a quarter of the variance


@pytest.mark.parametrize("dim", [2, MOST_COORDINATES + 1])
def test_a_bank_gives_every_member_noise_of_its_own(dim):
    bank = Bank(jax.random.key(7), 3, 4, dim, np.float32)
    noise = np.asarray(noise_at(bank.at(1), 3))
    assert noise.shape == (3, 8, dim) and noise.dtype == np.float32
    np.testing.assert_array_equal(noise[:, :4], -noise[:, 4:])
    flat = noise[:, :4].reshape(-1, dim)
    assert len(np.unique(flat, axis=0)) == len(flat)
    assert not np.allclose(noise, noise_at(bank.at(2), 3))

"""The modes of a mixture: hills, not components."""

import equinox as eqx
import jax
import numpy as np
import pytest

import handmade
from handmade import full_normals
from helpers import normals
from relbo.diagnostics import modes_of
from relbo.diagnostics.modes import confirmed, hills_of
from relbo.mixture import Mixture
from relbo.oracles import NaturalOracle, Starts
from relbo.targets import from_log_density


def bowl(z):
    return -(z**2).sum()


def posterior_of(mixture: Mixture):
    """In coordinates shifted by one, so that a location in the wrong coordinates shows."""
    oracle = NaturalOracle(starts=Starts(num_modes=0))
    return handmade.posterior_of(mixture, from_log_density(bowl, np.ones(mixture.dim, np.float32)), oracle=oracle)


def test_one_normal_in_three_overlapping_parts_is_one_mode():
    modes = modes_of(posterior_of(normals([-1.0, 0.0, 1.2], [1.0, 0.9, 0.8], [0.3, 0.4, 0.3])))
    assert len(modes) == 1
    np.testing.assert_allclose(modes.weights, 1.0, rtol=1e-6)
    assert np.all(modes.assign(np.linspace(-5, 5, 11)[:, None]) == 0)


def test_a_banana_of_ten_components_is_one_mode():
    x = np.linspace(-20, 20, 10)
    means = np.stack([x, 3 - 0.03 * x**2], axis=1)
    slopes = -0.06 * x
    factors = [np.array([[2.5, 0.0], [2.5 * slope, 1.0]]) for slope in slopes]
    weights = np.exp(-(x**2) / 200)
    modes = modes_of(posterior_of(full_normals(means, factors, weights / weights.sum())))
    assert len(modes) == 1


@pytest.mark.parametrize("dim", [2, 20])
def test_separated_normals_are_as_many_modes(dim):
    rng = np.random.default_rng(0)
    means = 8.0 * np.eye(10, dim) if dim > 10 else 12.0 * np.stack([np.arange(10), np.arange(10) ** 2 % 7], axis=1)
    weights = rng.dirichlet(np.full(10, 3.0))
    modes = modes_of(posterior_of(full_normals(means, [np.eye(dim)] * 10, weights)))
    assert len(modes) == 10
    np.testing.assert_allclose(modes.weights, np.sort(weights)[::-1], rtol=1e-5)
    order = np.argsort(-weights)
    np.testing.assert_allclose(modes.locations, means[order] + 1.0, rtol=1e-5)
    near = means[order] + 1.0 + 0.5 * rng.standard_normal((10, dim))
    np.testing.assert_array_equal(modes.assign(near), np.arange(10))


def test_a_wide_component_in_the_valley_joins_no_two_modes():
    modes = modes_of(posterior_of(normals([-8.0, 0.0, 8.0], [1.0, 6.0, 1.0], [0.5, 0.1, 0.4])))
    assert len(modes) == 2
    np.testing.assert_allclose(modes.weights.sum(), 1.0, rtol=1e-6)


def test_the_dip_decides():
    heights, pairs = np.array([0.0, -1.0, -0.2]), np.array([[0, 1], [1, 2], [0, 2]])
    assert hills_of(heights, pairs, np.array([-1.4, -9.0, -9.0])).tolist() == [0, 0, 1]
    assert hills_of(heights, pairs, np.array([-1.6, -9.0, -9.0])).tolist() == [0, 1, 2]
    # The second peak is no hill of its own; through it the first and the third meet at its height, -1.
    assert len(set(hills_of(heights, pairs, np.array([-1.0, -1.0, -9.0])))) == 2


def test_one_component_is_one_mode():
    assert len(modes_of(posterior_of(normals([0.3], [1.0], [1.0])))) == 1


def test_bad_points_are_refused():
    modes = modes_of(posterior_of(normals([0.3], [1.0], [1.0])))
    with pytest.raises(ValueError, match=r"shape \(num, 1\), got \(3, 2\)"):
        modes.assign(np.zeros((3, 2)))


def test_the_order_of_slots_does_not_matter():
    mixture = normals([-4.0, 4.0, 4.5], [1.0, 1.0, 1.0], [0.3, 0.5, 0.2])
    turned = jax.tree.map(lambda leaf: leaf[::-1], eqx.filter(mixture, eqx.is_array))
    first, second = modes_of(posterior_of(mixture)), modes_of(posterior_of(eqx.combine(turned, mixture)))
    np.testing.assert_allclose(first.weights, second.weights, rtol=1e-6)


def test_hills_without_a_valley_of_the_target_are_one_mode():
    """Two narrow components on one wide bowl: hills of the mixture, and no modes of the posterior."""
    modes = modes_of(posterior_of(normals([-0.4, 0.6], [0.05, 0.05], [0.3, 0.7])))
    assert len(modes) == 2
    np.testing.assert_allclose(confirmed(modes), [1.0], rtol=1e-6)
    deep = from_log_density(lambda z: -40 * ((z[0] + 0.4) * (z[0] - 0.6)) ** 2, np.zeros(1, np.float32))
    apart = handmade.posterior_of(
        normals([-0.4, 0.6], [0.05, 0.05], [0.3, 0.7]), deep, oracle=NaturalOracle(starts=Starts(num_modes=0))
    )
    np.testing.assert_allclose(confirmed(modes_of(apart)), [0.7, 0.3], rtol=1e-6)

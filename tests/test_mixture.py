"""The mixture at fixed capacity: empty slots change nothing, draws have the right law."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import TWO_BLOBS, mean_is, normals, within
from relbo.families import Diagonal, Laplace, LocationScale, Normal
from relbo.mixture import Mixture, draw_each, draw_from, empty_mixture, log_densities, map_chunks

FULL = LocationScale()
NUM = 40_000


@functools.cache
def blobs(capacity=2):
    return TWO_BLOBS.mixture(FULL, capacity)


@jax.jit
def log_probs(mixture, points):
    return jax.vmap(mixture.log_prob)(points)


@jax.jit
def gradients(mixture, points):
    """The sum of log densities, with its gradients with respect to the mixture and the points."""

    def total(m, z):
        return jnp.sum(jax.vmap(m.log_prob)(z))

    return total(mixture, points), *jax.grad(total, (0, 1))(mixture, points)


@functools.cache
def points():
    near = 2.0 * np.random.default_rng(0).normal(size=(200, 2))
    return jnp.asarray(np.concatenate([near, [[300.0, -500.0], [1e4, 1e4]]]), jnp.float32)


def test_log_prob_is_the_known_one():
    expected = TWO_BLOBS.log_density(points()) - TWO_BLOBS.log_z
    np.testing.assert_allclose(log_probs(blobs(), points()), expected, rtol=2e-5, atol=2e-5)


def test_growing_keeps_log_prob_bit_for_bit():
    """Also with three components, where another order of summation would show."""
    other = FULL.init(jnp.array([0.1, -0.3]), jnp.array([1.7, 0.9]))
    mixture = blobs(3).place(2, other, 0.0).reweight(jnp.log(jnp.array([0.2, 0.7, 0.1])))
    before = log_probs(mixture, points())
    for capacity in (3, 8):
        grown = mixture.grow(capacity)
        assert (grown.capacity, grown.num_components) == (capacity, 3)
        np.testing.assert_array_equal(log_probs(grown, points()), before)


def test_an_empty_slot_changes_nothing():
    """Whatever its parameters are: log density, gradients, draws."""
    first = blobs(4)
    strange = FULL.init(jnp.array([-900.0, 4.0]), jnp.array([1e-3, 1e3]))
    second = first.place(2, strange, -jnp.inf)
    assert second.num_components == 2
    np.testing.assert_array_equal(first.active, [True, True, False, False])
    near = points()[:200]
    (total, of_first, of_points), (other, of_second, of_other) = gradients(first, near), gradients(second, near)
    assert total == other
    np.testing.assert_array_equal(of_points, of_other)
    for leaf, again in zip(jax.tree.leaves(of_first.params), jax.tree.leaves(of_second.params), strict=True):
        np.testing.assert_array_equal(leaf, again)
        np.testing.assert_array_equal(leaf[2:], 0.0)
        assert np.all(np.isfinite(leaf))
    np.testing.assert_array_equal(sample(first), sample(second))


def test_an_empty_mixture_has_density_zero():
    nothing = empty_mixture(FULL, 2, 3, jnp.float32)
    assert (nothing.capacity, nothing.dim, int(nothing.num_components)) == (3, 2, 0)
    np.testing.assert_array_equal(log_probs(nothing, points()), -np.inf)


def test_place_and_reweight_leave_the_rest_alone():
    mixture = blobs(4)
    one = FULL.init(jnp.array([3.0, 4.0]), jnp.ones(2))
    placed = mixture.place(jnp.asarray(3), one, -2.0)
    np.testing.assert_array_equal(placed.log_weights[:3], mixture.log_weights[:3])
    np.testing.assert_array_equal(placed.params.loc[:3], mixture.params.loc[:3])
    assert placed.log_weights[3] == -2.0
    np.testing.assert_array_equal(placed.component(3).loc, one.loc)
    np.testing.assert_array_equal(placed.component(jnp.asarray(3)).scale, one.scale)
    assert mixture.log_weights[3] == -np.inf, "the mixture itself is not changed"
    assert placed.reweight(mixture.log_weights).num_components == 2


def test_a_weight_of_zero_is_legal():
    """All weight on one component: the mixture is that component, and the other gets no gradient."""
    mixture = blobs().reweight(jnp.log(jnp.array([1.0, 0.0])))
    alone = jax.jit(jax.vmap(FULL.log_prob, (None, 0)))(mixture.component(0), points())
    np.testing.assert_allclose(log_probs(mixture, points()), alone, rtol=1e-6)
    _, of_mixture, _ = gradients(mixture, points()[:200])
    np.testing.assert_array_equal(of_mixture.params.loc[1], 0.0)
    assert np.all(np.isfinite(of_mixture.params.loc))


@jax.jit
def sample(mixture):
    return mixture.sample(jax.random.key(5), NUM)


def moments(draws):
    """First and second moments, and one that sees which component a draw came from."""
    draws = np.asarray(draws, np.float64)
    return np.column_stack([draws, draws**2, draws[:, 0] * draws[:, 1]])


def known_moments():
    mean, second = TWO_BLOBS.mean, TWO_BLOBS.covariance + np.outer(TWO_BLOBS.mean, TWO_BLOBS.mean)
    return np.concatenate([mean, np.diag(second), [second[0, 1]]])


def on_host(mixture):
    return draw_from(jax.random.key(5), mixture, NUM)


both = pytest.mark.parametrize("draw", [sample, on_host])


@both
@pytest.mark.parametrize("capacity", [2, 4])
def test_independent_draws_have_the_right_moments(capacity, draw):
    draws = draw(blobs(capacity))
    assert draws.shape == (NUM, 2)
    assert mean_is(moments(draws), known_moments())


def test_stratified_draws_have_the_right_moments():
    draws = blobs(4).sample_stratified(jax.random.key(6), NUM)
    assert draws.shape == (4, NUM, 2)
    means, errors = zip(*((m.mean(0), m.std(0) / np.sqrt(NUM)) for m in map(moments, draws[:2])), strict=True)
    weights = TWO_BLOBS.weights
    assert within(weights @ means, np.sqrt(weights**2 @ np.square(errors)), known_moments())


@both
def test_components_are_drawn_in_proportion_to_their_weights(draw):
    """Three narrow components far apart, one of weight zero: a draw shows where it came from."""
    weights = np.array([0.55, 0.0, 0.13, 0.32])
    locs = np.array([-30.0, 0.0, 30.0, 60.0])
    mixture = normals(locs, np.ones(4), weights)
    draws = np.asarray(draw(mixture))
    came_from = np.argmin(np.abs(draws - locs), axis=1)
    shares = came_from[:, None] == np.arange(4)
    assert shares[:, 1].sum() == 0
    assert mean_is(shares, weights)


def test_common_random_numbers():
    """A stratified draw depends on the key, its slot and the parameters there alone."""
    old, new = blobs(4), blobs(4).place(2, blobs().component(0), jnp.log(0.2))
    first, second = (m.sample_stratified(jax.random.key(1), 50) for m in (old, new))
    np.testing.assert_array_equal(first[:2], second[:2])
    np.testing.assert_array_equal(first[3], second[3])


@pytest.mark.parametrize("noise", [Normal(), Laplace()])
def test_draws_on_the_host_are_of_their_slots(noise):
    """More slots than are drawn at a time, narrow and far apart: by NumPy's noise, and by that of the family."""
    family, num = LocationScale(noise, Diagonal()), 19
    params = jax.vmap(family.init)(100.0 * jnp.arange(num)[:, None] * jnp.ones(2), jnp.ones((num, 2)))
    mixture = Mixture(family, params, jnp.where(jnp.arange(num) < 18, 0.0, -jnp.inf))
    draws = draw_each(jax.random.key(2), mixture, 100)
    assert draws.shape == (18, 100, 2)
    np.testing.assert_array_equal(np.round(draws[..., 0].mean(axis=1) / 100), np.arange(18))
    np.testing.assert_array_equal(draw_each(jax.random.key(2), mixture, 100, 3, begin=70), draws[:3, 70:])
    log_each = log_densities(family, params, draws[:, 0])
    assert log_each.shape == (18, 19)
    np.testing.assert_array_equal(np.argmax(log_each, axis=1), np.arange(18))
    np.testing.assert_array_equal(log_densities(family, params, draws[:, 0], 5), log_each[:, :5])


def test_chunks_are_vmap():
    xs = (jnp.arange(10.0), jnp.arange(20.0).reshape(10, 2))

    def function(x):
        return jnp.sum(x[1]) * x[0], x[0] + 1

    wholes = jax.vmap(function)(xs)
    for chunk in (3, 99):
        for part, whole in zip(map_chunks(function, xs, chunk), wholes, strict=True):
            np.testing.assert_array_equal(part, whole)

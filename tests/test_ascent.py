"""Ascents: refinement and proposals that must end at the truth, modes by L-BFGS, curvature made safe."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import FAMILIES, TWO_MODES, kl_to, mean_is, normals, stack_of_one, target_of, unit_spread
from relbo.ascent import GradientAscent, NaturalAscent, lbfgs_paths
from relbo.ascent.base import improved, masked_mean, masked_std_err, step_weights
from relbo.ascent.curvature import laplace_factor
from relbo.families import LocationScale
from relbo.mixture import empty_mixture
from relbo.objectives import ELBO, ESTIMATORS, FiniteStep, StickingTheLanding
from relbo.targets import from_log_density

FULL = LocationScale()
ASCENTS = {"natural": NaturalAscent(300, 16), "gradient": GradientAscent(1500, 16)}


@eqx.filter_jit
def refine(key, ascent, target, mixture):
    return ascent.refine(key, target, mixture, StickingTheLanding())


@eqx.filter_jit
def improve(key, ascent, target, mixture, objective, params):
    return ascent.improve(key, target, mixture, objective, StickingTheLanding(), params, jnp.asarray(1))


# The truth is reached


@pytest.mark.parametrize("name", ASCENTS)
def test_refinement_reaches_an_exact_mixture(name):
    """All components and weights together; at the end q = p, where sticking the landing has no noise left."""
    start = normals([-1.0, 0.7, 40.0], [0.9, 0.6, 3.0], [0.55, 0.45, 0.0])
    mixture, num_nan = refine(jax.random.key(0), ASCENTS[name], target_of("two_modes"), start)
    assert kl_to(TWO_MODES, start) > 0.1
    assert kl_to(TWO_MODES, mixture) < 1e-5
    np.testing.assert_allclose(np.exp(mixture.log_weights), [0.3, 0.7, 0.0], atol=2e-3)
    np.testing.assert_allclose(mixture.params.loc[:2, 0], [-2.0, 1.5], atol=5e-3)
    np.testing.assert_allclose(np.exp(mixture.params.scale[:2, 0, 0]), [0.5, 1.0], atol=5e-3)
    np.testing.assert_array_equal(mixture.params.loc[2], start.params.loc[2])
    assert num_nan == 0


@pytest.mark.parametrize("name", ASCENTS)
def test_the_finite_step_finds_what_is_missing(name):
    """q = N(1.5, 1) is one part of p = 0.3 N(-2, 0.5^2) + 0.7 q: with gamma = 0.3 the best proposal is the other."""
    objective = FiniteStep(step_size=thirty_percent)
    mixture = normals([1.5, 0.0], [1.0, 1.0], [1.0, 0.0])
    starts = jax.vmap(FULL.init)(jnp.array([[-0.5], [-4.0]]), jnp.array([[1.5], [0.3]]))
    found = improve(jax.random.key(1), ASCENTS[name], target_of("two_modes"), mixture, objective, starts)
    np.testing.assert_allclose(found.params.loc[:, 0], [-2.0, -2.0], atol=5e-3)
    np.testing.assert_allclose(np.exp(found.params.scale[:, 0, 0]), [0.5, 0.5], atol=5e-3)
    # There (1 - gamma) q + gamma s is p / Z: the objective is log Z, without noise.
    np.testing.assert_allclose(found.value, TWO_MODES.log_z, atol=2e-3)
    assert np.all(found.std_err < 1e-3)


def thirty_percent(iteration):
    return jnp.full((), 0.3)


def test_a_broken_region_does_not_stop_gradient_ascent():
    """Two draws in five meet the square root of a negative number: they are skipped, the others move the component."""
    target = from_log_density(square_root, np.zeros(1, np.float32))
    start = stack_of_one(FULL.init(jnp.array([2.5]), jnp.array([2.0])))
    nothing = empty_mixture(FULL, 1, 1, jnp.float32)
    ascent = GradientAscent(200, 16, learning_rate=0.1)
    found = improve(jax.random.key(0), ascent, target, nothing, ELBO(), start)
    assert found.num_nan > 0
    assert np.all(np.isfinite(found.params.loc)) and np.all(np.isfinite(found.params.scale))
    assert abs(found.params.loc[0, 0]) < 1.0, f"it started at 2.5 and stands at {found.params.loc[0, 0]}"


def square_root(z):
    return jnp.sqrt(3.0 - z[0]) - 2.0 * z[0] ** 2


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_ascent_takes_every_family(name):
    """Shapes and types of the loop fit; nothing is compiled."""
    family, target = FAMILIES[name], target_of("two_blobs")
    mixture = empty_mixture(family, 2, 3, jnp.float32)
    ascent, estimator = GradientAscent(2, 4), ESTIMATORS["reparameterized"]
    GradientAscent().check(family)

    def moved(key, mixture):
        found = ascent.improve(key, target, mixture, FiniteStep(), estimator, mixture.params, jnp.asarray(1))
        return found.params

    shapes = jax.eval_shape(moved, jax.random.key(0), mixture)
    assert jax.tree.structure(shapes) == jax.tree.structure(mixture.params)
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, mixture.params)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("ascent", [NaturalAscent(2, 4), GradientAscent(2, 4)], ids=["natural", "gradient"])
def test_single_precision_in_a_session_of_double(ascent, estimator):
    """Loops whose state would be promoted do not even trace."""
    with jax.enable_x64(True):
        target, mixture = TWO_MODES.target(), TWO_MODES.mixture(FULL)

        def moved(key, mixture):
            rule = ESTIMATORS[estimator]
            found = ascent.improve(key, target, mixture, FiniteStep(), rule, mixture.params, jnp.asarray(1))
            return found.params, ascent.refine(key, target, mixture, rule)[0]

        shapes = eqx.filter_eval_shape(moved, jax.random.key(0), mixture)
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}


def test_any_optimizer():
    ascent = GradientAscent(300, 8, optimizer=optax.sgd(0.1))
    start = stack_of_one(FULL.init(jnp.array([1.0]), jnp.array([1.5])))
    target = from_log_density(shifted_square, np.zeros(1, np.float32))
    found = improve(jax.random.key(0), ascent, target, empty_mixture(FULL, 1, 1, jnp.float32), ELBO(), start)
    np.testing.assert_allclose(found.params.loc, [[-0.5]], atol=1e-4)
    np.testing.assert_allclose(found.params.scale, [[[0.0]]], atol=1e-4)


def shifted_square(z):
    return -0.5 * jnp.sum((z + 0.5) ** 2)


# Parts

weights_after = jax.jit(step_weights)
averaged = jax.jit(lambda values, std_errs, num_nan: improved((), values, std_errs, num_nan))


def test_step_weights():
    mixture = normals([0.0, 1.0, 2.0, 3.0], np.ones(4), [0.2, 0.5, 0.3, 0.0])
    weights, values = np.array([0.2, 0.5, 0.3, 0.0]), np.array([1.0, 0.2, -0.4, 9.0])
    rate = jnp.asarray(0.3)
    expected = weights * np.exp(0.3 * values)
    moved = weights_after(mixture, jnp.asarray(values, jnp.float32), rate)
    np.testing.assert_allclose(np.exp(moved), expected / expected.sum(), rtol=1e-5)
    assert moved[3] == -np.inf
    shifted = weights_after(mixture, jnp.asarray(values + 50.0, jnp.float32), rate)
    np.testing.assert_allclose(shifted, moved, rtol=1e-4)
    broken = weights_after(mixture, jnp.array([1.0, jnp.nan, -0.4, jnp.nan]), rate)
    np.testing.assert_allclose(np.exp(broken).sum(), 1.0, rtol=1e-5)
    assert np.all(np.isfinite(broken[:3])) and broken[3] == -np.inf
    wild = weights_after(mixture, jnp.array([1e30, 0.0, -1e30, 0.0]), jnp.ones(()))
    assert np.all(np.isfinite(wild[:3])), "one bad estimate does not empty a slot"


def test_masked_statistics():
    draws = np.random.default_rng(0).gamma(2.0, size=(1000, 300))
    holes = np.where(np.random.default_rng(1).uniform(size=draws.shape) < 0.3, [np.nan], draws)
    holes[:, 0] = -np.inf
    both = jax.jit(jax.vmap(lambda values: (masked_mean(values), masked_std_err(values))))
    mean, error = both(jnp.asarray(holes, jnp.float32))
    assert mean_is(mean, 2.0)
    assert unit_spread(mean, error, 2.0)
    assert np.isnan(masked_mean(jnp.full(3, jnp.nan)))


def test_improved_averages_the_last_quarter():
    values = jnp.array(
        [[9.0, 9.0], [9.0, 9.0], [9.0, 9.0], [9.0, 9.0], [9.0, 9.0], [9.0, 9.0], [1.0, jnp.nan], [3.0, 5.0]]
    )
    std_errs = jnp.full((8, 2), 0.2)
    seen = averaged(values, std_errs, jnp.arange(2))
    np.testing.assert_allclose(seen.value, [2.0, 5.0])
    np.testing.assert_allclose(seen.std_err, [0.2 / np.sqrt(2), 0.2], rtol=1e-6)
    assert seen.num_nan == 1 and seen.best() == 1
    never = averaged(jnp.full((8, 2), jnp.nan).at[:, 1].set(-3.0), std_errs, jnp.arange(2))
    assert np.isnan(never.value[0]) and never.best() == 1


# Modes and curvature

PRECISION = np.array([[2.0, 0.3, 0.0], [0.3, 0.1, 0.05], [0.0, 0.05, 40.0]])
MODE = np.array([1.5, -4.0, 0.7])


def quadratic(z):
    off = z - jnp.asarray(MODE, z.dtype)
    return -0.5 * off @ jnp.asarray(PRECISION, z.dtype) @ off


def walled(z):
    """A quadratic, NaN where the first coordinate is beyond fifty."""
    return jnp.where(z[0] > 50.0, jnp.nan, quadratic(z))


@pytest.fixture(scope="session")
def paths():
    points = jnp.asarray([[0.0, 0.0, 0.0], [10.0, 10.0, -10.0], [60.0, 0.0, 0.0]], jnp.float32)
    return jax.jit(lambda z: {kept: lbfgs_paths(walled, z, 40, kept, 1024) for kept in (1, 4)})(points)


@pytest.mark.parametrize("num_kept", [1, 4])
def test_paths_end_at_the_mode(paths, num_kept):
    seen = paths[num_kept]
    assert seen.shape == (3, num_kept, 3)
    np.testing.assert_allclose(seen[:2, -1], np.tile(MODE, (2, 1)), rtol=1e-3, atol=1e-3)


def test_paths_rise_and_broken_ones_stay(paths):
    values = jax.vmap(jax.vmap(quadratic))(paths[4][:2])
    assert np.all(np.diff(values, axis=1) >= -1e-4)
    np.testing.assert_array_equal(paths[4][2], np.tile([60.0, 0.0, 0.0], (4, 1)))


factor_of = jax.jit(laplace_factor, static_argnums=(0, 2))


@pytest.mark.parametrize("twice", [True, False], ids=["hessian", "differences"])
def test_the_curvature_of_a_quadratic(twice):
    factor = np.asarray(factor_of(quadratic, jnp.asarray(MODE, jnp.float32), twice))
    np.testing.assert_array_equal(np.triu(factor, 1), 0.0)
    assert np.all(np.diag(factor) > 0)
    np.testing.assert_allclose(factor @ factor.T @ PRECISION, np.eye(3), atol=5e-3)


def wavy(z):
    return jnp.sin(z[0]) * jnp.cos(2 * z[1]) - 0.3 * z[0] ** 2 + 0.2 * jnp.exp(0.3 * z[2]) * z[1]


def test_differences_agree_with_the_hessian():
    point = jnp.array([0.4, -0.8, 1.1])
    exact, close = (np.asarray(factor_of(wavy, point, twice)) for twice in (True, False))
    np.testing.assert_allclose(close, exact, rtol=0.02, atol=0.02)


@jax.jit
def bowl_factor(curvature):
    return laplace_factor(lambda z: z[0] - 0.5 * z @ (curvature * z), jnp.zeros(2), True)


def test_a_saddle_has_the_scale_of_its_absolute_curvature():
    factor = np.asarray(bowl_factor(jnp.array([4.0, -1.0])))
    np.testing.assert_allclose(factor @ factor.T, np.diag([0.25, 1.0]), rtol=1e-5)


@pytest.mark.parametrize("curvature", [(4.0, 0.0), (0.0, 0.0)], ids=["in one direction", "everywhere"])
def test_flat_curvature_gives_a_usable_scale(curvature):
    factor = np.asarray(bowl_factor(jnp.array(curvature)))
    assert np.all(np.isfinite(factor)) and np.all(np.diag(factor) > 0)

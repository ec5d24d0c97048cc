"""Ascents: refinement and proposals that must end at the truth, modes by L-BFGS, curvature made safe."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers import FAMILIES, TWO_MODES, door_of, kl_to, mean_is, normals, stack_of_one, target_of, unit_spread
from relbo.ascent import Aim, GradientAscent, Improved, NaturalAscent, gradient, lbfgs_paths
from relbo.ascent.base import Drawn, empty_tally, masked_mean, masked_std_err, step_weights
from relbo.ascent.curvature import laplace_factors
from relbo.families import LocationScale
from relbo.mixture import empty_mixture
from relbo.model.door import Seen
from relbo.objectives import ELBO, ESTIMATORS, FiniteStep, StickingTheLanding
from relbo.targets import from_log_density

FULL = LocationScale()
ASCENTS = {"natural": NaturalAscent(300, 16), "gradient": GradientAscent(1500, 16)}
ROUNDS = {"natural": 12, "gradient": 1}
"""Natural ascents end when a window of steps gains no more than its noise, and that falls from round to round."""


def improve(key, ascent, target, mixture, objective, params, door=None):
    door = door or door_of(target)
    return ascent.improve(key, door, Aim(mixture, objective, StickingTheLanding(), 1), params)


# The truth is reached


@pytest.mark.parametrize("name", ASCENTS)
def test_refinement_reaches_an_exact_mixture(name):
    """All components and weights together, in rounds; at the end q = p, where the estimates have no noise left."""
    start = normals([-1.0, 0.7, 40.0], [0.9, 0.6, 3.0], [0.55, 0.45, 0.0])
    door, mixture, num_nan = door_of(target_of("two_modes")), start, 0
    for round_key in jax.random.split(jax.random.key(0), ROUNDS[name]):
        mixture, more = ASCENTS[name].refine(round_key, door, mixture, StickingTheLanding())
        num_nan += more
    assert kl_to(TWO_MODES, start) > 0.1
    assert kl_to(TWO_MODES, mixture) < 1e-5
    np.testing.assert_allclose(np.exp(mixture.log_weights), [0.3, 0.7, 0.0], atol=2e-3)
    np.testing.assert_allclose(mixture.params.loc[:2, 0], [-2.0, 1.5], atol=5e-3)
    np.testing.assert_allclose(np.exp(mixture.params.scale[:2, 0, 0]), [0.5, 1.0], atol=5e-3)
    np.testing.assert_array_equal(mixture.params.loc[2], start.params.loc[2])
    assert num_nan == 0
    assert set(door.spent) == {"refinement"} and door.num_evaluations % (2 * 16) == 0, "two slots of three"


@pytest.mark.parametrize("name", ASCENTS)
def test_the_finite_step_finds_what_is_missing(name):
    """q = N(1.5, 1) is one part of p = 0.3 N(-2, 0.5^2) + 0.7 q: with gamma = 0.3 the best proposal is the other."""
    objective = FiniteStep(step_size=thirty_percent)
    mixture = normals([1.5, 0.0], [1.0, 1.0], [1.0, 0.0])
    starts = jax.vmap(FULL.init)(jnp.array([[-0.5], [-4.0]]), jnp.array([[1.5], [0.3]]))
    found, door = None, door_of(target_of("two_modes"))
    for round_key in jax.random.split(jax.random.key(1), ROUNDS[name]):
        params = starts if found is None else found.params
        found = improve(round_key, ASCENTS[name], None, mixture, objective, params, door)
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
    """Shapes and types of a step fit; nothing is compiled."""
    family = FAMILIES[name]
    mixture = empty_mixture(family, 2, 3, jnp.float32)
    ascent, estimator = GradientAscent(2, 4), ESTIMATORS["reparameterized"]
    ascent.check(family)
    assert_kept(mixture.params, jax.eval_shape(partial(one_step, ascent, estimator), jax.random.key(0), mixture))


def one_step(ascent, estimator, key, mixture):
    """Parameters after a step alone and after one of a refinement, whatever the target's values are."""
    points = gradient._draw.__wrapped__(ascent, mixture.family, key, mixture.params, np.int32(0))
    drawn = Drawn(key, Seen(jnp.zeros(len(points), points.dtype), jnp.zeros_like(points)), points)
    begun = [gradient._begin.__wrapped__(ascent, mixture.params, w) for w in (None, mixture.log_weights)]
    aim, when = (mixture, FiniteStep(), estimator), (np.int32(0), np.asarray(True), np.int32(1))
    alone = gradient._improve_step.__wrapped__(ascent, aim, drawn, begun[0], when)
    together = gradient._refine_step.__wrapped__(ascent, mixture.family, estimator, drawn, begun[1], np.int32(0))
    return alone[0].params, together[0].params, together[0].log_weights


def assert_kept(params, found):
    """The shapes and dtypes of a step's parameters are those it began with."""
    for moved in found[:2]:
        assert jax.tree.structure(moved) == jax.tree.structure(params)
        pairs = zip(jax.tree.leaves(moved), jax.tree.leaves(params), strict=True)
        assert all(one.shape == other.shape and one.dtype == other.dtype for one, other in pairs)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("ascent", [NaturalAscent(2, 4), GradientAscent(2, 4)], ids=["natural", "gradient"])
def test_single_precision_in_a_session_of_double(ascent, estimator):
    """What would be promoted would meet another program at every step."""
    with jax.enable_x64(True):
        door, mixture = door_of(TWO_MODES.target()), TWO_MODES.mixture(FULL)
        rule = ESTIMATORS[estimator]
        found = ascent.improve(jax.random.key(0), door, Aim(mixture, FiniteStep(), rule, 1), mixture.params)
        refined, _ = ascent.refine(jax.random.key(0), door, mixture, rule)
        assert {leaf.dtype for leaf in jax.tree.leaves((found.params, refined))} == {jnp.dtype(jnp.float32)}


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


def test_a_tally_averages_the_last_steps():
    tally = empty_tally(2, np.float32)
    steps = [(9.0, 9.0, True), (7.0, 9.0, False), (1.0, np.nan, True), (3.0, 5.0, False)]
    for first, second, fresh in steps:
        tally = tally.add(jnp.array([first, second]), jnp.full(2, 0.2), jnp.asarray(1), np.asarray(fresh))
    value, std_err = tally.means()
    np.testing.assert_allclose(value, [2.0, 5.0])
    np.testing.assert_allclose(std_err, [0.2 / np.sqrt(2), 0.2], rtol=1e-6)
    assert tally.num_nan == 4, "NaN are counted from the beginning"
    never = empty_tally(2, np.float32).add(jnp.array([jnp.nan, -3.0]), jnp.zeros(2), jnp.asarray(0), np.asarray(True))
    value, std_err = never.means()
    assert np.isnan(value[0]) and value[1] == -3.0
    ranked = Improved((), np.array([np.nan, -3.0, 2.0, -np.inf]), np.zeros(4), 1, 0).order()
    np.testing.assert_array_equal(ranked, [2, 1])


# Modes and curvature

PRECISION = np.array([[2.0, 0.3, 0.0], [0.3, 0.1, 0.05], [0.0, 0.05, 40.0]])
MODE = np.array([1.5, -4.0, 0.7])


def quadratic(z):
    off = z - jnp.asarray(MODE, z.dtype)
    return -0.5 * off @ jnp.asarray(PRECISION, z.dtype) @ off


def walled(z):
    """A quadratic, NaN where the first coordinate is beyond fifty."""
    return jnp.where(z[0] > 50.0, jnp.nan, quadratic(z))


def evaluated(function):
    """As a door would: values and gradients at many points, of which the first count."""
    program = jax.jit(lambda points: Seen(*jax.vmap(jax.value_and_grad(function))(points)))
    return lambda points, num_used: program(points)


@pytest.fixture(scope="session")
def paths():
    points = np.asarray([[0.0, 0.0, 0.0], [10.0, 10.0, -10.0], [60.0, 0.0, 0.0]], np.float32)
    return {kept: lbfgs_paths(evaluated(walled), points, 60, kept) for kept in (1, 4)}


@pytest.mark.parametrize("num_kept", [1, 4])
def test_paths_end_at_the_mode(paths, num_kept):
    seen = paths[num_kept]
    assert seen.shape == (3, num_kept, 3)
    np.testing.assert_allclose(seen[:2, -1], np.tile(MODE, (2, 1)), rtol=1e-2, atol=1e-2)


def test_paths_rise_and_broken_ones_stay(paths):
    values = jax.vmap(jax.vmap(quadratic))(paths[4][:2])
    assert np.all(np.diff(values, axis=1) >= -1e-4)
    np.testing.assert_array_equal(paths[4][2], np.tile([60.0, 0.0, 0.0], (4, 1)))


def test_a_walk_turns_back_from_a_wall():
    """The mode lies next to where the function breaks: trials beyond it are cut, and the walk arrives."""

    def walled_close(z):
        return jnp.where(z[0] > 1.6, jnp.nan, quadratic(z))

    end = lbfgs_paths(evaluated(walled_close), np.zeros((1, 3), np.float32), 80, 1)[0, -1]
    np.testing.assert_allclose(quadratic(jnp.asarray(end)), 0.0, atol=1e-3)


def test_walks_that_have_ended_ask_no_more():
    """From the mode itself a walk has nothing to gain; of the steps allowed few are taken."""
    asked = []

    climb = evaluated(quadratic)

    def evaluate(points, num_used):
        assert num_used == 2
        asked.append(points)
        return climb(points, num_used)

    points = np.tile(MODE.astype(np.float32), (2, 1))
    end = lbfgs_paths(evaluate, points, 100, 1)[:, -1]
    np.testing.assert_allclose(end, points, atol=1e-4)
    assert len(asked) < 30


def test_a_walk_is_not_disturbed_by_its_neighbours():
    lone = lbfgs_paths(evaluated(walled), np.zeros((1, 3), np.float32), 60, 1)[0]
    points = np.asarray([[0.0, 0.0, 0.0], [60.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(lbfgs_paths(evaluated(walled), points, 60, 1)[0], lone, rtol=1e-3, atol=1e-3)


def test_walks_find_the_bottom_of_a_curved_valley():
    """Rosenbrock's function, whose minimum at (1, 1) lies at the end of a bent valley."""

    def valley(z):
        return -((1 - z[0]) ** 2) - 100 * (z[1] - z[0] ** 2) ** 2

    end = lbfgs_paths(evaluated(valley), np.asarray([[-1.2, 1.0]], np.float32), 200, 1)[0, -1]
    assert valley(end) > -5e-3


def factors_of(function, points):
    """In double precision, as `laplace_factors` wants gradients."""
    with jax.enable_x64(True):
        slopes = jax.jit(jax.vmap(jax.grad(function)))
        return laplace_factors(lambda at: np.asarray(slopes(jnp.asarray(at)), np.float64), np.asarray(points, float))


def test_the_curvature_of_a_quadratic():
    (factor,) = factors_of(quadratic, [MODE])
    np.testing.assert_array_equal(np.triu(factor, 1), 0.0)
    assert np.all(np.diag(factor) > 0)
    np.testing.assert_allclose(factor @ factor.T @ PRECISION, np.eye(3), atol=1e-6)


def test_curvature_from_single_precision():
    """Differences are taken far enough apart to be more than rounding."""
    slopes = jax.jit(jax.vmap(jax.grad(quadratic)))
    (factor,) = laplace_factors(lambda at: np.asarray(slopes(at.astype(np.float32)), np.float64), MODE[None])
    np.testing.assert_allclose(factor @ factor.T @ PRECISION, np.eye(3), atol=5e-3)


def wavy(z):
    return jnp.sin(z[0]) * jnp.cos(2 * z[1]) - 0.3 * z[0] ** 2 + 0.2 * jnp.exp(0.3 * z[2]) * z[1]


def test_differences_agree_with_the_hessian():
    points = np.array([[0.4, -0.8, 1.1], [-0.3, 0.2, 0.5]])
    found = factors_of(wavy, points)
    for point, factor in zip(points, found, strict=True):
        with jax.enable_x64(True):
            values, vectors = np.linalg.eigh(-np.asarray(jax.hessian(wavy)(jnp.asarray(point))))
        exact = (vectors / np.abs(values)) @ vectors.T
        np.testing.assert_allclose(factor @ factor.T, exact, rtol=0.05, atol=0.05 * np.abs(exact).max())


def bowl_factor(curvature):
    return factors_of(lambda z: z[0] - 0.5 * z @ (jnp.asarray(curvature) * z), [np.zeros(2)])[0]


def test_a_saddle_has_the_scale_of_its_absolute_curvature():
    factor = bowl_factor([4.0, -1.0])
    np.testing.assert_allclose(factor @ factor.T, np.diag([0.25, 1.0]), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("curvature", [(4.0, 0.0), (0.0, 0.0)], ids=["in one direction", "everywhere"])
def test_flat_curvature_gives_a_usable_scale(curvature):
    factor = bowl_factor(curvature)
    assert np.all(np.isfinite(factor)) and np.all(np.diag(factor) > 0)


def test_a_point_where_the_curvature_is_broken_says_so_and_leaves_the_others_alone():
    def rooted(z):
        return quadratic(z) + 0 * jnp.sqrt(50.0 - z[0])  # whose gradient is NaN from fifty on

    broken, fine = factors_of(rooted, [[50.0, 0.0, 0.0], MODE])
    assert np.all(np.isnan(broken))
    np.testing.assert_allclose(fine @ fine.T @ PRECISION, np.eye(3), atol=1e-6)

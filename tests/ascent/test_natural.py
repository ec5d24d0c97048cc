"""Natural gradients: exact steps on quadratics, positive definite always, invariant to affine maps, never NaN."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import CORRELATED, FAMILIES, door_of, mean_is, stack_of_one, target_of, within
from relbo.ascent import Aim, NaturalAscent
from relbo.ascent.base import WINDOW
from relbo.ascent.natural import Climb
from relbo.families import Box, Cholesky, Diagonal, Laplace, LocationScale, LowRank
from relbo.families.natural import DiagonalGeometry, FullGeometry
from relbo.families.triangular import to_tril
from relbo.mixture import empty_mixture
from relbo.objectives import ELBO, StickingTheLanding
from relbo.targets import from_log_density

FULL, DIAGONAL = LocationScale(), LocationScale(scale=Diagonal())
LOC = np.array([0.5, -1.0, 2.0])
FACTOR = np.array([[1.5, 0.0, 0.0], [-0.4, 0.3, 0.0], [2.0, 0.1, 0.7]])


@eqx.filter_jit
def step(family, params, slope, curvature, step_size):
    return family.natural_step(params, slope, curvature, step_size)


def ascend(key, target, family, ascent, params):
    """All steps, and those of the last window again; from and to the target's own coordinates, shifted to its start."""
    climb = Climb(ascent, key, door_of(target), family.scale, params, family.box)
    nothing = empty_mixture(family, target.dim, 1, target.dtype)
    for num_steps in (ascent.num_steps - WINDOW, WINDOW):
        climb.go(Aim(nothing, ELBO(), StickingTheLanding()), num_steps)
    return climb.found()


# One step


def test_a_full_step_lands_on_the_mean_of_a_quadratic():
    """log p - log s has the constant gradient S (m* - m) when the covariances agree: step size 1 ends at m*."""
    params = FULL.init(jnp.asarray(LOC, jnp.float32), jnp.asarray(FACTOR, jnp.float32))
    best = LOC + FACTOR @ np.array([0.3, -0.9, 0.6])
    slope = np.linalg.solve(FACTOR, best - LOC)
    moved = step(FULL, params, jnp.asarray(slope, jnp.float32), jnp.zeros((3, 3)), jnp.ones(()))
    np.testing.assert_allclose(moved.loc, best, rtol=1e-5)
    np.testing.assert_allclose(to_tril(moved.scale), FACTOR, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", [FULL, DIAGONAL], ids=["full", "diagonal"])
def test_statistics_of_a_quadratic(family):
    """E[h] = L^T b and G = L^T (A - S) L for R with gradient b - (A - S)(z - m): slope and curvature in expectation."""
    generator = np.random.default_rng(0)
    factor = FACTOR if isinstance(family.scale, Cholesky) else np.diag(np.diag(FACTOR))
    root = generator.normal(size=(3, 3))
    bend, pull = factor.T @ (root @ root.T) @ factor - np.eye(3), generator.normal(size=3)
    noise = generator.normal(size=(4000, 8, 3))
    slopes = pull - noise @ bend
    geometry = family.geometry
    estimate = jax.jit(
        jax.vmap(lambda e, h: StickingTheLanding().natural(geometry, e, jnp.zeros(8), h, jnp.ones(()))),
    )
    slope, curvature = estimate(jnp.asarray(noise, jnp.float32), jnp.asarray(slopes, jnp.float32))
    assert mean_is(slope, pull)
    assert mean_is(curvature, bend if isinstance(family.scale, Cholesky) else np.diag(bend))


def test_a_step_in_covariance_is_the_formula():
    """S <- S + rho G + rho^2/2 G S^-1 G, in the coordinates of the precision S itself."""
    with jax.enable_x64(True):
        params = FULL.init(jnp.asarray(LOC), jnp.asarray(FACTOR))
        root = np.random.default_rng(1).normal(size=(3, 3))
        curvature = 0.2 * (root + root.T)
        moved = step(FULL, params, jnp.zeros(3), jnp.asarray(curvature), jnp.asarray(0.7))
        lower = np.asarray(to_tril(moved.scale))
    inverse = np.linalg.inv(FACTOR)
    precision, bend = inverse.T @ inverse, 0.7 * inverse.T @ curvature @ inverse
    expected = precision + bend + 0.5 * bend @ np.linalg.inv(precision) @ bend
    np.testing.assert_allclose(np.linalg.inv(lower @ lower.T), expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("family", [FULL, DIAGONAL], ids=["full", "diagonal"])
def test_the_scale_stays_a_scale(family, size):
    """For random, huge, indefinite and singular statistics: lower triangular, positive diagonal, finite."""
    generator = np.random.default_rng(2)
    dim, num = 4, 200
    roots = generator.normal(size=(num, dim, dim)) * size
    curvatures = np.concatenate([roots + roots.transpose(0, 2, 1), -size * np.eye(dim)[None], np.zeros((1, dim, dim))])
    curvatures[0] = size * np.outer(roots[0, 0], roots[0, 0]) / size**2
    if family is DIAGONAL:
        curvatures = np.diagonal(curvatures, axis1=1, axis2=2)
    slopes = generator.normal(size=(len(curvatures), dim)) * size
    params = family.init(jnp.zeros(dim), jnp.asarray(np.tril(np.ones((dim, dim))) * 3.0, jnp.float32))

    moved, inward = steps_of(family, params, jnp.asarray(slopes, jnp.float32), jnp.asarray(curvatures, jnp.float32))
    assert np.all(np.isfinite(moved.loc)) and np.all(np.isfinite(moved.scale))
    assert np.all(np.linalg.norm(inward, axis=1) <= np.sqrt(dim) * (1 + 1e-5))
    if family is FULL:
        np.testing.assert_array_equal(np.triu(moved.scale, 1), 0.0)
        diagonals = np.diagonal(moved.scale, axis1=1, axis2=2)  # logarithms: the diagonal itself is positive
        assert np.all(np.exp(diagonals) > 0)


@eqx.filter_jit
def steps_of(family, params, slopes, curvatures):
    """Steps of size one, and the way the mean went in the component's own metric, which is at most sqrt(dim) long."""
    moved = jax.vmap(lambda g, c: family.natural_step(params, g, c, jnp.ones(())))(slopes, curvatures)
    return moved, jax.vmap(lambda z: family.scale.solve(params.scale, z - params.loc))(moved.loc)


def test_an_ascent_ends_in_the_box():
    """Whose bounds are arrays: another box meets the same program."""
    target = from_log_density(far_and_wide, np.zeros(2, np.float32))
    for box in (Box(loc=1.0, log_scale=0.1), Box(loc=3.0, log_scale=0.7)):
        family = LocationScale(box=box)
        start = stack_of_one(family.init(jnp.array([0.9, 0.0]), jnp.ones(2)))
        found = ascend(jax.random.key(0), target, family, NaturalAscent(30, 8), start)
        np.testing.assert_allclose(found.params.loc[0], [box.loc, -box.loc], rtol=1e-6)
        np.testing.assert_allclose(np.diagonal(found.params.scale[0]), box.log_scale, rtol=1e-6)


def far_and_wide(z):
    return -0.5 * jnp.sum((z - jnp.array([50.0, -50.0])) ** 2) / 10.0**2


def test_only_normal_families_have_a_geometry():
    assert isinstance(FULL.geometry, FullGeometry)
    assert isinstance(DIAGONAL.geometry, DiagonalGeometry)
    for family in (LocationScale(Laplace()), LocationScale(scale=LowRank()), FAMILIES["numpyro multivariate"]):
        assert family.geometry is None
    with pytest.raises(ValueError, match=r"need normal components.*oracle=\"gradient\""):
        NaturalAscent().check(LocationScale(Laplace()))


# An ascent


def skewed(z, matrix, shift):
    """Not a quadratic: a mixture of two normals with a cubic bend, in coordinates u = matrix^-1 (z - shift)."""
    u = jax.scipy.linalg.solve_triangular(matrix, z - shift, lower=True)
    blob = jnp.logaddexp(-0.5 * jnp.sum((u - 1.0) ** 2), -0.4 - 2.0 * jnp.sum((u + 1.0) ** 2))
    return blob - 0.02 * jnp.sum(u**4) - jnp.sum(jnp.log(jnp.diagonal(matrix)))


def test_invariant_to_affine_maps():
    """The same key on a target and on its image ends in images of each other."""
    matrix, shift = np.array([[40.0, 0.0], [-3.0, 0.02]]), np.array([500.0, -7.0])
    start_loc, start_factor = np.array([0.3, -0.2]), np.array([[1.4, 0.0], [0.5, 0.6]])
    ends = []
    with jax.enable_x64(True):
        for a, b in ((np.eye(2), np.zeros(2)), (matrix, shift)):
            target = from_log_density(skewed, np.array(b), args=(a, b))
            start = FULL.init(jnp.asarray(a @ start_loc), jnp.asarray(a @ start_factor))  # the door is shifted to b
            found = ascend(jax.random.key(0), target, FULL, NaturalAscent(40, 16), stack_of_one(start))
            ends.append([np.asarray(x) for x in (found.params.loc[0], to_tril(found.params.scale[0]), found.value[0])])
    (loc, factor, value), (image_loc, image_factor, image_value) = ends
    np.testing.assert_allclose(image_loc, matrix @ loc, rtol=1e-8)
    np.testing.assert_allclose(image_factor, matrix @ factor, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(image_value, value, rtol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reaches_a_normal_exactly(dtype):
    """Sticking the landing has no noise at the optimum: the ascent ends there to the precision of the arithmetic."""
    with jax.enable_x64(dtype == np.float64):
        start = FULL.init(jnp.asarray([6.0, 6.0], dtype), jnp.asarray([0.1, 4.0], dtype))
        target = CORRELATED.target(dtype=dtype)
        found = ascend(jax.random.key(1), target, FULL, NaturalAscent(400, 16), stack_of_one(start))
        error = np.abs(found.params.loc[0] - CORRELATED.mean)
        factor_error = np.abs(to_tril(found.params.scale[0]) - CORRELATED.factors[0])
    assert max(error.max(), factor_error.max()) < 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(found.value[0], CORRELATED.log_z, rtol=1e-5)
    assert int(found.num_nan) == 0


def test_mean_field_finds_the_best_diagonal_normal():
    """It has the target's mean, and the reciprocals of the precision's diagonal as variances. Sixty-four runs."""
    start = DIAGONAL.init(jnp.array([6.0, 6.0]), jnp.array([0.1, 4.0]))
    starts = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], 64, axis=0), start)
    found = ascend(jax.random.key(1), target_of("correlated"), DIAGONAL, NaturalAscent(1000, 16), starts)
    # Antithetic draws of a quadratic have no noise in the mean. The log scales keep some, because q is not p, and with
    # it a bias of second order: at rest the mean of exp(2 delta) is 1, so that of delta is minus its variance.
    np.testing.assert_allclose(found.params.loc, np.tile(CORRELATED.mean, (64, 1)), rtol=1e-4)
    precision = np.linalg.inv(CORRELATED.covariance)
    delta = np.asarray(found.params.scale, float) + 0.5 * np.log(np.diag(precision))
    assert mean_is(delta, 0.0, rounding=2 * delta.var(0))


# Broken regions


def broken(z, kind):
    """A standard normal around (2, 2) that breaks beyond three, in one of four ways."""
    bowl = -0.5 * jnp.sum((z - 2.0) ** 2)
    ways = (
        lambda: jnp.where(z[0] > 3.0, jnp.nan, bowl),
        lambda: jnp.sqrt(3.0 - z[0]) + bowl,  # a NaN gradient as well, and an infinite slope at three
        lambda: bowl - jnp.exp(z[0] ** 2),
        lambda: jnp.where(z[0] > 3.0, jnp.inf, bowl),
    )
    return jax.lax.switch(kind, ways)


@pytest.mark.parametrize("kind", range(4), ids=["nan", "square root", "overflow", "infinite"])
def test_broken_regions_do_not_break_the_parameters(kind):
    """Starts: inside, at the border, and where everything is broken (that one can only stay)."""
    target = from_log_density(broken, np.zeros(2, np.float32), args=(np.int32(kind),))
    locs = jnp.array([[0.0, 0.0], [2.5, 1.0], [60.0, 0.0]])
    params = jax.vmap(FULL.init)(locs, jnp.full((3, 2), 2.0))
    num_steps, num_draws = 60, 32
    found = ascend(jax.random.key(0), target, FULL, NaturalAscent(num_steps, num_draws), params)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(found.params))
    assert np.all(np.isfinite(found.value[:2]))
    assert 2 not in found.order()
    assert np.all(np.isfinite(jax.vmap(target.log_density)(found.params.loc[:2]))), "it ends where the density is"
    np.testing.assert_array_equal(found.params.loc[2], locs[2])
    assert not np.isfinite(found.value[2]), "no value was ever seen there"
    if kind != 2:  # an overflow downwards is zero density
        assert found.num_nan >= num_steps * num_draws, "NaN and +inf are counted"


def test_an_ascent_ends_when_it_gains_no_more():
    """Its objective is then the best to within its noise; fewer evaluations than all steps would have taken."""
    door, ascent = door_of(target_of("correlated")), NaturalAscent(400, 16)
    start = stack_of_one(FULL.init(jnp.array([3.0, -4.0]), jnp.array([0.5, 2.0])))
    nothing = empty_mixture(FULL, 2, 1, np.float32)
    found = ascent.improve(jax.random.key(1), door, Aim(nothing, ELBO(), StickingTheLanding()), start)
    assert door.spent["proposals"] == door.num_evaluations < 400 * 16 / 2
    assert within(found.value[0], found.std_err[0], CORRELATED.log_z, rounding=1e-2)
    assert found.num_draws == WINDOW * 16


def test_who_falls_out_of_a_climb_costs_no_evaluation():
    door = door_of(target_of("correlated"))
    params = jax.vmap(FULL.init)(jnp.array([[0.0, 0.0], [2.0, 0.0], [9.0, 9.0]]), jnp.ones((3, 2)))
    climb = Climb(NaturalAscent(40, 8), jax.random.key(0), door, FULL.scale, params, FULL.box)
    aim = Aim(empty_mixture(FULL, 2, 1, np.float32), ELBO(), StickingTheLanding())
    climb.go(aim, 10, "race")
    climb.keep(2, np.array([1, 0, 2]))
    climb.go(aim, 10, "race")
    assert door.spent == {"race": 10 * 3 * 8 + 10 * 2 * 8}
    found = climb.found()
    assert np.all(np.isfinite(found.value[:2])) and np.isnan(found.value[2])
    assert set(found.order()) == {0, 1}


def test_annealing_goes_on_with_smaller_steps():
    """Of as many draws: what a step is compiled for."""
    ascent = NaturalAscent(40, 16)
    again = ascent.annealed(2)
    assert float(again.step_size) < float(ascent.annealed(1).step_size) < float(ascent.step_size)
    assert again.num_draws == ascent.num_draws and again.step_size.dtype == ascent.step_size.dtype

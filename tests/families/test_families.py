"""One contract, which every family passes: density, draws, gradients, bounded set, moves, both precisions."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from helpers import FALSE_ALARM, FAMILIES, NOISES, SCALES, mean_and_error, mean_is, within
from relbo.families import (
    DENSE_LIMIT,
    Box,
    Cholesky,
    Diagonal,
    FlowFamily,
    LocationScale,
    LocationScaleParams,
    LowRank,
    Normal,
    StudentT,
    TruncatedNormal,
    TruncatedNormalParams,
    family_names,
    from_numpyro,
    resolve_family,
)
from relbo.families.scale import LowRankParams

LOC = np.array([0.7, -1.2])
FACTOR = np.array([[0.8, 0.0], [0.5, 1.3]])
DIM, NUM_OWN, NUM_WIDE = 2, 20_000, 100_000
TILT = 0.4

every_family = pytest.mark.parametrize("name", FAMILIES)
every_affine_family = pytest.mark.parametrize("name", [name for name in FAMILIES if name != "truncated normal"])


def has_inner(family) -> bool:
    return getattr(family, "has_inner", False)


every_family_with_inner = pytest.mark.parametrize("name", [name for name in FAMILIES if has_inner(FAMILIES[name])])


def member(family, dtype=np.float32):
    """A member that is nothing special: what `init` gives, every parameter but the location then moved."""
    params = family.init(jnp.asarray(LOC, dtype), jnp.asarray(FACTOR, dtype))
    moved = jax.tree.map(lambda leaf: leaf + jnp.asarray(TILT * wave(leaf), dtype), params)
    return family.move(family.project(moved), jnp.asarray(LOC, dtype), jnp.zeros((), dtype))


def wave(leaf):
    """An array of the same shape, without any symmetry."""
    return np.cos(np.arange(leaf.size)).reshape(leaf.shape)


@functools.cache
def wide_law():
    """Draws of an elliptical t with two degrees of freedom, wider and heavier than all families; its log density."""
    law = stats.multivariate_t(LOC, 6.0 * np.eye(DIM), df=2)
    draws = law.rvs(NUM_WIDE, random_state=np.random.default_rng(1))
    return jnp.asarray(draws, jnp.float32), law.logpdf(draws)


def bounded(point):
    """Test functions without any symmetry; their means exist under every law."""
    return jnp.stack([jnp.sin(point[0] - 0.3), jnp.cos(point[0] + 2 * point[1]), jnp.tanh(point[1] + 1.0)])


def ravel(tree):
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])


@functools.cache
def measured(name):
    """Everything the contract looks at, in one compiled program per family."""
    family = FAMILIES[name]

    @jax.jit
    def measure(key, params, wide):
        # One direction in the space of parameters, and those that move one coordinate of the location alone.
        direction = jax.tree.map(lambda leaf: jnp.asarray(wave(leaf), leaf.dtype), params)
        shift = jax.jacfwd(lambda loc: family.move(params, loc, jnp.zeros(())))(family.location(params))
        tangents = jax.tree.map(lambda d, s: jnp.concatenate([d[None], jnp.moveaxis(s, -1, 0)]), direction, shift)
        draws, moves = jax.vmap(
            lambda tangent: jax.jvp(lambda p: family.sample(key, p, NUM_OWN), (params,), (tangent,)), out_axes=(None, 0)
        )(tangents)
        log_prob, scores = jax.vmap(jax.value_and_grad(family.log_prob), (None, 0))(params, draws)
        values, path = jax.vmap(lambda z, dz: jax.jvp(bounded, (z,), (dz,)))(draws, moves[0])
        scores = jax.vmap(ravel)(scores)
        return {
            "draws": draws,
            "log_prob": log_prob,
            "wide_log_prob": jax.vmap(family.log_prob, (None, 0))(params, wide),
            "wide_values": jax.vmap(bounded)(wide),
            "scores": scores,
            "values": values,
            "path": path,
            "score_gradient": values * (scores @ ravel(direction))[:, None],
            "jacobian": moves[1:, :3],
            "projected": jax.vmap(lambda far: at_the_edge(family, params, far))(jnp.array([0.0, 1e6, -1e6])),
            "move_error": jax.vmap(lambda z: move_error(family, params, z))(draws[:3]),
            "inner": inner_with_others(family, params, draws) if has_inner(family) else (),
        }

    seen = measure(jax.random.key(3), member(family), wide_law()[0])
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), seen)


def at_the_edge(family, params, far):
    """Parameters far outside the box: projected once, twice, and the log density at the centre."""
    outside = jax.tree.map(lambda leaf: leaf + far, params)
    once = family.project(outside)
    loc = family.location(once)
    return ravel(outside), ravel(once), ravel(family.project(once)), loc, family.log_prob(once, loc)


def move_error(family, params, point):
    """log s'(z') - log s(z) + d log c, which is zero for z' = m' + c (z - m); and by how much m' was missed."""
    loc, log_factor = jnp.array([-2.0, 3.5]), 0.6
    moved = family.move(params, loc, jnp.asarray(log_factor))
    image = loc + jnp.exp(log_factor) * (point - family.location(params))
    density = family.log_prob(moved, image) - family.log_prob(params, point) + DIM * log_factor
    return jnp.append(family.location(moved) - loc, density)


def inner_with_others(family, params, draws):
    """log <s, s'> for s' = s and another, both ways round; and the density of both at draws of s, whose mean it is."""
    other = family.move(params, jnp.array([-0.3, 1.1]), jnp.asarray(-0.4))
    both = jnp.stack([family.log_inner(params, params), family.log_inner(params, other)])
    densities = jax.vmap(lambda z: jnp.exp(jnp.stack([family.log_prob(params, z), family.log_prob(other, z)])))(draws)
    return both, family.log_inner(other, params), densities


@every_family
def test_density_integrates_to_one(name):
    ratios = np.exp(measured(name)["wide_log_prob"] - wide_law()[1])
    assert mean_is(ratios, 1.0)


@every_family
def test_draws_follow_the_density(name):
    seen = measured(name)
    ratios = np.exp(seen["wide_log_prob"] - wide_law()[1])
    # The negative entropy and three bounded functions: by own draws, and by integration of the density.
    own = np.column_stack([seen["log_prob"], seen["values"]])
    log_prob = np.where(ratios > 0, seen["wide_log_prob"], 0.0)  # x log x is zero where the density underflows
    wide = ratios[:, None] * np.column_stack([log_prob, seen["wide_values"]])
    (own_mean, own_err), (wide_mean, wide_err) = mean_and_error(own), mean_and_error(wide)
    assert within(own_mean, np.hypot(own_err, wide_err), wide_mean)


@every_family
def test_score_has_mean_zero(name):
    assert mean_is(measured(name)["scores"], 0.0)


@every_family
def test_path_derivative_has_the_mean_of_the_score_gradient(name):
    seen = measured(name)
    assert mean_is(seen["path"] - seen["score_gradient"], 0.0)


@every_affine_family
def test_a_draw_moves_with_the_location(name):
    jacobian = np.moveaxis(measured(name)["jacobian"], 0, -1)
    np.testing.assert_allclose(jacobian, np.broadcast_to(np.eye(DIM), (3, DIM, DIM)), atol=1e-6)


@every_family
def test_projection_is_idempotent_and_ends_in_the_box(name):
    outside, once, twice, loc, log_peak = measured(name)["projected"]
    np.testing.assert_array_equal(once[0], outside[0], err_msg="a member is its own projection")
    np.testing.assert_array_equal(twice, once)
    box = Box(loc=3.0) if name == "truncated normal" else FAMILIES[name].box
    assert np.all(np.abs(loc) <= box.loc)
    # Every scale lies within exp(+-log_scale), times what a tilt of low rank may add.
    largest = box.log_scale + np.log1p(DIM * np.exp(box.log_scale))
    assert np.all(np.abs(log_peak) < DIM * largest + 10), "a bounded set has bounded densities at the centre"


@every_affine_family
def test_move_shifts_and_widens(name):
    np.testing.assert_allclose(measured(name)["move_error"], 0.0, atol=2e-5)


@every_family_with_inner
def test_inner_products_are_means_of_densities(name):
    both, swapped, densities = measured(name)["inner"]
    assert mean_is(densities, np.exp(both))
    np.testing.assert_allclose(swapped, both[1], rtol=1e-5, atol=1e-5)


@every_family
def test_double_precision(name):
    family, point = FAMILIES[name], np.array([0.4, -3.0])
    with jax.enable_x64(True):
        shapes = eqx.filter_eval_shape(members_in, family, jax.random.key(0), point)
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float64)}
        double = jax.jit(lambda: family.log_prob(member(family, jnp.float64), jnp.asarray(point)))()
    single = jax.jit(lambda: family.log_prob(member(family), jnp.asarray(point, jnp.float32)))()
    np.testing.assert_allclose(single, double, rtol=1e-5)


@every_family
def test_single_precision_in_a_session_of_double(name):
    with jax.enable_x64(True):
        point = np.array([0.4, -3.0], np.float32)
        shapes = eqx.filter_eval_shape(members_in, FAMILIES[name], jax.random.key(0), point)
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}


def members_in(family, key, point):
    """All that a family makes, in the precision of `point`."""
    params = member(family, point.dtype)
    return params, family.sample(key, params, 4), family.log_prob(params, point)


def test_low_rank_equals_the_dense_computation():
    generator = np.random.default_rng(0)
    dim, rank = 4, 2
    log_diag, tilt, loc, point = (generator.normal(size=s) for s in ((dim,), (dim, rank), (dim,), (dim,)))
    matrix = np.diag(np.exp(log_diag)) @ (np.eye(dim) + tilt @ tilt.T)
    expected = stats.multivariate_normal(loc, matrix @ matrix.T).logpdf(point)
    with jax.enable_x64(True):
        family = LocationScale(Normal(), LowRank(rank))
        scale = LowRankParams(jnp.asarray(log_diag), jnp.asarray(tilt))
        params = LocationScaleParams(jnp.asarray(loc), scale, ())
        log_prob, image = jax.jit(lambda p, z: (family.log_prob(p, z), family.transport(p, z)))(params, point)
        np.testing.assert_allclose(log_prob, expected, rtol=1e-10)
        np.testing.assert_allclose(image, loc + matrix @ point, rtol=1e-10)


@pytest.mark.parametrize("scale", SCALES)
def test_inner_products_of_normals_equal_the_dense_computation(scale):
    generator = np.random.default_rng(2)
    dim, family = 4, LocationScale(Normal(), SCALES[scale])
    with jax.enable_x64(True):
        pair, factors = [], []
        for width in (1.0, 1e-3):
            params = family.init(jnp.asarray(generator.normal(size=dim)), width * jnp.ones(dim))
            noise = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape)), params.scale)
            params = family.project(eqx.tree_at(lambda p: p.scale, params, jax.tree.map(jnp.add, params.scale, noise)))
            pair.append(params)
            factors.append(np.stack([family.scale.apply(params.scale, row) for row in jnp.eye(dim)], axis=1))
        together = sum(factor @ factor.T for factor in factors)
        expected = stats.multivariate_normal(pair[0].loc, together).logpdf(pair[1].loc)
        np.testing.assert_allclose(family.log_inner(*pair), expected, rtol=1e-9)


# The truncated normal

CUTS = [(0.0, 1.0), (3.0, 0.02), (-2.999, 2.5), (1.0, 3.0), (0.3, 3e-4)]
"""Location and scale in the box [-3, 3]: in the middle, at an edge, as wide and as narrow as there are."""


def cut_law(loc, scale):
    return stats.truncnorm((-3.0 - loc) / scale, (3.0 - loc) / scale, loc, scale)


@jax.jit
def cut(loc, scale, points):
    """In single precision: log densities at the points, draws, and draws' derivatives by location and log scale."""
    family = FAMILIES["truncated normal"]
    params = family.init(loc[None], scale[None])
    draws, slopes = jax.vmap(
        lambda tangent: jax.jvp(lambda p: family.sample(jax.random.key(5), p, 20_000)[:, 0], (params,), (tangent,)),
        out_axes=(None, 0),
    )(TruncatedNormalParams(jnp.array([[1.0], [0.0]]), jnp.array([[0.0], [1.0]])))
    return jax.vmap(lambda z: family.log_prob(params, z[None]))(points), draws, slopes


@pytest.mark.parametrize(("loc", "scale"), CUTS)
def test_truncated_normals_in_single_precision(loc, scale):
    """Against SciPy in double precision: the density, the law of the draws, and how they move with the parameters."""
    loc, scale = float(np.float32(loc)), float(np.float32(scale))
    law = cut_law(loc, scale)
    points = np.float32(law.ppf([1e-4, 0.2, 0.5, 0.999]))
    log_prob, draws, slopes = cut(jnp.float32(loc), jnp.float32(scale), points)
    np.testing.assert_allclose(log_prob, law.logpdf(points), atol=2e-4)
    assert np.all(np.abs(draws) <= 3.0)
    assert stats.kstest(np.asarray(draws, float), law.cdf).pvalue > FALSE_ALARM
    # By differences, each draw staying at its level of the distribution function.
    some, step = np.asarray(draws[:50], float), 1e-3
    by_loc, by_log_scale = (
        (two.ppf(law.cdf(some)) - one.ppf(law.cdf(some))) / (2 * step)
        for one, two in (
            (cut_law(loc - step * scale, scale), cut_law(loc + step * scale, scale)),
            (cut_law(loc, scale * np.exp(-step)), cut_law(loc, scale * np.exp(step))),
        )
    )
    np.testing.assert_allclose(slopes[0, :50], by_loc / scale, atol=2e-3)
    np.testing.assert_allclose(slopes[1, :50] / scale, by_log_scale / scale, atol=2e-3)


def test_truncated_normals_end_at_the_box_and_keep_nan():
    family = TruncatedNormal(bound=2.0)
    params = family.init(jnp.array([5.0, 0.0]), jnp.array([1.0, 100.0]))
    np.testing.assert_allclose(params.loc, [2.0, 0.0])
    np.testing.assert_allclose(np.exp(params.log_scale), [1.0, 2.0], rtol=1e-6)
    assert family.log_prob(params, jnp.array([0.0, 2.01])) == -np.inf
    assert np.isfinite(family.log_prob(params, jnp.array([-2.0, 2.0])))
    assert np.isnan(family.log_prob(params, jnp.array([0.0, np.nan])))


@pytest.mark.parametrize("scale", SCALES)
def test_init_keeps_what_the_scale_can_hold(scale):
    """A triangular factor is kept whole by the full scale, and by its marginal standard deviations elsewhere."""
    params = SCALES[scale].init(jnp.asarray(FACTOR, jnp.float32))
    columns = np.stack([SCALES[scale].apply(params, row) for row in jnp.eye(DIM)], axis=1)
    if scale == "full":
        np.testing.assert_allclose(columns, FACTOR, rtol=1e-6)
    spread = {"mean_field": 1e-6, "full": 1e-6, "low_rank": 0.02}[scale]  # the low rank starts a little tilted
    np.testing.assert_allclose(np.linalg.norm(columns, axis=1), np.linalg.norm(FACTOR, axis=1), rtol=spread)


def test_rank_is_cut_at_the_dimension():
    assert LowRank(rank=10).init(jnp.ones(3)).tilt.shape == (3, 3)


def test_a_small_box_is_respected():
    family = LocationScale(box=Box(loc=1.0, log_scale=0.5))
    params = family.init(jnp.array([3.0, -0.2]), jnp.array([10.0, 0.01]))
    np.testing.assert_allclose(params.loc, [1.0, -0.2])
    np.testing.assert_allclose(jnp.diagonal(params.scale), [0.5, -0.5])


def test_names():
    assert len(family_names()) == len(set(family_names())) == 14
    assert resolve_family("truncated_normal", 3) == TruncatedNormal()
    assert resolve_family("flow", 3) == FlowFamily()
    for name in [name for name in family_names() if name not in ("truncated_normal", "flow")]:
        small, large = resolve_family(name, 3), resolve_family(name, DENSE_LIMIT + 1)
        assert isinstance(small, LocationScale)
        assert isinstance(small.scale, Cholesky) == ("full" in name or name in NOISES)
        assert isinstance(large.scale, Diagonal) == ("mean_field" in name or name in NOISES)
    assert isinstance(resolve_family("low_rank_student_t", 3).noise, StudentT)
    assert isinstance(resolve_family("low_rank_student_t", 3).scale, LowRank)
    family = FAMILIES["numpyro gumbel"]
    assert resolve_family(family, 3) is family


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StudentT(df=0.5), "df must be at least 1, got 0.5"),
        (lambda: StudentT(df=float("nan")), "df must be at least 1, got nan"),
        (lambda: TruncatedNormal(bound=0.0), "bound must be positive and finite, got 0.0"),
        (lambda: TruncatedNormal(bound=float("inf")), "bound must be positive and finite, got inf"),
        (lambda: LowRank(rank=0), "rank must be at least 1, got 0"),
        (lambda: Box(loc=-1.0), "Box bounds must be positive"),
        (lambda: Box(log_scale=float("nan")), "Box bounds must be positive"),
        (lambda: from_numpyro(dist.Exponential), "cannot be a component.*loc"),
        (lambda: from_numpyro(dist.Laplace, loc=0.0), "cannot be a component.*loc"),
        (lambda: from_numpyro(dist.Laplace, scale=1.0), "cannot be a component.*scale"),
        (lambda: from_numpyro(dist.Normal(0.0, 1.0)), "takes a distribution class"),
        (lambda: from_numpyro("Laplace"), "takes a distribution class.*'Laplace'"),
        (lambda: from_numpyro(dist.Laplace, df=4.0), r"Laplace has no argument \['df'\]; it has \['loc', 'scale'\]"),
        (lambda: from_numpyro(dist.LogNormal), "real line"),  # it has loc and scale, and lives on the half-line
        (lambda: resolve_family("norml", 2), "Unknown family 'norml'.*mean_field_laplace.*full_student_t"),
    ],
)
def test_wrong_use_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Memory limits: chunks change nothing but the memory, limits are kept, and what cannot fit is refused with numbers."""

import dataclasses
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo._compiled import temporary_bytes
from relbo.ascent import GradientAscent, NaturalAscent
from relbo.budgets import FEW
from relbo.families import resolve_family
from relbo.memory import as_bytes, points_at_once
from relbo.mixture import empty_mixture
from relbo.objectives import ESTIMATORS, FiniteStep, compare
from relbo.oracles.starts import mixture_draws, score
from relbo.precondition import curvature, identity_map, walk
from relbo.targets import Limited, limited

LIMIT = 3  # no divisor of any number of points below
KEY = jax.random.key(0)
ESTIMATOR = ESTIMATORS["sticking_the_landing"]


def log_density(params, x, y):
    logits = x @ params["slopes"] + params["intercept"]
    return jnp.sum(y * logits - jax.nn.softplus(logits)) - jnp.sum(params["slopes"] ** 2) / 2


def logistic_regression(num_rows, num_slopes=3):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num_rows, num_slopes)).astype(np.float32)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, num_slopes)))).astype(np.float32)
    example = {"slopes": jnp.zeros(num_slopes), "intercept": 0.0}
    return relbo.from_log_density(log_density, example, args=(x, y))


@pytest.fixture(scope="module")
def target():
    return logistic_regression(50)


@pytest.fixture(scope="module")
def mixture():
    """Two components of unequal weights in the target's four dimensions."""
    nothing = empty_mixture(resolve_family("normal", 4), 4, 8, jnp.float32)
    shifted = dataclasses.replace(nothing.params, loc=nothing.params.loc + jnp.arange(8.0)[:, None] / 8)
    return type(nothing)(nothing.family, shifted, jnp.log(jnp.asarray([0.7, 0.3, 0, 0, 0, 0, 0, 0])))


def both(target, function):
    """`function` of the whitened target without and with a limit."""
    return [function(identity_map(whole, "auto")) for whole in (target, limited(target, LIMIT))]


def assert_same(one, other, rtol=1e-4):
    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        largest = np.max(np.abs(np.asarray(first)), initial=1, where=np.isfinite(first))
        np.testing.assert_allclose(first, second, rtol=rtol, atol=rtol * largest)


def test_values_gradients_and_hessians_in_nested_vmaps(target):
    points = jax.random.normal(KEY, (5, 7, 4))

    @jax.jit
    def everything(whole):
        slopes = jax.vmap(jax.vmap(jax.value_and_grad(whole.log_density)))(points)
        return slopes, jax.vmap(whole.log_density)(points[0]), jax.vmap(jax.hessian(whole.log_density))(points[1])

    assert_same(*both(target, everything))


def test_branches_of_a_vmapped_cond_share_the_data(target):
    """A vmapped `cond` copies what its branches use; the limited target must not take the copies for other data."""
    points = jax.random.normal(KEY, (17, 4))

    @jax.jit
    def branching(whole):
        return jax.vmap(lambda z: jax.lax.cond(z[0] > 0, whole.log_density, lambda z: 0.0, z))(points)

    plain, chunked = both(target, branching)
    assert np.any(np.asarray(plain) == 0) and np.any(np.asarray(plain) != 0)
    assert_same(plain, chunked)


@pytest.mark.parametrize("ascent", [NaturalAscent(num_steps=3, num_draws=8), GradientAscent(num_steps=3, num_draws=8)])
def test_ascents(target, mixture, ascent):
    @jax.jit
    def ascend(whole):
        improved = ascent.improve(KEY, whole, mixture, FiniteStep(), ESTIMATOR, mixture.params, jnp.asarray(1))
        return improved, ascent.refine(KEY, whole, mixture, ESTIMATOR)

    assert_same(*both(target, ascend))


def test_scores_of_starts(target, mixture):
    @jax.jit
    def scores(whole):
        return score(KEY, whole, mixture, mixture_draws(KEY, whole, mixture), mixture.params, 5)

    assert_same(*both(target, scores))


def test_walks_and_curvature(target):
    num = 48
    points, widths, own = np.zeros((num, 4), np.float32), np.zeros(num, np.float32), np.ones(num, bool)
    plain, chunked = both(target, lambda whole: walk(KEY, whole, points, widths, own)[:, -1])
    height = jax.vmap(target.log_density)
    # Rounding may end a walk a step earlier; where it ends, the log density is the mode's.
    np.testing.assert_allclose(height(plain), height(chunked), atol=0.01)
    assert_same(*both(target, lambda whole: curvature(KEY, whole, plain)))


def test_measurements(target, mixture):
    one = jax.tree.map(lambda leaf: leaf[0], mixture.params)
    assert_same(*both(target, jax.jit(lambda whole: compare(KEY, whole, mixture, mixture, one, 5))), rtol=1e-3)


def test_up_to_the_limit_there_is_no_loop(target):
    def loops(limit, num):
        points = jnp.zeros((num, 4))
        text = jax.jit(jax.vmap(jax.grad(Limited(target, limit).log_density))).lower(points).as_text()
        return text.count("stablehlo.while")

    assert loops(8, 8) == 0
    assert loops(8, 9) > 0


def test_small_targets_stay_as_they_are(target):
    booster = relbo.make_booster(target)
    assert booster.points_at_once is None
    assert booster.target is target
    assert limited(target, booster.points_at_once) is target
    assert relbo.make_booster(target, max_memory="2GB").points_at_once == 1024


@pytest.mark.slow
def test_what_the_programs_take():
    """By XLA's own account, the programs with the most points stay within the limit, and would not without."""
    target, memory = logistic_regression(100_000, 20), 60_000_000
    at_once = points_at_once(target, memory)
    points = np.zeros((48, target.dim), np.float32)
    args = (KEY, points, points[:, 0], np.ones(48, bool))
    nothing = empty_mixture(resolve_family("normal", target.dim), target.dim, FEW.capacity, target.dtype)

    def walks(whole, key, points, widths, own):
        return walk.__wrapped__(key, whole, points, widths, own)

    def refine(whole, key, *_):
        return NaturalAscent().refine(key, whole, nothing, ESTIMATOR)

    for program, excess in ((walks, 1), (refine, 4)):
        assert temporary_bytes(program, identity_map(limited(target, at_once), "auto"), *args) < memory
        assert temporary_bytes(program, identity_map(target, "auto"), *args) > excess * memory


@pytest.mark.slow
def test_a_limit_is_kept():
    """The peak memory of a process while the oracle's program runs, over what it was when that was compiled."""
    code = """
        import resource, sys, equinox, jax, relbo
        from relbo.mixture import empty_mixture
        from relbo.precondition import identity_map
        from relbo.targets import limited
        from test_memory import logistic_regression

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

        oracle = relbo.NaturalOracle(num_steps=2, starts=relbo.Starts(num_modes=0, num_initial=1))
        target = logistic_regression(100_000, 20)
        booster = relbo.make_booster(target, oracle=oracle, max_memory="100MB")
        whitened = identity_map(limited(target, booster.points_at_once), "none")
        mixture = empty_mixture(booster.family, target.dim, 32, target.dtype).reweight(jax.numpy.zeros(32) - 3.5)
        args = (jax.random.key(0), whitened, mixture, None, booster.objective, booster.estimator, jax.numpy.asarray(1))
        program = equinox.filter_jit(type(oracle).propose.__wrapped__).lower(oracle, *args).compile()
        before = peak()
        assert jax.numpy.isfinite(program(oracle, *args).objective.value)
        print(booster.points_at_once, peak() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=__file__.rpartition("/")[0])
    at_once, used = (int(word) for word in done.stdout.split())
    assert 8 <= at_once < 128
    assert used < 100_000_000
    assert 1024 * 100_000 * 4 > 4 * 100_000_000  # one number for each row, at the points that are scored at once


def test_a_continued_fit_keeps_its_limit(target):
    booster = relbo.make_booster(target)
    bounded = dataclasses.replace(booster, points_at_once=LIMIT)
    whitened = identity_map(bounded.limited_target(), "auto")
    assert isinstance(whitened.with_target(bounded.limited_target()).target, Limited)
    assert whitened.with_target(bounded.limited_target()).points_at_once == LIMIT
    assert booster.limited_target() is target
    many = logistic_regression(30_000)
    assert many.points_at_once < 1024  # by the rule of thumb, which is no limit
    assert identity_map(many, "auto").with_target(many).target is many


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1000, 1000), ("1000", 1000), ("2GB", 2 * 10**9), ("500 MB", 5 * 10**8), ("1.5 GiB", 3 * 2**29), ("10kb", 10**4)],
)
def test_amounts_of_memory(given, expected):
    assert as_bytes(given) == expected


@pytest.mark.parametrize("given", ["much", "-1GB", 0, -5, 1.5, True, "2XB", ""])
def test_amounts_that_are_none(given):
    with pytest.raises(ValueError, match=f'max_memory must be .*"2GB".* got {re.escape(repr(given))}'):
        as_bytes(given)


def test_one_point_too_many():
    with pytest.raises(ValueError, match=r"One evaluation .* takes .* MB, and max_memory is 100 kB.*minibatches"):
        relbo.fit(logistic_regression(100_000), max_memory="100kB", progress_bar=False)


def test_mixtures_that_cannot_fit():
    target = relbo.from_log_density(lambda z: -jnp.sum(z**2), jnp.zeros(20_000))
    with pytest.raises(
        ValueError, match=r"8 components of 1\.6 GB each in 20,000 dimensions.*max_memory is 8 GB.*mean_f"
    ):
        relbo.make_booster(target, family="full_normal", max_memory="8GB")
    with pytest.raises(ValueError, match=r'dense affine map in 20,000 dim.*precondition="low_rank"'):
        relbo.make_booster(target, precondition="dense", max_memory="8GB")
    huge = relbo.from_log_density(lambda z: -jnp.sum(z**2), jnp.zeros(1_000_000))
    with pytest.raises(ValueError, match="this machine has"):
        relbo.make_booster(huge, family="full_normal")


def test_draws_are_fewer_where_they_are_long():
    target = relbo.from_log_density(lambda z: -jnp.sum(z**2), jnp.zeros(20_000))
    booster = relbo.make_booster(target, max_memory="1GB")
    assert booster.num_measure * 5 * 20_000 * 4 <= 0.25e9 < 2 * booster.num_measure * 5 * 20_000 * 4

"""Memory limits: blocks change nothing but the memory, limits are kept, and what cannot fit is refused with numbers."""

import dataclasses
import re
import subprocess
import sys
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import door_of
from relbo.ascent import Aim, GradientAscent, NaturalAscent, lbfgs_paths
from relbo.ascent.curvature import laplace_factors
from relbo.families import resolve_family
from relbo.mixture import empty_mixture
from relbo.model.blocks import block_of
from relbo.model.door import _evaluate
from relbo.model.memory import as_bytes, points_at_once
from relbo.model.whitening import identity_map
from relbo.objectives import ESTIMATORS, FiniteStep
from relbo.objectives.measuring import measure
from relbo.oracles import make_cloud
from relbo.oracles.starts import score
from relbo.runtime.compiling import temporary_bytes

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
    """`function` of the door to the target without and with a limit; of evaluations there are as many."""
    doors = [door_of(target, at_once) for at_once in (None, LIMIT)]
    assert doors[1].block == LIMIT < doors[0].block
    found = [function(door) for door in doors]
    assert doors[0].spent == doors[1].spent and doors[0].num_evaluations > LIMIT
    return found


def assert_same(one, other, rtol=1e-4):
    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        largest = np.max(np.abs(np.asarray(first)), initial=1, where=np.isfinite(first))
        np.testing.assert_allclose(first, second, rtol=rtol, atol=rtol * largest)


def test_values_and_gradients(target):
    points = np.random.default_rng(0).normal(size=(35, 4)).astype(np.float32)
    assert_same(*both(target, lambda door: (tuple(door(points, "a")), door.numbers(points, "b"))))


@pytest.mark.parametrize("ascent", [NaturalAscent(num_steps=3, num_draws=8), GradientAscent(num_steps=3, num_draws=8)])
def test_ascents(target, mixture, ascent):
    def ascend(door):
        improved = ascent.improve(KEY, door, Aim(mixture, FiniteStep(), ESTIMATOR, 1), mixture.params)
        return improved.params, improved.value, ascent.refine(KEY, door, mixture, ESTIMATOR)

    assert_same(*both(target, ascend))


def test_scores_of_starts(target, mixture):
    def scores(door):
        return score(KEY, door, make_cloud(KEY, door, mixture, 5, "weights"), mixture.params, 5)[0]

    assert_same(*both(target, scores))


def test_walks_and_curvature(target):
    points = 0.1 * np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    doors = door_of(target), door_of(target, LIMIT)
    plain, chunked = (lbfgs_paths(partial(_walk, door), points, 60, 1)[:, -1] for door in doors)
    height = jax.vmap(target.log_density)
    # Rounding may end a walk a step earlier; where it ends, the log density is the mode's.
    np.testing.assert_allclose(height(plain), height(chunked), atol=0.01)
    ends = plain.astype(np.float64)
    assert_same(*both(target, lambda door: laplace_factors(lambda at: door.numbers(at, "curvature")[1], ends)), 1e-3)


def _walk(door, points, num_used):
    return door(points, "walks", num_used)


def test_measurements(target, mixture):
    one = jax.tree.map(lambda leaf: leaf[0], mixture.params)

    def measured(door):
        seen = measure(KEY, door, mixture, mixture, one, most=40, least=0.0)
        return [dataclasses.astuple(seen.gap.estimate), dataclasses.astuple(seen.elbo.estimate)]

    assert_same(*both(target, measured), rtol=1e-3)


def test_small_targets_stay_as_they_are(target):
    booster = relbo.make_booster(target)
    assert booster.points_at_once is None
    assert relbo.make_booster(target, max_memory="2GB").points_at_once == block_of(target)


def test_blocks_fit_the_cache_where_data_are_many(target):
    """Fewer points at once, down to sixteen, the longer the data."""
    blocks = [block_of(logistic_regression(num)) for num in (50, 30_000, 100_000, 1_000_000)]
    assert blocks == sorted(blocks, reverse=True) and blocks[0] == block_of(target) and blocks[-1] == 16
    assert all(block * num <= 2**21 for block, num in zip(blocks[1:3], (30_000, 100_000), strict=True))


@pytest.mark.slow
def test_what_the_door_takes():
    """By XLA's own account, a block stays within the limit, and a thousand points would not."""
    target, memory = logistic_regression(100_000, 20), 60_000_000
    at_once, whitened = points_at_once(target, memory), identity_map(target, "auto")

    def taken(num):
        return temporary_bytes(lambda points: _evaluate(whitened, points), np.zeros((num, target.dim), np.float32))

    assert taken(at_once) < memory < taken(1024)


@pytest.mark.slow
def test_a_limit_is_kept():
    """The peak memory of a process while a thousand points are evaluated, over what it was when that was compiled."""
    code = """
        import resource, sys, numpy, relbo
        sys.path.append("..")
        from relbo.model.whitening import identity_map
        from test_memory import logistic_regression

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

        target = logistic_regression(100_000, 20)
        booster = relbo.make_booster(target, max_memory="100MB")
        door = booster.door(identity_map(target, "none"))
        door.numbers(numpy.zeros((1, target.dim)), "compiling")
        before = peak()
        values, _ = door.numbers(numpy.random.default_rng(0).normal(size=(1024, target.dim)), "running")
        assert numpy.isfinite(values).all()
        print(door.block, peak() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=__file__.rpartition("/")[0])
    at_once, used = (int(word) for word in done.stdout.split())
    assert 8 <= at_once < 128
    assert used < 100_000_000
    assert 1024 * 100_000 * 4 > 4 * 100_000_000  # one number for each row, were all points evaluated at once


def test_a_continued_fit_keeps_its_limit(target):
    bounded = dataclasses.replace(relbo.make_booster(target), points_at_once=LIMIT)
    again = bounded.rebased(identity_map(target, "auto"))
    assert again.target is target
    door = bounded.door(again)
    assert door.block == LIMIT and door.through(again).block == LIMIT
    assert bounded.chunk == LIMIT, "and of points that the model constrains"


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
        ValueError, match=r"16 components of 1\.6 GB each in 20,000 dimensions.*max_memory is 8 GB.*mean_f"
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

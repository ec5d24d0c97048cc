"""Budgets: less work the more dimensions there are beyond a limit; and the low-rank map that many dimensions get."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.ascent.curvature import softest
from relbo.budgets import budget
from relbo.coordinates.race import Preconditioner, find_map
from relbo.families import DENSE_LIMIT
from relbo.model.blocks import block_of
from relbo.model.door import Door
from relbo.model.whitening import identity_map
from relbo.objectives import ESTIMATORS
from relbo.oracles import AscentOracle, NaturalOracle, Starts
from relbo.steps import FullyCorrective

DIMS = (DENSE_LIMIT, DENSE_LIMIT + 1, 1000, 8371, 27_901, 10**6)


def standard_normal(dim):
    return relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(dim))


@pytest.mark.parametrize("dim", [2, 100, 5000])
def test_the_defaults_are_what_the_budget_affords(dim):
    booster, afford = relbo.make_booster(standard_normal(dim)), budget(dim)
    starts = Starts(afford.num_residual, afford.num_walks, afford.num_initial, num_draws=afford.start_draws)
    assert booster.oracle.starts == starts and booster.oracle.num_restarts == afford.num_restarts
    assert booster.oracle.ascent.num_draws == booster.preconditioner.num_draws == afford.ascent_draws
    assert booster.refinement.num_draws == afford.refine_draws
    assert booster.refinement.step_size == afford.refine_step_size
    assert booster.step_rule.num_draws == min(FullyCorrective().num_draws, afford.weight_draws)
    assert booster.num_measure <= afford.measure_draws
    assert (booster.points_at_once is None) == (dim <= DENSE_LIMIT), "nothing need be limited in few dimensions"


def test_no_budget_rises_with_the_dimension_and_all_have_a_least():
    found = [dataclasses.asdict(budget(dim)) for dim in DIMS]
    for name in set(found[0]) - {"rank", "min_gain", "refine_step_size"}:
        numbers = [one[name] for one in found]
        assert numbers == sorted(numbers, reverse=True), name
        assert numbers[-1] > 0 and numbers[-1] == numbers[-2], name
    assert budget(10**6).ascent_draws % 2 == 0  # antithetic
    assert budget(10**6).measure_draws >= 2 * budget(10**6).capacity  # or there would be no error bar


def test_steps_of_full_covariances_are_the_shorter_the_more_noise_there_is():
    sizes = [budget(dim).refine_step_size for dim in (2, 24, 48, DENSE_LIMIT)]
    np.testing.assert_allclose(sizes[:3], [0.4, 0.4, 0.2])
    assert sizes[3] < sizes[2]
    assert budget(DENSE_LIMIT + 1).refine_step_size > sizes[-1]  # diagonal ones have less to estimate


def test_what_a_user_sets_is_not_touched():
    oracle = NaturalOracle(num_draws=64, num_restarts=9)
    rule, race = FullyCorrective(num_draws=500), Preconditioner(num_draws=40)
    booster = relbo.make_booster(standard_normal(5000), oracle=oracle, step=rule, precondition=race, num_measure=4096)
    assert booster.oracle == oracle and booster.step_rule == rule and booster.preconditioner == race
    assert booster.num_measure == 4096


def test_a_fit_in_many_dimensions_is_bounded_by_default():
    booster = relbo.make_booster(standard_normal(27_901))
    assert booster.num_measure * 5 * 27_901 * 4 <= 0.5e9
    assert isinstance(booster.oracle, AscentOracle)
    assert booster.oracle.ascent.num_draws * booster.oracle.num_restarts <= 16


def test_a_point_may_cost_more_than_its_data():
    """A product of two factors has far more numbers than either: in many dimensions XLA is asked what a point costs."""

    def log_density(params):
        return -0.5 * jnp.sum((params["u"].T @ params["v"] - 1.0) ** 2) - jnp.sum(params["u"] ** 2 + params["v"] ** 2)

    target = relbo.from_log_density(log_density, {"u": jnp.zeros((2, 5000)), "v": jnp.zeros((2, 5000))})
    at_once = relbo.make_booster(target).points_at_once
    assert at_once is not None and at_once * 5000 * 5000 * 4 <= 0.5e9
    assert at_once < block_of(target)  # which goes by the length of the data


def test_softest_directions():
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(120, 120)))[0]
    values = np.concatenate([[0.01, 0.05, 0.2], np.linspace(0.9, 3.0, 117)])
    matrix = (vectors * values) @ vectors.T
    found, directions = softest(lambda v: matrix @ v, 120, 3, 60)
    np.testing.assert_allclose(found, values[:3], rtol=1e-2)
    np.testing.assert_allclose(np.abs(np.sum(vectors[:, :3] * directions, axis=0)), 1.0, atol=1e-3)


def test_softest_of_the_identity_is_harmless():
    """The first step exhausts it. What follows must not be taken for soft directions."""
    found, directions = softest(lambda v: v, 50, 4, 20)
    assert np.all(np.isfinite(found)) and np.all(np.isfinite(directions))
    lengths = np.linalg.norm(directions, axis=0)
    np.testing.assert_allclose(np.where(lengths > 1e-3, found, 1.0), 1.0, atol=1e-3)


def test_the_low_rank_map_whitens_what_is_of_low_rank():
    """Four wide directions in forty dimensions: mean field loses nats there, the map wins nearly all of them back."""
    rng = np.random.default_rng(1)
    covariance = np.diag(np.exp(rng.normal(size=40))) + 9 * (wide := rng.normal(size=(40, 4))) @ wide.T
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T.astype(np.float32)
    target = relbo.from_log_density(lambda z: -0.5 * jnp.sum((root @ (z - 1.0)) ** 2), jnp.zeros(40))
    door = Door(identity_map(target, "low_rank"))
    found = find_map(jax.random.key(0), door, Preconditioner("low_rank"), ESTIMATORS["sticking_the_landing"])
    assert found.spent is door.spent, "the same count, through other coordinates"
    whitened = found.target
    matrix = np.asarray(jax.vmap(whitened.unwhiten)(jnp.eye(40)) - whitened.unwhiten(jnp.zeros(40)), np.float64).T

    def loss(factor):
        """KL(N(m, A A') || p), the best over the overall width."""
        eigenvalues = np.linalg.eigvalsh(factor.T @ np.linalg.inv(covariance) @ factor)
        eigenvalues /= eigenvalues.mean()
        return 0.5 * np.sum(eigenvalues - 1 - np.log(eigenvalues))

    mean_field = np.diag(1 / np.sqrt(np.diag(np.linalg.inv(covariance))))
    assert loss(matrix) < 0.1 * loss(mean_field)

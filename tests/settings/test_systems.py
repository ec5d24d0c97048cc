"""Earlier systems as presets: each runs, improves what one component reaches, and survives saving; the joint oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import TWO_MODES, door_of, kl_to, normals, target_of
from relbo.ascent import Aim
from relbo.mixture import draw_each, log_densities, put
from relbo.objectives import ESTIMATORS
from relbo.oracles import JointOracle, make_cloud
from relbo.settings.presets import PRESETS
from relbo.steps.base import weight_problem
from relbo.storage.objects import decode, encode

OF_FIT = ("stop", "max_components")


def test_presets_differ_in_what_they_say_and_are_made_of_what_a_file_can_hold():
    for name in PRESETS:
        settings = relbo.preset(name)
        booster = relbo.make_booster(target_of("two_modes"), **{k: settings[k] for k in settings if k not in OF_FIT})
        assert booster.refinement is None and booster.preconditioner.kind == "none" and settings["stop"] == ()
        assert booster.min_improvement == -np.inf
        parts = (booster.family, booster.objective, booster.oracle, booster.step_rule, booster.estimator)
        assert decode(encode(parts)) == parts
    assert relbo.preset("guo2016")["family"] == relbo.families.LocationScale()
    assert isinstance(relbo.preset("locatello2018_norm_corrective")["family"], relbo.families.TruncatedNormal)
    assert relbo.preset("miller2016", family="laplace")["family"] == "laplace"
    assert relbo.preset("dresdner2021")["objective"] == relbo.paper()["objective"]


def test_the_papers_rules_search_on_as_many_draws_as_the_authors_code():
    """By its name alone a rule is thriftier: 64 draws of every component."""
    rules = {name: relbo.paper(name)["step"] for name in ("fixed", "line_search", "fully_corrective")}
    assert {name: rule.num_draws for name, rule in rules.items()} == {
        "fixed": 0,
        "line_search": 1000,
        "fully_corrective": 1000,
    }
    assert decode(encode(tuple(rules.values()))) == tuple(rules.values())
    settings = {name: value for name, value in relbo.paper().items() if name not in OF_FIT}
    assert relbo.make_booster(target_of("two_modes"), **settings).step_rule == rules["fully_corrective"]


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match=r"guo2015.*guo2016"):
        relbo.preset("guo2015")
    with pytest.raises(ValueError, match="needs inner products"):
        relbo.make_booster(target_of("two_modes"), family="laplace", step="norm_corrective")
    with pytest.raises(ValueError, match="num_restarts must be at least 1, got 0"):
        JointOracle(num_restarts=0)


@functools.cache
def joint_searches():
    """q is the right mode alone. Eight ascents from different draws: components, their weights, line searches."""
    mixture = normals([1.5, 0.0], [1.0, 1.0], [1.0, 0.0])
    oracle = JointOracle(num_steps=250, num_draws=16, learning_rate=0.03, num_restarts=8)
    start = jax.vmap(mixture.family.init)(jnp.linspace(-2.4, -1.2, 8)[:, None], jnp.full((8, 1), 0.8))

    door = door_of(target_of("two_modes"))
    cloud = make_cloud(jax.random.key(1), door, mixture, 512, "weights")
    aim = Aim(mixture, relbo.FiniteStep(), ESTIMATORS["reparameterized"], 1)
    found, weights = oracle.ascend(jax.random.key(2), door, aim, cloud, start)
    return found, weights, [searched(cloud, door, params) for params in members_of(found.params)]


def searched(cloud, door, params) -> float:
    """The step of a line search towards a component, on draws of its own and of the cloud."""
    mixture, slots = put(cloud.mixture, np.array([1]), params), np.array([1])
    points = draw_each(jax.random.key(3), mixture, 512, 2).reshape(2 * 512, -1)
    log_p = door.numbers(points, "weights")[0].reshape(2, 512)
    log_s = log_densities(mixture.family, mixture.params, points).reshape(2, 512, 2)
    problem = weight_problem(cloud.weights.copy(), slots, log_p, log_s)
    return relbo.LineSearch().update(problem, mixture, slots, 1, ())[0].step_size


def members_of(params):
    return [jax.tree.map(lambda leaf, at=at: np.asarray(leaf)[at : at + 1], params) for at in range(8)]


def test_the_joint_oracle_finds_the_missing_mode_and_its_weight():
    found, weights, _ = joint_searches()
    loc, scale = np.asarray(found.params.loc[:, 0]), np.exp(np.asarray(found.params.scale[:, 0, 0]))
    assert found.num_nan == 0
    np.testing.assert_allclose(loc.mean(), -2.0, atol=0.05)
    np.testing.assert_allclose(scale.mean(), 0.5, atol=0.05)
    np.testing.assert_allclose(np.asarray(weights).mean(), 0.3, atol=0.02)
    np.testing.assert_allclose(found.value, TWO_MODES.log_z, atol=0.02)
    first = found.order()[0]
    best = jax.tree.map(lambda leaf: leaf[first], found.params)
    log_weights = np.log([1 - weights[first], weights[first]]).astype(np.float32)
    after = normals([1.5, 0.0], [1.0, 1.0], [1.0, 0.0]).place(1, best, 0.0).reweight(jnp.asarray(log_weights))
    assert kl_to(TWO_MODES, after) < 0.01


def test_a_line_search_ends_at_the_weight_of_the_joint_oracle():
    """Component by component: at a maximum of both, the slope in the weight is zero. What is left is Adam's noise."""
    _, weights, searched = joint_searches()
    np.testing.assert_allclose(weights, searched, atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_and_goes_on_from_its_checkpoint(name, tmp_path):
    target, path = target_of("two_modes"), tmp_path / "fit.relbo"
    settings = {**relbo.preset(name), "progress_bar": False, "seed": 1}
    first = relbo.fit(target, **{**settings, "max_components": 2}, checkpoint=path)
    again = relbo.fit(target, **{**settings, "max_components": 3}, checkpoint=path)
    whole = relbo.fit(target, **{**settings, "max_components": 3})
    np.testing.assert_array_equal(again.log_prob(np.zeros((1, 1))), whole.log_prob(np.zeros((1, 1))))
    assert np.isfinite(again.elbo.value) and len(again.trace) > len(first.trace)
    assert relbo.load(path, target=target).booster.step_rule == whole.booster.step_rule

"""Learned coordinates: the map and its inverse, the door around it, training, files, and when a flow is tried."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.boosting.state import State
from relbo.coordinates import learning
from relbo.families.autoregressive import identity_flow
from relbo.mixture import Mixture
from relbo.model.door import Door
from relbo.model.whitening import identity_map
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.storage.files import to_bytes
from relbo.storage.reading import read

DIM = 3


def bent_log_density(z):
    """A scale that depends on a coordinate, and a third one that follows the square of it; log Z = 0."""
    first, second, third = z
    logs = -0.5 * first**2 - 0.5 * (second * jnp.exp(-first)) ** 2 - first - 0.5 * (third - 0.5 * first**2) ** 2
    return logs - 1.5 * math.log(2 * math.pi)


def bent_on_host(z):
    first, second, third = z
    ratio, rest = second * np.exp(-first), third - 0.5 * first**2
    value = -0.5 * (first**2 + ratio**2 + rest**2) - first - 1.5 * math.log(2 * math.pi)
    return value, np.array([-first + ratio**2 - 1 + rest * first, -ratio * np.exp(-first), -rest])


def bent():
    return relbo.from_log_density(bent_log_density, jnp.zeros(DIM))


def some_flow(dtype=np.float32, dim=DIM, num_layers=3, skewed=True):
    """A flow that is nothing special."""
    rng = np.random.default_rng(0)
    moved = identity_flow(dim, dtype, num_layers, 8, skewed)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * rng.standard_normal(leaf.shape), dtype), moved)


def some_noise(num=64, dim=DIM, dtype=np.float32):
    return np.random.default_rng(1).standard_normal((num, dim)).astype(dtype)


@pytest.fixture
def one_round(monkeypatch):
    """Training ends after its first round, whatever that leaves."""
    monkeypatch.setattr(learning, "_MUCH", 100.0)


# The map


@pytest.mark.parametrize("num_layers", [0, 1, 2, 3])
def test_the_inverse_is_exact(num_layers):
    with jax.enable_x64(True):
        flow, noise = some_flow(np.float64, 5, num_layers), some_noise(dim=5, dtype=np.float64)
        points, log_dets = eqx.filter_jit(flow.transport)(noise)
        back, same = eqx.filter_jit(flow.inverse)(points)
    np.testing.assert_allclose(back, noise, atol=1e-10)
    np.testing.assert_allclose(same, log_dets, atol=1e-10)
    assert np.max(np.abs(np.asarray(points) - noise)) > 0.5


def test_the_inverse_in_single_precision():
    flow, noise = some_flow(), some_noise()
    points, _ = eqx.filter_jit(flow.transport)(noise)
    back, _ = eqx.filter_jit(flow.inverse)(points)
    again, _ = eqx.filter_jit(flow.transport)(back)
    np.testing.assert_allclose(again, points, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("num_layers", "skewed"), [(3, True), (0, True), (2, False)])
def test_determinant_score_and_gradient_are_those_of_the_map(num_layers, skewed):
    with jax.enable_x64(True):
        flow, noise = some_flow(np.float64, DIM, num_layers, skewed=skewed), some_noise(8, dtype=np.float64)

        def log_q(x):
            u, log_det = flow.inverse(x)
            return -0.5 * jnp.sum(u**2) - log_det

        def facts(u):
            x, log_det = flow.transport(u)
            jacobian = jax.jacfwd(lambda at: flow.transport(at)[0])(u)
            return log_det - jnp.linalg.slogdet(jacobian)[1], jax.grad(log_q)(x)

        wrong_det, score = jax.jit(jax.vmap(facts))(noise)
        slopes, rise = jnp.cos(jnp.arange(noise.size)).reshape(noise.shape), 0.7

        @eqx.filter_jit
        def learned(flow, noise):
            way = flow.way(noise)
            return flow.score(way), flow.pull(way, slopes, rise)

        def climbed(flow, noise):
            points, log_dets = flow.transport(noise)
            return jnp.sum(slopes * points) + rise * jnp.sum(log_dets)

        found, grads = learned(flow, jnp.asarray(noise))
        expected = jax.jit(jax.grad(climbed, argnums=(0, 1)))(flow, jnp.asarray(noise))
    np.testing.assert_allclose(wrong_det, 0.0, atol=1e-10)
    np.testing.assert_allclose(found, score, atol=1e-8)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_a_new_flow_moves_nothing():
    noise = some_noise()
    points, log_dets = eqx.filter_jit(identity_flow(DIM, np.float32).transport)(noise)
    np.testing.assert_array_equal(points, noise)
    np.testing.assert_array_equal(log_dets, 0.0)


def test_a_flow_without_layers_is_no_larger_than_its_points():
    dim = 2000
    traced = jax.make_jaxpr(identity_flow(dim, np.float32, 0).transport)(np.zeros(dim, np.float32))
    assert max((np.size(const) for const in traced.consts), default=0) <= dim


# The door


@pytest.mark.parametrize("kind", ["jax", "host"])
def test_the_door_sees_the_target_through_the_flow(kind):
    target = bent() if kind == "jax" else relbo.from_callable(bent_on_host, DIM)
    whitened = identity_map(bent(), "affine").with_flow(some_flow())
    door = Door(identity_map(target, "affine").with_flow(some_flow()))
    values, slopes = door.numbers(some_noise(200), "test")
    expected = jax.jit(jax.vmap(jax.value_and_grad(whitened.log_density)))(some_noise(200))
    np.testing.assert_allclose(values, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(slopes, expected[1], rtol=1e-3, atol=1e-3)
    assert door.num_evaluations == 200


# Training


def test_training_learns_the_bend(one_round):
    door = Door(identity_map(bent(), "affine"))
    learned = learning.learn_flow(jax.random.key(0), door)
    before = np.mean(learning._judged(door, identity_flow(DIM, np.float32), some_noise(2048)).ratios)
    assert learned.elbo.value + 2 * learned.elbo.std_err > -0.1 and learned.elbo.value < 4 * learned.elbo.std_err
    assert before < learned.elbo.value - 0.3
    assert door.spent["flow"] > 150 * 128


def test_many_dimensions_are_skewed_one_by_one():
    """Logarithms of gamma variables, log Z = 0: what each has left to gain from a normal, their number makes nats."""
    shape, dim = 4.0, 300

    def log_density(z):
        x = z / jnp.sqrt(shape) + jnp.log(shape)
        return jnp.sum(shape * x - jnp.exp(x)) - dim * (math.lgamma(shape) + 0.5 * math.log(shape))

    door = Door(identity_map(relbo.from_log_density(log_density, jnp.zeros(dim)), "affine"))
    learned = learning.learn_flow(jax.random.key(0), door)
    assert learned.flow.num_layers == 0 and learned.flow.skew is not None
    assert -2.5 < learned.elbo.value < 5 * learned.elbo.std_err  # the best normals: about -6.4


@pytest.mark.parametrize(("dim", "num_layers", "skewed"), [(64, 3, False), (65, 3, True), (257, 0, True)])
def test_coordinates_are_skewed_where_layers_have_too_few_units(dim, num_layers, skewed):
    flow = learning._new_flow(dim, np.float32)
    assert flow.num_layers == num_layers and (flow.skew is not None) is skewed
    assert skewed is (flow.num_units < dim)


def test_a_broken_corner_does_not_break_training(one_round):
    def cornered(z):
        return jnp.where(z[0] > 1.0, jnp.nan, bent_log_density(z))

    door = Door(identity_map(relbo.from_log_density(cornered, jnp.zeros(DIM)), "affine"))
    trained = learning._round(
        jax.random.key(0),
        np.random.default_rng(0),
        door,
        identity_flow(DIM, np.float32),
        num_steps=20,
        rate=1e-2,
        index=0,
    )
    leaves = jax.tree.leaves(trained)
    assert all(np.isfinite(leaf).all() for leaf in leaves) and np.any(np.asarray(trained.layers.scale_linear) != 0)


def test_a_flow_in_one_of_two_modes_does_not_cover_the_mixture():
    def two_modes(z):
        far = jnp.array([9.0, 0.0, 0.0])
        return jnp.logaddexp(-0.5 * jnp.sum(z**2) + jnp.log(0.9), -0.5 * jnp.sum((z - far) ** 2) + jnp.log(0.1))

    target = relbo.from_log_density(two_modes, jnp.zeros(DIM))
    family = relbo.make_booster(target).family
    door = Door(identity_map(target, "affine"))
    locs = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]], np.float32)
    params = jax.vmap(family.init)(locs, np.ones_like(locs))
    key, noise = jax.random.key(0), np.random.default_rng(0).standard_normal((2048, DIM)).astype(np.float32)
    learned = learning._judged(door, identity_flow(DIM, np.float32), noise)
    both, first = np.log(np.array([0.9, 0.1], np.float32)), np.array([0.0, -np.inf], np.float32)
    assert not learning.covers(key, door, learned, Mixture(family, params, both), None)
    assert learning.covers(key, door, learned, Mixture(family, params, first), None)
    assert not learning.covers(key, door, learned, Mixture(family, params, first), params)


def test_a_neck_whose_curvature_promises_mass_is_no_mode():
    """A spike so narrow that there is nothing in it, and whose curvature is not that of the hill around it."""

    def spiked(z):
        return -0.5 * jnp.sum(z**2) + 2.0 * jnp.exp(-jnp.sum((z - 4.0) ** 2) / 2e-4)

    target = relbo.from_log_density(spiked, jnp.zeros(DIM))
    family = relbo.make_booster(target).family
    door = Door(identity_map(target, "affine"))
    mode = jax.vmap(family.init)(np.full((1, DIM), 4.0, np.float32), np.full((1, DIM), 0.01, np.float32))
    noise = np.random.default_rng(0).standard_normal((2048, DIM)).astype(np.float32)
    learned = learning._judged(door, identity_flow(DIM, np.float32), noise)
    alone = Mixture(
        family, jax.vmap(family.init)(np.zeros((1, DIM), np.float32), np.ones((1, DIM), np.float32)), np.zeros(1)
    )
    assert learning.covers(jax.random.key(0), door, learned, alone, mode)


# Fits


@pytest.fixture(scope="module")
def fitted():
    return relbo.fit(bent(), seed=0, precondition="flow", max_components=2, progress_bar=False)


def test_a_fit_in_learned_coordinates_is_near_and_normalised(fitted):
    assert fitted.whitened.flow is not None and fitted.evaluations["flow"] > 0
    assert -0.1 < fitted.elbo.value < 0.02
    draws = fitted.sample_unconstrained(4000, seed=1)
    ratios = np.asarray(jax.vmap(bent_log_density)(draws), np.float64) - np.asarray(fitted.log_prob(draws), np.float64)
    std_err = math.hypot(ratios.std() / math.sqrt(len(ratios)), fitted.elbo.std_err)
    assert abs(ratios.mean() - fitted.elbo.value) < 5 * std_err
    np.testing.assert_allclose(fitted.log_target(draws[:10]), jax.vmap(bent_log_density)(draws[:10]), rtol=1e-3)


def test_files_hold_the_flow_to_the_last_bit(fitted, tmp_path):
    relbo.save(fitted, tmp_path / "fit.relbo", num_draws=0)
    loaded = relbo.load(tmp_path / "fit.relbo")
    draws = fitted.sample_unconstrained(100, seed=2)
    np.testing.assert_array_equal(loaded.sample_unconstrained(100, seed=2), draws)
    np.testing.assert_array_equal(loaded.log_prob(draws), fitted.log_prob(draws))
    again = relbo.load(tmp_path / "fit.relbo", target=bent())
    assert again.whitened.flow.num_layers == fitted.whitened.flow.num_layers


def test_a_checkpoint_holds_what_was_before_the_flow(fitted, tmp_path):
    before = dataclasses.replace(fitted.state, target=fitted.whitened.affine, iteration=3)
    state = dataclasses.replace(fitted.state, other=before)
    posterior = Posterior(
        fitted.mixture, fitted.whitened, fitted.elbo, fitted.trace, fitted.stop, fitted.booster, state
    )
    path = tmp_path / "half.relbo"
    path.write_bytes(b"".join(to_bytes(posterior)))
    found = read(path).posterior.state
    assert isinstance(found.other, State) and found.other.iteration == 3 and found.other.target.flow is None
    for name in ("mixture", "modes", "memory"):
        for one, other in zip(*(jax.tree.leaves(getattr(s, name)) for s in (before, found.other)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_damaged_size_is_refused(fitted, tmp_path):
    from relbo.storage.layouts import flow_like

    with pytest.raises(ValueError, match="a flow cannot have"):
        flow_like({"layers": 3, "units": 2**40}, DIM, np.dtype(np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(1)),
        lambda: relbo.from_callable(lambda z: -0.5 * float(np.sum(z**2)), 2, gradient=False),
    ],
)
def test_a_flow_needs_gradients_and_something_to_bend(make):
    with pytest.raises(ValueError, match=r'precondition="flow" needs gradients.*"affine"'):
        relbo.make_booster(make(), precondition="flow")


# When a flow is tried


def record(kind, num_components, spread, gain=None, accepted=True):
    estimate = Estimate(0.0, 0.001, 100)
    improvement = None if gain is None else Estimate(gain, 0.001, 100)
    return Record(
        0, kind, accepted, num_components, np.ones(1), 1.0, estimate, improvement, None, None, 0.0, 0, 0, 0, 0.0, spread
    )


FIRST, QUICK = record("first", 1, 1.2), record("fully-corrective", 5, 0.5, 0.8)
SLOW, NEAR = record("fully-corrective", 9, 0.85, 0.004), record("fully-corrective", 9, 0.15, 0.002)
TRIED = record("flow", 9, math.nan, accepted=False)


@pytest.mark.parametrize(
    ("records", "ended", "expected"),
    [
        ([FIRST], False, True),
        ([NEAR], False, False),
        ([FIRST, QUICK], False, False),
        ([FIRST, QUICK, NEAR], True, False),
        ([FIRST, QUICK, SLOW], True, True),
        ([FIRST, QUICK, SLOW, TRIED], True, False),
    ],
)
def test_a_flow_is_tried_once_and_only_where_it_may_pay(records, ended, expected):
    assert learning.worth_learning(records, ended) is expected

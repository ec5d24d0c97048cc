"""The door: the one place where a model is evaluated, and what is decided there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import CORRELATED, door_of, mean_is, target_of
from relbo.coordinates.race import find_map
from relbo.families import LocationScale
from relbo.model.door import Door, Seen, anchored
from relbo.model.whitening import Whitened, identity_map

POINTS = np.random.default_rng(0).normal(size=(11, 2)).astype(np.float32)


def whitened(target, loc=(0.4, -0.2), factor=((1.5, 0.0), (-0.7, 0.3))) -> Whitened:
    family = LocationScale()
    params = family.init(jnp.asarray(loc, target.dtype), jnp.asarray(factor, target.dtype))
    return Whitened(target, family, params)


def test_values_and_gradients_are_those_of_the_whitened_target():
    """log p(m + A u) + log |det A|, against NumPy in double precision."""
    target = whitened(target_of("correlated"))
    matrix = np.array([[1.5, 0.0], [-0.7, 0.3]])
    z = np.array([0.4, -0.2]) + POINTS.astype(float) @ matrix.T
    values, slopes = Door(target).numbers(POINTS, "test")
    expected = CORRELATED.log_density(z) + np.log(1.5 * 0.3)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-4)
    slope = -(z - CORRELATED.mean) @ np.linalg.inv(CORRELATED.covariance)
    np.testing.assert_allclose(slopes, slope @ matrix, rtol=1e-4, atol=1e-3)
    assert values.dtype == slopes.dtype == np.float64, "what is computed with on the host"


@pytest.mark.parametrize("at_once", [1, 3, 4, 11, 64])
@pytest.mark.parametrize("num", [1, 4, 11])
def test_blocks_and_padding_change_nothing(num, at_once):
    """Up to the rounding of another order of summation."""
    target = whitened(target_of("correlated"))
    expected = Seen(*jax.vmap(jax.value_and_grad(target.log_density))(jnp.asarray(POINTS[:num])))
    door = Door(target, at_once)
    seen, (values, slopes) = door(POINTS[:num], "a"), door.numbers(POINTS[:num], "b")
    assert seen.values.shape == values.shape == (num,) and seen.slopes.shape == slopes.shape == (num, 2)
    for one in (seen, Seen(values, slopes)):
        np.testing.assert_allclose(one.values, expected.values, rtol=1e-5)
        np.testing.assert_allclose(one.slopes, expected.slopes, rtol=1e-4, atol=1e-4)
    assert door.spent == {"a": num, "b": num}, "what is padded does not count"


def counting(dim=2, batched=True):
    """A target on the host that counts its own points."""
    calls = []

    def function(z):
        calls.append(z.copy())
        return -0.5 * np.sum(z**2, axis=-1), -z

    target = relbo.from_callable(function, dim=dim, batched=batched)
    calls.clear()  # those of its checks
    return target, calls


def test_a_door_for_few_points_sees_the_same_and_counts_in_the_same_place():
    door = Door(whitened(target_of("correlated")))
    few = door.for_few(3)
    assert few.block == 4 < door.block and door.for_few(10 * door.block) is door
    points = np.random.default_rng(0).normal(size=(3, door.dim)).astype(np.float32)
    for one, other in zip(door(points, "a"), few(points, "b"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert door.spent == {"a": 3, "b": 3}


def test_only_what_is_used_is_evaluated():
    target, calls = counting()
    for door in (Door(whitened(target_of("correlated")), 3), door_of(target)):
        seen = door(POINTS, "test", num_used=5)
        assert seen.values.shape == (11,) and np.all(seen.values[:5] != 0)
        assert door.spent == {"test": 5} and door.num_evaluations == 5
        door(POINTS, "more", num_used=99)
        assert door.num_evaluations == 5 + 11
    assert [len(points) for points in calls] == [5, 11]
    np.testing.assert_allclose(calls[0], POINTS[:5], rtol=1e-6)
    blocks = Door(whitened(target_of("correlated")), 3)(POINTS, "test", num_used=5)
    assert np.all(blocks.values[6:] == 0) and np.all(blocks.slopes[6:] == 0), "two blocks of three, and no more"


def test_evaluations_are_counted_by_purpose_through_all_coordinates():
    door = door_of(target_of("correlated"))
    other = door.through(whitened(target_of("correlated")))
    door.numbers(POINTS, "walks")
    other(POINTS, "walks")
    other(POINTS[:2], "race")
    assert door.spent == {"walks": 22, "race": 2} and door.num_evaluations == other.num_evaluations == 24


def cut(z):
    value = jnp.where(z[0] > 1.0, jnp.inf, -0.5 * jnp.sum(z**2))
    value = jnp.where(z[0] < -1.0, -jnp.inf, value)
    return jnp.where(z[1] > 1.0, jnp.nan, value)


@pytest.mark.parametrize("on_host", [False, True])
def test_broken_is_nan_and_zero_density_is_not(on_host):
    """+inf is as broken as NaN; -inf stays."""
    points = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.5, 0.0]], np.float32)
    target = relbo.from_log_density(cut, jnp.zeros(2))
    if on_host:
        each = jax.jit(jax.value_and_grad(cut))
        target = relbo.from_callable(lambda z: tuple(map(np.asarray, each(jnp.asarray(z)))), dim=2)
    for values in (door_of(target)(points, "a").values, door_of(target).numbers(points, "b")[0]):
        assert np.isnan(values[0]) and np.isneginf(values[1]) and np.isnan(values[2])
        np.testing.assert_allclose(values[3], -0.125, rtol=1e-6)


def test_a_target_without_gradients_has_zeros():
    target = relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2), differentiable=False)
    values, slopes = door_of(target).numbers(POINTS, "test")
    np.testing.assert_allclose(values, -0.5 * np.sum(POINTS**2, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(slopes, 0.0)


# Functions on the host


def test_a_function_on_the_host_is_called_directly_and_in_double_precision():
    target, calls = counting()
    door = Door(whitened(target))
    values, slopes = door.numbers(POINTS, "test")
    matrix = np.array([[1.5, 0.0], [-0.7, 0.3]])
    z = np.array([0.4, -0.2]) + POINTS.astype(float) @ matrix.T
    assert len(calls) == 1 and calls[0].dtype == np.float64
    np.testing.assert_allclose(calls[0], z, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values, -0.5 * np.sum(z**2, axis=1) + np.log(1.5 * 0.3), rtol=1e-5)
    np.testing.assert_allclose(slopes, -z @ matrix, rtol=1e-4, atol=1e-4)


class Broken(Exception):
    pass


def test_an_exception_arrives_as_it_is():
    """No callback inside XLA, which would make an error of its own of it; the message of `from_callable` is kept."""
    state = {"broken": False}

    def function(z):
        if state["broken"]:
            raise Broken("no such star")
        return -0.5 * z @ z, -z

    target = relbo.from_callable(function, dim=2)
    state["broken"] = True
    with pytest.raises(RuntimeError, match="from_callable raised Broken: no such star") as seen:
        door_of(target).numbers(POINTS, "test")
    assert isinstance(seen.value.__cause__, Broken)


def test_an_interruption_arrives_as_it_is():
    target = relbo.from_callable(lambda z: (-0.5 * z @ z, -z), dim=2)

    def interrupt(z):
        raise KeyboardInterrupt

    object.__setattr__(target.host, "function", interrupt)
    with pytest.raises(KeyboardInterrupt):
        door_of(target).numbers(POINTS, "test")


def test_a_fit_counts_what_the_function_counts():
    """All evaluations of a fit, by all purposes, are those that the user's function has seen."""
    target, calls = counting(dim=1)
    posterior = relbo.fit(target, max_components=3, progress_bar=False, oracle=relbo.NaturalOracle(num_steps=20))
    looked_at = 2 * 16  # points at which the finished fit is looked at twice, for randomness
    assert sum(len(points) for points in calls) - looked_at == posterior.num_evaluations
    assert posterior.num_evaluations == sum(posterior.evaluations.values())
    assert posterior.num_evaluations == sum(record.evaluations for record in posterior.trace)
    calls.clear()
    relbo.diagnose(posterior, 200)
    assert calls, "and a diagnosis calls it, too"


# Minibatches


def regression():
    rng = np.random.default_rng(3)
    x = rng.normal(size=400).astype(np.float32)
    y = (0.7 * x + rng.normal(size=400)).astype(np.float32)
    return x, y


def minibatch_target():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", 400, subsample_size=20):
            rows = numpyro.subsample(x, event_dim=0), numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(slope * rows[0], 1.0), obs=rows[1])

    return relbo.from_numpyro(model, *regression())


@pytest.mark.parametrize(("anchor", "most_noise"), [(0.7, 1.0), (0.0, 50.0)])
def test_minibatches_have_the_mean_of_all_data(anchor, most_noise):
    """Over keys; without a batch all data are used; and an anchor nearby takes nearly all of the noise away."""
    target = minibatch_target()
    assert target.subsamples
    door = anchored(Door(identity_map(target, "none")), np.array([anchor], np.float32))
    assert door.spent == {"anchor": 1}
    points = np.array([[0.6], [0.75]], np.float32)
    exact_values, exact_slopes = door.numbers(points, "all")
    keys = jax.random.split(jax.random.key(0), 20)
    seen = [door(points, "some", batch=(key, step)) for key in keys for step in range(20)]
    values, slopes = (np.stack(parts).astype(float) for parts in zip(*seen, strict=True))
    assert mean_is(values, exact_values, rounding=1e-2) and mean_is(slopes, exact_slopes, rounding=1e-2)
    assert 0 < values[:, 0].std() < most_noise
    assert anchor or values[:, 0].std() > 2.0, "of a far anchor they are noisy: these are minibatches"
    again = door(points, "some", batch=(keys[0], 0))
    np.testing.assert_array_equal(again.values, seen[0].values)


def test_a_fit_without_a_map_climbs_on_minibatches():
    """Anchored where it starts, and the walks of a fit with a map, too."""
    estimator = relbo.objectives.StickingTheLanding()
    door = find_map(jax.random.key(0), door_of(minibatch_target()), relbo.Preconditioner("none"), estimator)
    points = np.full((1, 1), 0.5, np.float32)
    first, second = (float(door(points, "some", batch=(jax.random.key(0), step)).values[0]) for step in range(2))
    assert first != second


def test_all_blocks_of_a_call_see_the_same_minibatch():
    door = anchored(Door(identity_map(minibatch_target(), "none")), np.zeros(1, np.float32))
    same = door(np.full((300, 1), 0.5, np.float32), "some", batch=(jax.random.key(1), 7)).values
    assert np.unique(np.asarray(same)).size == 1

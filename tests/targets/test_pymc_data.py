"""The PyMC front door: names, axes, data, prediction, minibatches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_models import COUNTS, GROUP, X, Y, as_point, hierarchical, minibatches, quiet_pytensor, regression
from relbo.targets import from_pymc

__all__ = ["quiet_pytensor"]  # a fixture that pytest finds here

# names, axes, data


def test_names_axes_and_data():
    target = from_pymc(regression())
    assert target.coordinate_names() == ["beta[0]", "beta[1]", "beta[2]", "sigma"]
    assert sorted(target.constrain(target.initial[0])) == ["beta", "mu", "sigma"]
    dims = target.dims()
    assert dims["beta"] == ("feature",) and dims["mu"] == dims["y"] == ("row",) and dims["x"] == ("row", "feature")
    coords = target.coords()
    assert list(coords["feature"]) == ["a", "b", "c"] and list(coords["row"]) == list(range(12))
    np.testing.assert_allclose(target.observed_data()["y"], Y, rtol=1e-6)
    np.testing.assert_allclose(target.constant_data()["x"], X, rtol=1e-6)


def test_axes_without_a_name_get_one():
    with pm.Model(coords={"side": ["left", "right"]}) as model:
        pm.Deterministic("d", pm.Normal("x", shape=(2, 3)) ** 2, dims=("side", None))
    assert from_pymc(model).dims() == {"d": ("side", "d_dim_1")}


def test_pointwise_log_likelihood():
    model = regression()
    target = from_pymc(model)
    z = target.initial[3]
    terms = jax.jit(target.log_likelihood)(z)
    params = target.constrain(z)
    residuals = (Y - np.asarray(params["mu"])) / params["sigma"]
    expected = -0.5 * residuals**2 - np.log(params["sigma"]) - 0.5 * np.log(2 * np.pi)
    assert list(terms) == ["y"]
    np.testing.assert_allclose(terms["y"], expected, rtol=1e-4)


def test_integer_data_stay_integers():
    with pm.Model() as model:
        group = pm.Data("group", GROUP)
        pm.Poisson("y", pt.exp(pm.Normal("a", shape=3)[group]), observed=pm.Data("counts", COUNTS))
    target = from_pymc(model)
    assert all(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in target.data)
    reference = model.compile_logp()({"a": np.array([0.1, 0.2, 0.3])})
    np.testing.assert_allclose(target.log_density(jnp.array([0.1, 0.2, 0.3])), reference, rtol=1e-5)


def test_new_data_meet_the_same_compiled_program():
    traces = []

    @eqx.filter_jit
    def program(target, z):
        traces.append(1)
        return target.log_density(z)

    model = regression()
    first = from_pymc(model)
    z = first.initial[1]
    before = program(first, z)
    with model:
        pm.set_data({"x": X + 1})
    second = from_pymc(model)
    after = program(second, z)
    third = second.with_data(x=X)
    assert program(third, z) == before != after and len(traces) == 1
    np.testing.assert_allclose(model["x"].get_value(), X + 1)
    np.testing.assert_allclose(after, model.compile_logp()(as_point(model, second, z)), rtol=1e-5)
    hash(jax.tree.structure(first))
    with pytest.raises(ValueError, match=r"no pm.Data called 'z'. It has: x, y_data"):
        second.with_data(z=X)


def test_a_model_that_grew_is_another_model():
    model = regression()
    assert from_pymc(model).dim == 4
    with model:
        pm.Normal("more")
    assert from_pymc(model).dim == 5


def test_new_sizes_are_seen():
    with pm.Model() as model:
        model.add_coord("item", length=2)
        pm.Normal("x", dims="item")
        pm.Deterministic("ones", pt.ones(model.dim_lengths["item"]))
    assert from_pymc(model).dim == 2
    model.set_dim("item", 3)
    target = from_pymc(model)
    assert target.dim == 3 and target.constrain(target.initial[0])["ones"].shape == (3,)


# prediction


def test_prediction_takes_new_data_and_leaves_the_model_alone():
    model = regression()
    target = from_pymc(model)
    draws = jax.vmap(target.constrain)(jnp.tile(jnp.array([1.0, -2.0, 0.5, np.log(1e-3)]), (5, 1)))
    found = target.predict(draws, 0)["y"]
    assert found.shape == (5, 12)
    np.testing.assert_allclose(found, np.tile(X @ [1.0, -2.0, 0.5], (5, 1)), atol=0.02)
    np.testing.assert_array_equal(found, target.predict(draws, 0)["y"])

    new = np.eye(3)[:2]
    found = target.predict(draws, 0, x=new, y_data=np.zeros(2))["y"]
    np.testing.assert_allclose(found, np.tile([1.0, -2.0], (5, 1)), atol=0.02)
    np.testing.assert_allclose(model["x"].get_value(), X, rtol=1e-6)
    with pytest.raises(ValueError, match=r"no pm.Data called 'z'"):
        target.predict(draws, 0, z=new)
    with pytest.raises(TypeError, match=r"by the names of pm\.Data"):
        target.predict(draws, 0, new)


def test_prediction_uses_the_draws_of_variables_with_dims():
    """PyMC draws a variable anew if it cannot see that its dims have kept their lengths and labels."""
    model = hierarchical()
    target = from_pymc(model)
    z = target.unconstrain({"tau": 1.0, "mu": 0.0, "theta": jnp.array([-9.0, 5.0, -9.0]), "alpha": 1e4})
    draws = jax.vmap(target.constrain)(jnp.tile(z, (50, 1)))
    mean = target.predict(draws, 1)["y"].mean(0)
    assert np.all(mean[GROUP != 1] < 1) and np.all(np.abs(mean[GROUP == 1] / np.exp(5.0) - 1) < 0.1)


def test_labels_changed_with_the_length_are_restored():
    with pm.Model(coords={"row": list("abcdefghijkl")}) as model:
        x = pm.Data("x", X[:, 0], dims="row")
        pm.Normal("y", x * pm.Normal("slope"), 1e-3, observed=pm.Data("y_data", Y, dims="row"), dims="row")
    target = from_pymc(model)
    found = target.predict({"slope": np.full(4, 2.0)}, 0, x=np.arange(3.0), y_data=np.zeros(3))["y"]
    np.testing.assert_allclose(found, np.tile([0.0, 2.0, 4.0], (4, 1)), atol=0.02)
    assert model.coords["row"] == tuple("abcdefghijkl") and model["x"].get_value().shape == (12,)
    assert model.dim_lengths["row"].eval() == 12


def test_prior_draws():
    parameters, predictive = from_pymc(regression()).sample_prior(7, seed=3)
    assert sorted(parameters) == ["beta", "mu", "sigma"] and list(predictive) == ["y"]
    assert parameters["beta"].shape == (7, 3) and predictive["y"].shape == (7, 12)
    np.testing.assert_allclose(parameters["mu"], parameters["beta"] @ X.T, rtol=1e-5, atol=1e-5)


# minibatches


def test_minibatches_are_unbiased():
    with jax.enable_x64():
        target = from_pymc(minibatches())
        whole = from_pymc(regression())
        assert target.subsamples and not whole.subsamples
        z = jnp.array([0.3, -1.0, 0.2, 0.4])
        value = target.log_density(z)
        np.testing.assert_allclose(value, whole.log_density(z), rtol=1e-14)
        parts = np.random.default_rng(2).permutation(12).reshape(3, 4)
        on_batch = jax.jit(jax.vmap(lambda rows: target.log_density_on(z, (rows,))))
        values = on_batch(jnp.asarray(parts))
        assert np.ptp(values) > 1
        np.testing.assert_allclose(values.mean(), value, rtol=1e-13)
        np.testing.assert_allclose(target.constrain(z)["mu"], X @ z[:3], rtol=1e-12)
        np.testing.assert_allclose(target.log_likelihood(z)["y"], whole.log_likelihood(z)["y"], rtol=1e-12)
        np.testing.assert_allclose(target.observed_data()["y"], Y)


def test_batches_are_rows():
    target = from_pymc(minibatches())
    (rows,) = jax.jit(jax.vmap(target.draw_batch))(jax.random.split(jax.random.key(0), 200))
    assert rows.shape == (200, 4) and jnp.issubdtype(rows.dtype, jnp.integer)
    assert rows.min() == 0 and rows.max() == 11
    gradient = jax.jit(jax.grad(target.log_density_on))(target.initial[0], (rows[0],))
    assert np.isfinite(gradient).all()


def test_what_a_minibatch_cannot_be_used_for():
    with pytest.raises(ValueError, match=r"'y' uses pm.Minibatch without total_size.* Pass total_size"):
        from_pymc(minibatches(total_size=None))
    with pm.Model() as model:
        pm.Potential("p", (pm.Minibatch(Y, batch_size=2) * pm.Normal("x")).sum())
    with pytest.raises(ValueError, match=r"'p' depends on pm.Minibatch but is not an observed variable"):
        from_pymc(model)
    with pytest.raises(ValueError, match=r"predicts random rows only"):
        from_pymc(minibatches()).predict({}, 0)

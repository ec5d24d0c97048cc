"""The PyMC front door: densities against PyMC's own, data, minibatches, prediction, refusals."""

import importlib
import os
import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import as_op
from scipy import special

import relbo
from helpers import mean_is
from relbo.targets import AbstractTarget, as_target, from_pymc
from relbo.targets.pymc_ops import erfcx, jax_backend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=12)
COUNTS = RNG.poisson(3.0, size=12)
GROUP = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 1, 2])


def regression():
    with pm.Model(coords={"feature": ["a", "b", "c"]}) as model:
        x = pm.Data("x", X, dims=("row", "feature"))
        y = pm.Data("y_data", Y, dims="row")
        beta = pm.Normal("beta", dims="feature")
        sigma = pm.HalfNormal("sigma")
        mu = pm.Deterministic("mu", x @ beta, dims="row")
        pm.Normal("y", mu, sigma, observed=y, shape=mu.shape, dims="row")
    return model


def hierarchical():
    with pm.Model(coords={"group": list("abc")}) as model:
        tau = pm.HalfCauchy("tau", 2.0)
        theta = pm.Normal("theta", pm.Normal("mu", 0, 5), tau, dims="group")
        alpha = pm.Exponential("alpha", 1.0)
        pm.NegativeBinomial("y", mu=pt.exp(theta)[GROUP], alpha=alpha, observed=COUNTS)
    return model


def lkj():
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", pm.Normal("mu", shape=3), chol=chol, observed=X)
    return model


def ordered_mixture():
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", [1.0, 2.0])
        means = pm.Normal("means", 0, 3, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
        pm.NormalMixture("y", weights, means, pm.HalfNormal("sigma"), observed=Y)
    return model


def zero_sum():
    with pm.Model() as model:
        effect = pm.ZeroSumNormal("effect", shape=3)
        pm.Normal("y", effect[GROUP], pm.Gamma("sigma", 2, 2), observed=Y)
    return model


def simplex():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.array([1.0, 2.0, 3.0]))
        pm.Multinomial("y", n=10, p=p, observed=[[3, 3, 4], [1, 2, 7]])
    return model


def potential():
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Potential("ring", -10 * (pt.sqrt((x**2).sum() + 1e-6) - 2) ** 2)
    return model


def missing():
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=np.where(Y > 1, np.nan, Y))
    return model


def censored():
    with pm.Model() as model:
        latent = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=np.clip(Y, -1, 1))
    return model


def truncated():
    with pm.Model() as model:
        latent = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        pm.Truncated("y", latent, lower=-1.0, upper=1.0, observed=np.clip(Y, -0.9, 0.9))
    return model


def logistic():
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=X @ pm.Normal("beta", shape=3), observed=Y > 0)
    return model


def bounds_that_are_parameters():
    with pm.Model() as model:
        low = pm.Normal("low")
        pm.Uniform("x", low, low + pm.HalfNormal("width"), shape=2)
    return model


def wishart():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Wishart("w", nu=4, V=scale * np.eye(2), observed=np.array([[2.0, 0.3], [0.3, 1.0]]))
    return model


MODELS = {
    make.__name__: make
    for make in (
        regression, hierarchical, lkj, ordered_mixture, zero_sum, simplex, potential, missing, censored, truncated,
        logistic, bounds_that_are_parameters, wishart,
    )
}  # fmt: skip


def minibatches(total_size=12, batch_size=4):
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y_data", Y)
        x_rows, y_rows = pm.Minibatch(x, y, batch_size=batch_size)
        beta, sigma = pm.Normal("beta", shape=3), pm.HalfNormal("sigma")
        mu = pm.Deterministic("mu", x_rows @ beta)
        pm.Normal("y", mu, sigma, observed=y_rows, total_size=total_size)
    return model


@pytest.fixture(scope="module", autouse=True)
def _quiet_pytensor():
    """PyTensor's interpreter: the tests compare numbers, and C takes seconds to compile."""
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield


def as_point(model, target, z):
    return dict(zip([value.name for value in model.value_vars], target._values(z), strict=True))


# the density


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_density_gradient_and_maps_are_those_of_pymc(make):
    model = make()
    reference, slope = model.compile_logp(), model.compile_dlogp()
    values = model.compile_fn(model.unobserved_value_vars, inputs=model.value_vars, on_unused_input="ignore")
    names = [variable.name for variable in model.unobserved_value_vars]
    with jax.enable_x64():
        target = from_pymc(model)
        assert isinstance(target, AbstractTarget) and target.dtype == np.float64 and target.twice_differentiable

        @jax.jit
        def look(z):
            params = target.constrain(z)
            return *jax.value_and_grad(target.log_density)(z), params, target.unconstrain(params)

        for z in np.random.default_rng(1).normal(size=(3, target.dim)):
            point = {name: np.asarray(value) for name, value in as_point(model, target, jnp.asarray(z)).items()}
            value, gradient, params, back = look(z)
            np.testing.assert_allclose(value, reference(point), rtol=1e-8)
            np.testing.assert_allclose(gradient, slope(point), rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(back, z, rtol=1e-6, atol=1e-8)
            expected = {name: value for name, value in zip(names, values(point), strict=True) if name[-2:] != "__"}
            assert list(target.constrain(jnp.asarray(z))) == list(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(params[name], value, rtol=1e-8, atol=1e-12)


def test_density_by_hand():
    with jax.enable_x64():
        target = from_pymc(regression())
        beta, log_sigma = np.array([0.3, -1.0, 0.2]), 0.4
        sigma = np.exp(log_sigma)
        expected = -0.5 * beta @ beta - 1.5 * np.log(2 * np.pi)
        expected += 0.5 * np.log(2 / np.pi) - sigma**2 / 2 + log_sigma
        residuals = (Y - X @ beta) / sigma
        expected += np.sum(-0.5 * residuals**2 - log_sigma - 0.5 * np.log(2 * np.pi))
        value = target.log_density(jnp.array([*beta, log_sigma]))
        np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize("make", [regression, lkj, censored, minibatches])
def test_float32_is_quiet_and_close(make):
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = from_pymc(model)
        assert target.dtype == target.initial.dtype == np.float32
        value, gradient = jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))(target.initial)
        target.constrain(target.initial[0])
    assert value.dtype == gradient.dtype == np.float32 and np.isfinite(gradient).all()
    with jax.enable_x64():
        exact = from_pymc(model)
        expected = jax.vmap(exact.log_density)(jnp.asarray(target.initial, jnp.float64))
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_it_batches_and_checks_its_points():
    target = from_pymc(regression())
    assert target.initial.shape[1] == target.dim == 4 and len(target.initial) > 1
    np.testing.assert_allclose(target.initial[0], 0.0)
    with pytest.raises(ValueError, match=r"expected one point of shape .* Use jax.vmap"):
        target.log_density(jnp.zeros(5))
    with pytest.raises(ValueError, match=r"missing: sigma; unknown to the model: other"):
        target.unconstrain({"beta": jnp.zeros(3), "other": 1.0})
    with pytest.raises(ValueError, match=r"'beta' must have shape \(3,\), got \(2, 3\)"):
        target.unconstrain({"beta": jnp.zeros((2, 3)), "sigma": 1.0})


def test_a_parameter_outside_its_domain_has_zero_density():
    with pm.Model() as model:
        pm.Normal("y", 0, pm.Normal("scale", initval=1.0), observed=1.0)
    target = from_pymc(model)
    assert target.log_density(jnp.array([-1.0])) == -np.inf


def test_gradients_survive_in_the_tails():
    """Where PyMC's switch has a branch, not taken, of infinite slope."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 100)
        pm.Censored("y", pm.Normal.dist(mu, 1), lower=0.0, upper=None, observed=[0.0, 2.0])
    with pm.Model() as logits:
        pm.Bernoulli("y", logit_p=pm.Normal("x", 0, 100), observed=[0, 1])
    points = jnp.array([[-60.0], [-9.0], [9.0], [60.0]])
    chance = jax.nn.sigmoid(points[:, 0])
    expected = {model: [62.006, 11.0009, -16.109423, -118.022657], logits: 1 - 2 * chance - points[:, 0] / 1e4}
    for each, gradient in expected.items():
        gradients = jax.vmap(jax.grad(from_pymc(each).log_density))(points)
        np.testing.assert_allclose(gradients[:, 0], gradient, rtol=1e-5)


def test_logarithm_of_erfc_holds_where_erfc_underflows():
    """PyTensor would switch formulas where float64 underflows, in a program that runs in float32."""
    with pm.Model() as model:
        pm.Potential("p", pt.log(pt.erfc(pm.Flat("x"))))
    x = np.array([-20.0, -1.0, 0.0, 2.0, 9.0, 12.0, 25.0, 1e3])
    values, slopes = jax.vmap(jax.value_and_grad(from_pymc(model).log_density))(jnp.asarray(x, jnp.float32)[:, None])
    np.testing.assert_allclose(values, special.log_ndtr(-x * np.sqrt(2)) + np.log(2), rtol=1e-5)
    tiny = np.finfo(np.float32).tiny  # the first slope underflows
    np.testing.assert_allclose(slopes[:, 0], -2 / np.sqrt(np.pi) / special.erfcx(x), rtol=1e-5, atol=tiny)


def test_erfcx():
    x = np.concatenate([np.linspace(-20, 20, 2001), np.logspace(1, 8, 50)])
    with jax.enable_x64():
        np.testing.assert_allclose(erfcx(jnp.asarray(x)), special.erfcx(x), rtol=4e-15)
        slopes = jax.vmap(jax.grad(erfcx))(jnp.asarray(x))
        np.testing.assert_allclose(slopes, 2 * x * special.erfcx(x) - 2 / np.sqrt(np.pi), rtol=1e-13, atol=1e-14)
        assert np.isfinite(jax.grad(erfcx)(jnp.array(-100.0)))
    x = x[x > -5]
    np.testing.assert_allclose(erfcx(jnp.asarray(x, jnp.float32)), special.erfcx(x.astype(np.float32)), rtol=3e-6)


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


# refusals


def test_refusals():
    with pytest.raises(TypeError, match=r"takes a pymc.Model, got int"):
        from_pymc(3)
    with pm.Model() as empty:
        pm.Normal("y", 0, 1, observed=1.0)
    with pytest.raises(ValueError, match="no free random variables"):
        from_pymc(empty)
    with pm.Model() as discrete:
        switch, coin = pm.Poisson("switch", 3.0), pm.Bernoulli("coin", 0.5)
        pm.Normal("y", switch + coin, pm.HalfNormal("sigma"), observed=1.0)
    with pytest.raises(ValueError, match=r"free variables switch, coin are discrete.* Marginalise"):
        from_pymc(discrete)
    with pm.Model() as impossible:
        pm.Normal("y", 0, pm.Normal("scale", initval=-1.0), observed=1.0)
    with pytest.raises(ValueError, match=r"-inf \(zero density\) at the first starting point") as caught:
        from_pymc(impossible)
    assert "model.debug()" in caught.value.__notes__[0]
    with pm.Model() as random:
        pm.Deterministic("noise", pm.Normal("x") + pm.Normal.dist())
    with pytest.raises(ValueError, match="random numbers outside its named random variables"):
        from_pymc(random)


def test_an_operation_without_translation_is_named():
    @as_op(itypes=[pt.dscalar], otypes=[pt.dscalar])
    def opaque(x):
        return np.asarray(x**2)

    with pm.Model() as model:
        pm.Potential("p", -opaque(pm.Normal("x")))
    with pytest.raises(ValueError, match=r"cannot translate this model's log density to JAX.*opaque"):
        from_pymc(model)


def test_without_pymc_the_error_names_the_extra(monkeypatch):
    real = importlib.import_module

    def absent(name, *args):
        if name.partition(".")[0] == "pymc":
            raise ModuleNotFoundError("No module named 'pymc'", name="pymc")
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r'pip install "relbo\[pymc\]"'):
        from_pymc(object())


# the process around it


def test_the_process_is_left_as_it_was():
    """Neither XLA_FLAGS nor x64 change, though PyTensor's back end switches x64 on when it is imported."""
    code = (
        "import os, jax, relbo, pymc as pm\n"
        "with pm.Model() as model:\n"
        "    pm.Normal('x')\n"
        "target = relbo.from_pymc(model)\n"
        "assert not jax.config.jax_enable_x64 and target.dtype == 'float32'\n"
        "assert os.environ['XLA_FLAGS'] == '--xla_cpu_enable_fast_math=false'\n"
        "assert jax.device_count() == 1\n"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_importing_the_back_end_inside_a_context_keeps_the_global_choice():
    with jax.enable_x64():
        jax_backend.cache_clear()
        jax_backend()
    assert not jax.config.jax_enable_x64


# fitting


def test_as_target():
    target = from_pymc(potential())
    assert as_target(target) is target
    assert isinstance(as_target(potential()), AbstractTarget)
    with pytest.raises(ValueError, match="target must be a relbo target or a PyMC model, got int"):
        as_target(3)


def test_fit_takes_the_model_itself():
    """A normal posterior, whose mean is known."""
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("beta", shape=3), 1.0, observed=Y)
    posterior = relbo.fit(model, max_components=2, progress_bar=False)
    assert mean_is(posterior.sample(2000)["beta"], np.linalg.solve(X.T @ X + np.eye(3), X.T @ Y))

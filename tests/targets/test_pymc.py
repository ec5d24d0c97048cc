"""The PyMC front door: densities against PyMC's own, refusals, and the process around it."""

import importlib
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import as_op
from scipy import special

import relbo
from helpers import mean_is, quick_settings
from pymc_models import MODELS, X, Y, as_point, censored, lkj, minibatches, potential, quiet_pytensor, regression
from relbo.targets import AbstractTarget, as_target, from_pymc
from relbo.targets.pymc.ops import erfcx, jax_backend

__all__ = ["quiet_pytensor"]  # a fixture that pytest finds here

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
        pm.Normal("y", 0, -pm.HalfNormal("scale"), observed=1.0)
    with pytest.raises(ValueError, match=r"-inf \(zero density\) at model.initial_point\(\)") as caught:
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
    posterior = relbo.fit(model, max_components=1, **quick_settings())
    assert mean_is(posterior.sample(2000)["beta"], np.linalg.solve(X.T @ X + np.eye(3), X.T @ Y))

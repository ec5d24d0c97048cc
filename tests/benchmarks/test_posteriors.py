"""The models of the peer benchmark: finite everywhere, equal to their PyMC forms, with references that fit them."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from posteriors import MODELS, load_reference  # noqa: E402
from posteriors.bridge import log_z  # noqa: E402
from posteriors.charts import _horseshoe_point, _rest_of, horseshoe_chart  # noqa: E402
from posteriors.grids import GRIDS  # noqa: E402
from posteriors.quadrature import integrate  # noqa: E402
from targets import MissingData  # noqa: E402

SMALL = [name for name in MODELS if name not in ("german_credit", "logistic_100000")]


@pytest.mark.parametrize("name", SMALL)
def test_log_density_and_gradient_are_finite(name):
    model = MODELS[name]
    rng = np.random.default_rng(0)
    points = np.concatenate([np.zeros((1, model.dim)), rng.normal(0.0, 0.5, (3, model.dim))])
    both = jax.jit(jax.vmap(jax.value_and_grad(model.log_density), (0, *(None for _ in model.data()))))
    values, gradients = both(points.astype(np.float32), *model.data())
    assert values.shape == (4,) and gradients.shape == (4, model.dim)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()


def test_german_credit_without_its_file_says_so(monkeypatch):
    monkeypatch.delenv("RELBO_GERMAN_CREDIT", raising=False)
    with pytest.raises(MissingData, match="RELBO_GERMAN_CREDIT"):
        MODELS["german_credit"].data()


def test_host_density_is_the_log_density():
    model = MODELS["bioassay_callable"]
    with jax.enable_x64(True):
        for z in np.random.default_rng(0).normal(0.0, 3.0, (5, model.dim)):
            value, gradient = model.host_density(z, *model.data())
            expected = jax.value_and_grad(model.log_density)(z, *model.data())
            np.testing.assert_allclose(value, expected[0], rtol=1e-12)
            np.testing.assert_allclose(gradient, expected[1], rtol=1e-10, atol=1e-12)


FIRST, *OTHERS = [name for name, model in MODELS.items() if model.pymc is not None]


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_pymc_form_has_the_same_log_density(name):
    """In PyMC's own coordinates, which are ours. It keeps short constants in single precision: hence 1e-6."""
    model = MODELS[name]
    pymc_model = model.pymc()
    log_density = pymc_model.compile_logp(mode="FAST_COMPILE")
    shapes = {key: np.shape(value) for key, value in pymc_model.initial_point().items()}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    with jax.enable_x64(True):
        for z in np.random.default_rng(0).normal(0.0, 0.5, (3, model.dim)):
            parts = zip(shapes.items(), np.split(z, ends[:-1]), strict=True)
            found = float(log_density({key: part.reshape(shape) for (key, shape), part in parts}))
            assert abs(found - float(model.log_density(z, *model.data()))) < 1e-6 * abs(found)


@pytest.mark.parametrize("name", MODELS)
def test_reference_fits_its_model(name):
    reference, model = load_reference(name), MODELS[name]
    assert (reference.name, reference.dim) == (name, model.dim)
    for column in (reference.mean, reference.sd, reference.mean_mcse, reference.sd_mcse):
        assert len(column) == model.dim and np.isfinite(column).all()
    assert min(reference.sd) > 0 and min(reference.mean_mcse) >= 0 and min(reference.sd_mcse) >= 0
    assert reference.log_z is None or (np.isfinite(reference.log_z) and reference.log_z_std_err <= 0.01)
    assert reference.r_hat_max is None or reference.r_hat_max < 1.01
    assert reference.ess_min is None or reference.ess_min > 1000
    assert (reference.mode_mass is None) == (model.num_modes == 1)
    if reference.mode_mass is not None:
        assert len(reference.mode_mass) == model.num_modes
        assert sum(reference.mode_mass) == pytest.approx(1.0)
        labels = model.mode_of(np.random.default_rng(0).normal(0.0, 3.0, (50, model.dim)))
        assert labels.shape == (50,) and labels.min() >= 0 and labels.max() < model.num_modes


def test_quadrature_gives_the_committed_reference():
    model, reference = MODELS["eight_schools_centered"], load_reference("eight_schools_centered")
    with jax.enable_x64(True):
        found = integrate(GRIDS[model.name](model, model.data()))
    np.testing.assert_allclose(found.log_z, reference.log_z, rtol=1e-9)
    np.testing.assert_allclose(found.mean, reference.mean, rtol=1e-6)


@pytest.mark.slow
def test_horseshoe_without_slopes_is_the_horseshoe_integrated():
    """p(u) p(rest | u) = p(u, rest) up to the Jacobian of u: their ratio does not depend on the rest."""
    model = MODELS["horseshoe"]
    with jax.enable_x64(True):
        data, rng = model.data(), np.random.default_rng(0)
        chart = horseshoe_chart(model)
        u = rng.normal(size=chart.dim)
        center, factor = jax.jit(_rest_of)(u, data)

        @jax.jit
        def log_jacobian(white):
            rest = center + jax.scipy.linalg.solve_triangular(factor.T, white, lower=False)
            log_conditional = jnp.sum(jnp.log(jnp.diagonal(factor))) - 0.5 * white @ white
            log_conditional -= 0.5 * white.size * jnp.log(2 * jnp.pi)
            return chart.log_density(u, *data) + log_conditional - model.log_density(_horseshoe_point(u, rest), *data)

        expected = jnp.linalg.slogdet(jax.jit(jax.jacobian(lambda u: _horseshoe_point(u, center)[1:24]))(u))[1]
        for white in rng.normal(size=(3, center.size)):
            np.testing.assert_allclose(log_jacobian(white), expected, rtol=1e-8)


def test_bridge_finds_a_known_log_z_within_its_error():
    """Logs of gamma variables, which are skewed: log Z = 3 log Gamma(4)."""
    draws = np.log(np.random.default_rng(0).gamma(4.0, size=(8, 2000, 3)))
    value, std_err = log_z(lambda z: np.sum(4.0 * z - np.exp(z), axis=1), draws)
    assert std_err < 0.01
    assert abs(value - 3 * np.log(6.0)) < 7 * std_err  # Student-t with 7 degrees of freedom, false alarms 2e-4

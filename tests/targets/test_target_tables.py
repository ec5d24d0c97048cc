"""`print(target)`: a table of the parameters. And the model of a `with` block as a target."""

import textwrap

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest

import relbo
from lean_fits import undisturbed


def table(text: str) -> str:
    return textwrap.dedent(text).strip()


def test_a_log_density():
    example, supports = {"mu": jnp.zeros((2, 3)), "scale": {"tau": 1.0}}, {"scale": "positive"}
    target = relbo.from_log_density(lambda p: -jnp.sum(p["mu"] ** 2) - p["scale"]["tau"], example, supports=supports)
    assert str(target) == table("""
        JaxTarget: 7 unconstrained coordinates, float32
        parameter  shape   support   coordinates
        mu         (2, 3)  real      6
        scale.tau  ()      positive  1
    """)


def test_a_numpyro_model():
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        mean = numpyro.sample("mean", dist.Uniform(-1, 5))
        below = numpyro.sample("below", dist.Uniform(-1, mean))
        numpyro.deterministic("signal", mean / scale)
        numpyro.sample("y", dist.Normal(mean + below * share[0], scale), obs=y)

    assert str(relbo.from_numpyro(model, np.ones(4))) == table("""
        NumPyroTarget: 5 unconstrained coordinates, float32
        parameter  shape  support          coordinates
        scale      ()     positive         1
        share      (3,)   simplex          2
        mean       ()     interval(-1, 5)  1
        below      ()     interval         1
        signal     ()                      computed
    """)


@pytest.fixture
def model():
    with pm.Model() as model:
        mean, scale, rate = pm.Normal("mean"), pm.HalfNormal("scale"), pm.Beta("rate", 1, 1)
        pm.Deterministic("signal", mean / scale)
        pm.Normal("y", mean + rate, scale, observed=np.ones(3))
    return model


def test_a_pymc_model(model):
    assert str(relbo.from_pymc(model)) == table("""
        PyMCTarget: 3 unconstrained coordinates, float32
        parameter  shape  support        coordinates
        mean       ()     real           1
        scale      ()     positive       1
        rate       ()     unit interval  1
        signal     ()                    computed
    """)


def test_a_target_in_a_file_and_the_one_it_was(tmp_path):
    posterior = undisturbed()
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=0)
    assert str(relbo.load(tmp_path / "fit.relbo").target).startswith(
        "StoredTarget: 1 unconstrained coordinate, float32"
    )
    assert "z          (1,)   real     1" in str(posterior.target)


def test_the_open_pymc_model_is_fitted(model, monkeypatch):
    asked = []
    monkeypatch.setattr(relbo.loop.fitting, "make_booster", lambda target, **settings: asked.append(target) or 1 / 0)
    with model, pytest.raises(ZeroDivisionError):
        relbo.fit()
    assert asked[0].coordinate_names() == ["mean", "scale", "rate"]
    with pytest.raises(ValueError, match="there is no target to fit: pass one, or a PyMC model, or write `with model"):
        relbo.fit()

"""Draws that ArviZ understands: names, axes, log likelihood, attributes, files."""

import arviz as az
import equinox as eqx
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray

import relbo
from handmade import full_normals, posterior_of
from helpers import quick_settings
from relbo.views import arviz as arviz_export

matplotlib.use("Agg")

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(errors, effects=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.LogNormal(1, 0.5))
    with numpyro.plate("school", len(errors)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("doubled", 2 * theta)
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)


@pytest.fixture(scope="module")
def posterior():
    target = relbo.from_numpyro(schools, ERRORS, effects=EFFECTS)
    return relbo.fit(target, max_components=1, **quick_settings())


@pytest.fixture(scope="module")
def data(posterior):
    return relbo.to_arviz(posterior, num_draws=1000, num_chains=2, posterior_predictive=True, prior=50)


def test_groups_axes_and_labels(data):
    assert set(data.groups()) == {
        "posterior", "posterior_predictive", "log_likelihood", "sample_stats", "prior", "prior_predictive",
        "observed_data", "constant_data",
    }  # fmt: skip
    assert data.posterior["theta"].dims == ("chain", "draw", "school")
    assert data.posterior["theta"].shape == (2, 500, 8)
    assert data.log_likelihood["effect"].dims == ("chain", "draw", "school")
    assert data.observed_data["effect"].dims == ("school",)
    assert list(data.constant_data) == ["errors"]
    np.testing.assert_allclose(data.posterior["doubled"], 2 * data.posterior["theta"], rtol=1e-6)
    assert data.prior["theta"].shape == (2, 25, 8)


def test_log_densities_are_those_of_the_draws(posterior, data):
    z = posterior.sample_unconstrained(1000, seed=0)
    np.testing.assert_allclose(data.sample_stats["log_q"].values.reshape(-1), posterior.log_prob(z), rtol=1e-5)
    theta = data.posterior["theta"].values[0, 3]
    expected = dist.Normal(theta, ERRORS).log_prob(EFFECTS)
    np.testing.assert_allclose(data.log_likelihood["effect"].values[0, 3], expected, rtol=1e-4)


def test_arviz_runs_on_it(data, tmp_path):
    summary = az.summary(data)
    assert "theta[3]" in summary.index and np.isfinite(summary["mean"]).all()
    assert np.isfinite(az.loo(data).elpd_loo)
    az.plot_pair(data, var_names=["mu", "tau"])
    path = str(tmp_path / "fit.nc")
    az.to_netcdf(data, path)
    back = az.from_netcdf(path)
    np.testing.assert_array_equal(back.posterior["theta"], data.posterior["theta"])
    assert back.posterior.attrs["inference_library"] == "relbo"


def test_the_default_draws_are_what_summary_wants(posterior, caplog):
    """One chain would leave r-hat NaN, and a line in the log."""
    data = relbo.to_arviz(posterior, num_draws=400, prior=100)
    with caplog.at_level("INFO"):
        for group in ("posterior", "prior"):
            summary = az.summary(data, group=group)
            assert np.isfinite(summary["r_hat"]).all() and (summary["ess_bulk"] > 50).all()
    assert "Shape validation" not in caplog.text
    assert data.posterior.sizes["chain"] == 4 and "no Markov chains" in data.posterior.attrs["chains"]
    assert relbo.to_arviz(posterior, num_draws=10).posterior.sizes["chain"] == 2
    assert relbo.to_arviz(posterior, num_draws=7).posterior.sizes["chain"] == 1


def test_attributes_say_how_it_was_made_and_how_good_it_is(posterior, data):
    attributes = data.posterior.attrs
    assert attributes["elbo"] == posterior.elbo.value and attributes["stop_reason"] == posterior.stop_reason
    assert attributes["inference_library_version"] == relbo.__version__
    assert np.isfinite(attributes["k_hat"])
    assert "fully" in attributes["settings"].lower()


def test_importance_resampling_corrects_the_mixture():
    """A standard normal, found for one target and judged by others: nearby, at a new mode, or far wider."""
    standard = posterior_of(full_normals([[0.0]], [[[1.0]]], [1.0]), bowl_at(0.0))

    def judged_by(target):
        def places(posterior):
            return posterior.booster.target, posterior.whitened.target, posterior.state.target.target

        return eqx.tree_at(places, standard, (target,) * 3)

    for center in (0.7, 9.0):
        mended = relbo.to_arviz(judged_by(bowl_at(center)), num_draws=4000, importance_resampled=True)
        assert abs(float(mended.posterior["z"].mean()) - center) < 0.1
    wide = relbo.from_log_density(lambda z: -0.5 * jnp.sum((z / 4) ** 2), jnp.zeros(20))
    narrow = posterior_of(full_normals(np.zeros((1, 20)), np.eye(20)[None], [1.0]), wide)
    with pytest.raises(ValueError, match="needs k-hat below"):
        relbo.to_arviz(narrow, importance_resampled=True)


def bowl_at(center):
    return relbo.from_log_density(bowl, jnp.zeros(1), args=(jnp.full(1, center),))


def bowl(x, center):
    return -0.5 * jnp.sum((x - center) ** 2)


def test_bad_input(posterior):
    with pytest.raises(ValueError, match="multiple of num_chains, got 10 and 3"):
        relbo.to_arviz(posterior, num_draws=10, num_chains=3)
    with pytest.raises(ValueError, match="names y_rep, which is not among the draws"):
        relbo.to_arviz(posterior, num_draws=10, posterior_predictive=["y_rep"])


def test_names_of_draws_may_be_predictions(posterior):
    data = relbo.to_arviz(posterior, num_draws=10, posterior_predictive=["doubled"])
    assert "doubled" in data.posterior_predictive and "doubled" not in data.posterior


def test_a_data_tree_where_arviz_has_no_inference_data(posterior, monkeypatch):
    monkeypatch.delattr(az, "InferenceData")
    tree = relbo.to_arviz(posterior, num_draws=10)
    assert isinstance(tree, xarray.DataTree)
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert tree.attrs["inference_library"] == "relbo"


def test_an_axis_named_as_a_variable_is_renamed():
    arrays = {"x": np.zeros((1, 2, 3)), "y": np.zeros((1, 2, 3))}
    assert arviz_export._axes("y", (3,), {"y": ("x",)}, arrays, {}) == ["x_dim"]
    assert arviz_export._axes("y", (3,), {"y": ("row", "y_dim_1")}, arrays, {}) == ["row"]
    assert [arviz_export._export_name(name) for name in ("scope/mu", "draw", "x")] == ["scope.mu", "draw_", "x"]
    assert arviz_export._axes("y", (3,), {"y": ("row",)}, arrays, {"row": np.arange(5)}) == ["y_dim_0"]

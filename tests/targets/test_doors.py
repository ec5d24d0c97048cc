"""One model through four doors: densities agree at random points, and ArviZ takes the draws."""

import importlib.util
import pathlib
import sys

import arviz as az
import jax
import matplotlib
import numpy as np
import pytest

import relbo
from helpers import quick_settings

matplotlib.use("Agg")

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "door_models.py"


def _load():
    spec = importlib.util.spec_from_file_location("door_models", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["door_models"] = module
    spec.loader.exec_module(module)
    return module


door_models = _load()
NUM_POINTS = 100


FIRST, *OTHERS = door_models.MODELS


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_log_densities_agree_to_rounding(name):
    """To 1e-8 relative, up to a constant: Stan's cauchy(0, 5) on tau > 0 is not halved; LKJ's constant is left out."""
    model = door_models.MODELS[name]
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        points = [model.draw(rng) for _ in range(NUM_POINTS)]
        values = {}
        for door_name, door in model.doors.items():
            target, chart = door.target(), door.chart or model.chart
            found = door_models.log_densities_in_chart(target, chart, [door.to_params(point) for point in points])
            values[door_name] = found
    reference = values["JAX"]
    for door_name, found in values.items():
        difference = found - reference
        spread = np.abs(difference - np.median(difference)).max()
        assert spread < 1e-8 * np.abs(reference).max(), door_name
        if name == "logistic 5,000 x 20":
            assert np.abs(difference).max() < 1e-8 * np.abs(reference).max(), door_name


@pytest.mark.parametrize("door_name", ["PyMC", "Stan"])  # NumPyro's draws are those of tests/views/test_arviz.py
def test_arviz_takes_the_draws_of_every_door(door_name, tmp_path):
    target = door_models.SCHOOLS.doors[door_name].target()
    posterior = relbo.fit(target, max_components=1, **quick_settings())
    data = relbo.to_arviz(posterior, num_draws=500)
    assert data.posterior["theta"].shape == (4, 125, 8)
    names = az.summary(data, var_names=["mu", "tau", "theta"]).index
    assert ("theta[8]" in names) == (door_name == "Stan") and ("theta[0]" in names) == (door_name == "PyMC")
    assert np.isfinite(az.loo(data).elpd_loo)
    az.plot_pair(data, var_names=["mu", "tau"])
    az.to_netcdf(data, str(tmp_path / "fit.nc"))
    assert az.from_netcdf(str(tmp_path / "fit.nc")).posterior["theta"].shape == (4, 125, 8)
    if door_name == "Stan":
        assert "log_lik" not in data.posterior and "log_lik" in data.log_likelihood

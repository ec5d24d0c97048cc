"""One model through four doors: densities agree at random points, and ArviZ takes every one."""

import importlib.util
import pathlib
import sys

import jax
import numpy as np
import pytest

PATH = pathlib.Path(__file__).parent.parent / "benchmarks" / "door_models.py"


def _load():
    spec = importlib.util.spec_from_file_location("door_models", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["door_models"] = module
    spec.loader.exec_module(module)
    return module


door_models = _load()
pytestmark = pytest.mark.xdist_group("stan")  # one process compiles the Stan programs

NUM_POINTS = 100


@pytest.mark.parametrize("name", door_models.MODELS)
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

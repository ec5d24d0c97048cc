"""`relbo fit --local-processes 2`: the same posterior as from one process, and one voice."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import conftest
import relbo

LINE = """
import numpyro
import numpyro.distributions as dist


def model(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(intercept + slope * x, 1.0), obs=y)
"""
FIT = ["fit", "line.py", "--data", "train.csv", "--arg", "y=outcome", "--max-components", "1", "-n", "200", "--json"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    (folder / "line.py").write_text(LINE)
    rng = np.random.default_rng(0)
    x = rng.normal(size=31)
    rows = [f"{a:.5f},{b:.5f}" for a, b in zip(x, 1.0 + 2.0 * x + rng.normal(size=31), strict=True)]
    (folder / "train.csv").write_text("\n".join(["x,outcome", *rows[:30], ""]))
    (folder / "uneven.csv").write_text("\n".join(["x,outcome", *rows, ""]))
    return folder


def run(folder, *arguments):
    environment = {**os.environ, "RELBO_CACHE_DIR": str(folder / "cache"), "XLA_FLAGS": conftest.FAST_COMPILATION}
    command = [sys.executable, "-m", "relbo", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)


def test_two_processes_on_this_machine_fit_like_one(folder):
    alone = run(folder, *FIT, "--out", "alone.relbo")
    two = run(folder, *FIT, "--out", "two.relbo", "--local-processes", "2", "--shard", "data")
    assert two.returncode == alone.returncode == 0, two.stderr[-3000:]
    found, expected = json.loads(two.stdout), json.loads(alone.stdout)  # and not a word beside it
    assert found["files"] == {"fit": "two.relbo"} and found["status"] == "good"
    assert found["parameters"].keys() == expected["parameters"].keys() == {"intercept", "slope"}
    for name, each in expected["parameters"].items():
        assert abs(found["parameters"][name]["mean"]["value"] - each["mean"]["value"]) < 1e-3
    loaded = relbo.load(folder / "two.relbo")
    np.testing.assert_allclose(loaded.locations, relbo.load(folder / "alone.relbo").locations, atol=1e-3)
    assert loaded.booster.points_over is None  # it can be used by one process again


def test_what_all_processes_refuse_is_said_once(folder):
    uneven = [*FIT[:3], "uneven.csv", *FIT[4:-1], "--local-processes=2", "--shard", "data"]
    said = run(folder, *uneven)
    assert said.returncode == 1
    assert said.stderr.count("31 rows of data cannot be divided evenly among 2 devices") == 1

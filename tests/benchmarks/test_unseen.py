"""The benchmark of models through their doors: its references and its judgement, without a fit."""

import pathlib
import sys

import numpy as np
import pytest
from scipy import stats

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import doors
import doors_cell
from unseen.base import Case, columns, load_reference, same
from unseen.chains import exact, of_chains, on_grid


def test_references_by_grid_and_by_chains_agree_with_the_truth():
    law = stats.gamma(3.0)
    grid = on_grid(lambda values: law.logpdf(values["x"]), x=np.linspace(0, 60, 60_001)[1:])(same)
    np.testing.assert_allclose([grid.mean[0], grid.sd[0]], [3.0, 3**0.5], rtol=1e-5)
    draws = {"x": law.rvs((4, 2000), random_state=1), "y": np.random.default_rng(2).normal(size=(4, 2000, 2))}
    chains = of_chains(draws, same, "draws")
    assert chains.names == ["x", "y[0]", "y[1]"] and chains.r_hat < 1.01
    assert np.all(np.abs(chains.mean - [3.0, 0, 0]) < 5 * chains.mean_error)
    assert np.all(np.abs(chains.sd - [3**0.5, 1, 1]) < 5 * chains.sd_error)


def test_names_of_numbers():
    names, matrix = columns({"b": np.arange(6.0).reshape(3, 2), "a": np.arange(3.0), "constant": np.ones(3)})
    assert names == ["a", "b[0]", "b[1]"] and matrix.shape == (3, 3)


@pytest.mark.parametrize(
    ("status", "shift", "right"), [("good", 0.0, True), ("good", 0.3, False), ("tails", 0.3, True)]
)
def test_a_verdict_that_promises_moments_is_held_to_them(status, shift, right, monkeypatch):
    known = exact("closed form", x=(1.0, 2.0))(same)
    monkeypatch.setattr(doors_cell, "load_reference", lambda name: known)
    draws = {"x": 1.0 + 2.0 * (shift + np.random.default_rng(0).normal(size=20_000))}
    found = doors_cell.errors(Case("a", "JAX", lambda: None, lambda view: known), draws, 20_000)
    assert abs(found["mean_error"] - shift) < 0.05 and found["sd_error"] < 0.05
    assert doors.truthful({**found, "status": status}) == right


def test_stored_references_can_be_read():
    folder = pathlib.Path(doors.HERE) / "unseen" / "references"
    for path in folder.glob("*.json"):
        found = load_reference(path.stem)
        assert np.isfinite(found.mean).all() and (found.sd > 0).all() and found.r_hat < 1.02, path.stem
        assert (found.mean_error < 0.05 * found.sd).all(), path.stem

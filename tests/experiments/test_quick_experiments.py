"""Every experiment of the paper runs to its end in its quick form, and says something sensible."""

import json
import pathlib

import pytest

from experiments.__main__ import main
from experiments.registry import EXPERIMENTS

ROOT = pathlib.Path(__file__).parents[2]


LONG = ("faces", "systems", "chemreact", "icu", "figure1", "wine", "explanations")
"""Those that take half a minute and more."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in EXPERIMENTS]
)
def test_quick_runs_to_the_end(name, tmp_path):
    assert main([name, "--quick", "--out", str(tmp_path)]) == 0
    raw = json.loads((tmp_path / f"{name}.quick.json").read_text())
    assert raw["experiment"] == name and raw["quick"] is True and raw["results"]
    assert {"jax", "python"} <= set(raw["versions"])
    assert set(raw["code"]) == {"relbo", "engine", "experiment"} and raw["cpu_seconds"] > 0
    page = (tmp_path / f"{name}.quick.md").read_text()
    assert page.startswith("# Quick check, no result: ") and page.count("\n| ") > 3
    assert "CBCL" not in page and "chemreact10" not in page  # embedded data under their own name
    assert (tmp_path / f"{name}.quick.png").read_bytes().startswith(b"\x89PNG")
    for text in (page, json.dumps(raw)):
        assert str(ROOT) not in text and str(tmp_path) not in text
    if name in ("chemreact", "icu", "wine"):
        default = {row["seed"]: row["elbo"] for row in raw["results"] if row["system"] == "relbo's default"}
        others = [row for row in raw["results"] if row["system"] != "relbo's default" and row["seed"] in default]
        assert others and all(row["elbo"] < default[row["seed"]] for row in others)

"""The driver of `make scaling` and its page, without fits."""

import json
import math
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import scaling
import scaling_page
from scaling_page import Point, Scaling, exponent

ROOT = pathlib.Path(__file__).parents[2]


def cell(size, method="relbo", axis="rows", **facts):
    done = {"kind": "done", "cold_cpu": 10.0, "load": 1.0, "evaluations": 100, "gradient_cpu": 0.01, "beyond_data": 1e6}
    return {"axis": axis, "size": size, "method": method, **done, **facts}


def test_an_exponent_is_the_slope_and_has_an_error():
    points = [Point(size, 3.0 * size**0.7, {}) for size in (10, 100, 1000)]
    found = exponent(points)
    assert math.isclose(found.value, 0.7) and found.std_err < 1e-6 and found.num == 3
    noisy = exponent([*points, Point(10_000, 9.0 * 10_000**0.7, {})])
    assert abs(noisy.value - 0.7) < 3 * noisy.std_err
    assert exponent(points[:1]) is None and math.isinf(exponent(points[:2]).std_err)


def test_what_compiling_took_is_taken_off_a_fit_that_was_made_once():
    cells = [cell(10, run_cpu=2.0), cell(100, cold_cpu=50.0), cell(1000, kind="over the limit", limit=60.0)]
    found = Scaling({"cells": cells, "machine": {}})
    assert [(point.size, point.cpu) for point in found.points("rows", "relbo")] == [(10, 2.0), (100, 42.0)]
    (alone,) = Scaling({"cells": [cell(10)], "machine": {}}).points("rows", "relbo")
    assert alone.compiles and alone.cpu == 10.0 and not any(each.compiles for each in found.points("rows", "relbo"))
    assert found.ended("rows", "relbo") == "1,000: more than 60"


def test_dimensions_have_two_exponents():
    points = [Point(size, float(size), {}) for size in (2, 64, 256, 1024)]
    assert {name: len(part) for name, part in scaling_page.parts("dimensions", points).items()} == {
        "up to 256": 3,
        "from 256 on": 2,
    }


def test_a_ladder_goes_on_and_ends_where_a_method_does(tmp_path, monkeypatch):
    asked = []

    def measure(axis, size, method, limit):
        asked.append(size)
        kind = "over the limit" if size > 8 else "done"
        return {"axis": axis, "size": size, "method": method, "kind": kind, "cold_cpu": 1.0}

    monkeypatch.setattr(scaling, "measure", measure)
    options = scaling.parse_options(["--work", str(tmp_path)])
    scaling.climb(options, "components", "relbo")
    assert asked == [2, 8, 32]  # and not 64
    scaling.climb(options, "components", "relbo")
    assert asked == [2, 8, 32]
    assert scaling.sizes("rows", True)[-1] == 10_000_000 and scaling.sizes("rows", False)[-1] == 1_000_000
    assert not scaling.is_meant("rows", 10_000_000, "relbo") and scaling.is_meant("rows", 10**7, "relbo, streaming")


def test_a_measurement_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(scaling.sys, "executable", "false")
    assert scaling.measure("rows", 10, "relbo", 1.0) == {
        "axis": "rows", "size": 10, "method": "relbo", "kind": "failed", "message": "",
    }  # fmt: skip


def test_the_page_is_that_of_the_measurements():
    """Nobody has written a number by hand: the tables of docs/scale.md are made of what is in results/."""
    results, streaming = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text()) for name in ("scaling", "streaming")
    )
    page = (ROOT / "docs" / "scale.md").read_text()
    assert scaling_page.summary(Scaling(results), streaming) in page
    with pytest.raises(ValueError, match="must have one <!-- scaling:begin -->"):
        scaling_page.filled("", "text", scaling_page.BEGIN, scaling_page.END)

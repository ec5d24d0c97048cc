"""The report as a file: complete, the same every time, small, and deaf to whatever the model is called."""

import base64
import html
import json
import re

import numpy as np
import pytest

import relbo
from pages import EVIL, WORSE, evil_posterior, loaded_posterior
from relbo.reporting import charts
from relbo.reporting.encoding import figure, to_json, with_error
from relbo.reporting.page import _check
from relbo.reporting.words import explained, verdict
from relbo.views.scalars import Scalars, scalars


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert relbo.report(loaded_posterior(), path, title="Two & three") == path
    return path.read_text(encoding="utf-8")


def data_of(text: str):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_says_all_that_it_should(text):
    assert "<title>Two &amp; three</title>" in text
    found = relbo.diagnose(loaded_posterior())
    assert verdict(found, "").headline == "Good" and "<h2" in text.split("Good</h2>")[0]
    assert text.index('id="verdict"') < text.index('id="fit"') < text.index('id="parameters"')
    for row in explained(found):
        assert html.escape(row.value) in text and row.name in text
    assert "a log density in JAX, 3 unconstrained coordinates" in text
    assert loaded_posterior().stop_reason in text and f"relbo {relbo.__version__}" in text


def test_names_are_text_and_nothing_else(text):
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert html.escape(EVIL) in outside and html.escape(WORSE).replace("&#x27;", "&#39;")[:20] in outside
    assert EVIL not in text and "<img" not in text
    assert len(re.findall(r"<script", text)) == 4 == len(re.findall(r"</script>", text))
    assert sorted(data_of(text)["parameters"]["names"]) == sorted([EVIL, f"{WORSE}[0]", f"{WORSE}[1]"])


def test_the_page_allows_its_own_scripts_alone(text):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert "http:" not in policy and "https:" not in policy
    assert len(re.findall(r"'sha256-", policy)) == 5  # three scripts, two styles
    assert not re.findall(r'(src|href)="(?!#)', text)


def test_the_same_page_every_time(text, tmp_path):
    again = relbo.report(loaded_posterior(), tmp_path / "again.html", title="Two & three")
    assert again.read_text(encoding="utf-8") == text


def test_the_numbers_of_the_charts_are_those_of_the_posterior(text):
    found = data_of(text)
    drawn = scalars(loaded_posterior(), 2000)
    parameters = found["parameters"]
    num = parameters["numDraws"]
    draws = np.frombuffer(base64.b64decode(parameters["draws"]), "<f4").reshape(3, num)
    np.testing.assert_allclose(draws, drawn.values[:num].T, rtol=1e-6)
    assert [round(part["weight"], 5) for part in found["components"]] == [0.7, 0.3]
    assert found["trace"]["gap"][0] is None and found["trace"]["accepted"] == [True, True, True, False]
    total = np.frombuffer(base64.b64decode(parameters["total"]), "<f4").reshape(3, -1)
    widths = np.array([(high - low) / (parameters["numPoints"] - 1) for low, high in parameters["ranges"]])
    np.testing.assert_allclose(total.sum(axis=1) * widths, 1.0, atol=0.01)  # all but what lies outside


def test_a_hundred_parameters_stay_below_five_megabytes():
    """The text of the page without its numbers is that of the small one; the numbers are bounded apart."""
    rng = np.random.default_rng(0)
    names = [f"a_long_name_of_a_parameter[{index}]" for index in range(100)]
    shares = rng.dirichlet(np.ones(32), 2000)
    drawn = Scalars(names, rng.normal(size=(2000, 100)), np.zeros((2000, 1)), shares, shares.mean(0), shares, shares[0])
    size = len(to_json(charts._parameters(drawn)))
    assert 1_000_000 < size < 3_000_000
    many = Scalars(
        [f"x[{index}]" for index in range(5000)],
        rng.normal(size=(100, 5000)),
        np.zeros((100, 1)),
        shares[:100],
        shares.mean(0),
        shares[:100],
        shares[0],
    )
    assert len(to_json(charts._parameters(many))) < 4_000_000


def test_a_checkpoint_without_draws_has_a_page_too(tmp_path):
    relbo.save(evil_posterior(), tmp_path / "bare.relbo", num_draws=0)
    page = relbo.report(relbo.load(tmp_path / "bare.relbo"), tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "Not judged" in page and "holds no draws to judge it by" in page
    assert "relbo.load(path, target=target)" in page


def test_wrong_use_is_told():
    """By the check itself: under test, the annotations of `report` are checked before it."""
    with pytest.raises(ValueError, match="report needs a posterior, got str"):
        _check("fit.relbo", "x.html", None)
    with pytest.raises(ValueError, match="path must name the file to write"):
        _check(loaded_posterior(), 3, None)
    with pytest.raises(ValueError, match="title must be a string, got int"):
        _check(loaded_posterior(), "x.html", 3)


def test_json_cannot_end_its_element():
    evil = {"</script>": ["<!--", "&amp;", "\u2028", float("nan"), float("-inf"), np.float32(1.5)]}
    text = to_json(evil)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": ["<!--", "&amp;", "\u2028", None, None, 1.5]}


def test_figures_are_rounded_as_people_do():
    assert [figure(value) for value in (0.0, 1.5, -12.345, 1234.5, 1e-7, float("nan"))] == [
        "0", "1.50", "−12.3", "1234", "1.00e−07", "not finite",
    ]  # fmt: skip
    assert with_error(-77.98312, 0.0123) == "−77.983 ± 0.012"
    assert with_error(4.7e-11, 1e-12) == "0.00000 ± < 0.00001"

"""What a running fit tells: in a log, in a notebook; in a terminal, see cli/test_cli.py. And objects in notebooks."""

import re
import threading
import time
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import relbo
import relbo.loop.progress as shown
from lean_fits import SETTINGS, lean_target, undisturbed
from relbo.calibration.trial import Failure
from relbo.comparison.agreement import Difference, ParameterAgreement
from relbo.diagnostics.measure import stored_measurements
from relbo.records.estimate import Estimate
from relbo.runtime.tables import MOST_ROWS, html_table, text_table

EVIL = "<script>alert(1)</script>"


def record(iteration=1, elbo=-3.0, gap=0.5, **changes):
    values = {
        "iteration": iteration, "kind": "fully-corrective", "accepted": True, "num_components": 2,
        "weights": np.array([0.5, 0.5]), "step_size": 0.5, "elbo": Estimate(elbo, 0.01, 100), "improvement": None,
        "gap": None if gap is None else Estimate(gap, 0.1, 100), "objective": None, "seconds": 1.5, "evaluations": 1000,
        "num_nan": 0, "num_zero": 0, "nan_fraction": 0.0, "compile_seconds": 1.0,
    }  # fmt: skip
    return relbo.Record(**(values | changes))


# What is known


def test_the_phases_of_a_fit(monkeypatch):
    state = shown.Progress()
    tell = state.watching(lambda num: None)
    phases = []
    for purpose in ("walks", "race", "refinement"):
        tell(10, purpose)
        phases.append(state.phase)
    assert phases == ["finding coordinates", "finding coordinates", "first component"] and state.evaluations == 30
    state(record(0, gap=None))
    tell(5, "proposals")
    assert state.phase == "boosting" and state.evaluations == 1005
    tell(5, "walks")
    assert state.phase == "looking for modes"
    tell(5, "flow")
    assert state.phase == "learning coordinates"
    state.polishing = True
    assert state.phase == "polishing"
    monkeypatch.setattr(shown, "is_compiling", lambda: True)
    assert state.phase == "compiling"


def test_what_is_not_allowed_is_not_counted():
    state = shown.Progress()

    def refuse(num):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        state.watching(refuse)(10, "walks")
    assert state.evaluations == 0


def test_a_line_says_all_of_it():
    state = shown.Progress()
    state(record(0, gap=None))
    state(record(7, elbo=-2.5))
    line = r"\d+ s, boosting, iteration 7, 2 components, ELBO -2.500 \+- 0.010, gap 0.50 \+- 0.10, 2,000 evaluations"
    assert re.fullmatch(line, shown.line(state))
    assert "2 components: 3.0 s, 2.0 of them compiling; 2,000 evaluations" in shown.summary(state.records)


@pytest.mark.parametrize(
    ("seconds", "compiling", "evaluations", "words"),
    [
        (3.0, 1.0, 10_000, "3.0 s, 1.0 of them compiling; 10,000 evaluations, 0.2 ms each"),
        (50.0, 0.0, 100, "50.0 s, 0.0 of them compiling; 100 evaluations, 0.5 s each"),
        (1.0, 1.0, 0, "1.0 s, 1.0 of them compiling; 0 evaluations"),
    ],
)
def test_a_line_says_how_often_the_model_was_called_and_how_long_that_takes(seconds, compiling, evaluations, words):
    records = [record(seconds=seconds, compile_seconds=compiling, evaluations=evaluations)]
    assert shown.summary(records).endswith(words)


def test_bars_rise_with_the_elbo():
    values = [Estimate(float(value), 0.1, 10) for value in range(8)]
    assert shown.sparkline(values) == "▁▂▃▄▅▆▇█" and shown.sparkline(values[::-1]) == "█▇▆▅▄▃▂▁"
    assert shown.sparkline([]) == "" and shown.sparkline(values[:1]) == "█"
    assert len(shown.sparkline(values * 20)) == 24


def test_xla_tells_that_it_compiles():
    """The flag is up between the end of lowering and the end of compiling, by JAX's own events."""
    from relbo.runtime.compiling import _clock

    clock = _clock()
    clock._listen("/jax/core/compile/jaxpr_to_mlir_module_duration", 0.0, 0.0)
    assert clock.is_compiling
    clock._listen("/jax/core/compile/backend_compile_duration", 0.0, 0.0)
    assert not clock.is_compiling


# Where it is shown


def test_a_log_gets_a_line_now_and_then_and_a_last_one(monkeypatch, capsys):
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.05)
    before = threading.active_count()
    with shown.progress(True) as state:
        state(record())
        time.sleep(0.3)
    err = capsys.readouterr().err.splitlines()
    assert len(err) >= 3 and all(line.startswith("relbo: 0 s, ") for line in err[:-1])
    assert err[-1].startswith("relbo: ELBO -3.000 +- 0.010, 2 components: 1.5 s")
    assert threading.active_count() == before


def test_a_short_fit_and_an_unwanted_one_say_nothing(monkeypatch, capsys):
    with shown.progress(True) as state:
        state(record())
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.01)
    with shown.progress(False) as state:
        state(record())
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_a_fit_tells_its_evaluations(monkeypatch, capsys):
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.01)
    relbo.fit(lean_target(), **SETTINGS | {"progress_bar": True})
    lines = capsys.readouterr().err.splitlines()
    counts = [int(re.search(r"([\d,]+) evaluations", line)[1].replace(",", "")) for line in lines]
    assert len(lines) > 2 and counts == sorted(counts)
    assert counts[-1] == undisturbed().num_evaluations


def test_a_calibration_counts_in_a_log(monkeypatch, capsys):
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.05)
    with shown.count_up(True, "calibrating", 10) as report:
        report(1)
        time.sleep(0.2)
    assert capsys.readouterr().err.startswith("relbo: calibrating, 1 of 10, 1 failed, 0 s")


def test_a_notebook_gets_a_table_in_its_cell(monkeypatch):
    import IPython.display

    drawn = []
    handle = SimpleNamespace(update=drawn.append)
    monkeypatch.setattr(IPython.display, "display", lambda cell, display_id: drawn.append(cell) or handle)
    monkeypatch.setattr(shown, "Console", lambda **_: SimpleNamespace(is_jupyter=True))
    monkeypatch.setattr(shown, "_NOTEBOOK_SECONDS", 0.0)
    with shown.progress(True) as state:
        state(record(0, elbo=-4.0, gap=None))
        state(record(1, kind=EVIL))
    assert len(drawn) == 4 and "<td" in drawn[2]._repr_html_() and "▁█" in drawn[2]._repr_html_()
    assert EVIL not in drawn[2]._repr_html_() and "&lt;script&gt;" in drawn[2]._repr_html_()
    assert repr(drawn[-1]).startswith("ELBO -3.000 +- 0.010")


# Objects in notebooks


def test_tables_are_escaped_and_cut_short():
    html = html_table((EVIL,), [(str(number),) for number in range(MOST_ROWS + 5)])
    assert EVIL not in html and "&lt;script&gt;" in html and "... and 5 more" in html
    assert text_table([("a", "bc"), ("abc", "d")]) == ["a    bc", "abc  d"]


def test_a_target_shows_its_parameters():
    target = relbo.from_log_density(lambda p: -jnp.sum(p[EVIL] ** 2), {EVIL: jnp.zeros(3)})
    html = target._repr_html_()
    assert EVIL not in html and "&lt;script&gt;alert(1)&lt;/script&gt;" in html and "(3,)" in html and "real" in html
    assert repr(target) == "JaxTarget(3 unconstrained coordinates, float32)"


def test_dims_are_shown_where_the_model_names_them():
    import numpyro
    import numpyro.distributions as dist

    def model(y):
        with numpyro.plate("school", 3):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    target = relbo.from_numpyro(model, np.zeros(3))
    assert "mu         (3,)   school  real     3" in str(target) and ">school</td>" in target._repr_html_()


def test_a_posterior_and_its_diagnosis(tmp_path):
    posterior = undisturbed()
    html = posterior._repr_html_()
    assert str(posterior.elbo) in html and "JaxTarget" in html and "stopped because" in html
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=200)
    loaded = relbo.load(tmp_path / "fit.relbo")
    found = relbo.diagnose(loaded)
    assert found.num_draws == 200 and stored_measurements(loaded, loaded.target).num_own == 200
    html = found._repr_html_()
    assert html.index(found.verdict[:8]) < html.index("<table") and "k-hat" in html and "<strong>" in html


def test_a_comparison_and_a_calibration():
    difference = Difference(Estimate(0.5, 0.1, 100), 0.2)
    parameter = ParameterAgreement(EVIL, difference, difference, difference)
    agreement = relbo.Agreement([parameter], difference, [], 100, 100, 90.0, [f"note {EVIL}"])
    ranks = np.random.default_rng(0).integers(0, 101, (50, 1))
    calibration = relbo.Calibration([EVIL], ranks, 100, 50, [Failure(3, EVIL)], 1.0, 0, 0.01)
    for found in (agreement, calibration):
        html = found._repr_html_()
        assert EVIL not in html and "&lt;script&gt;" in html and "<table>" in html
        assert EVIL in str(found) and str(found).endswith(found.verdict)

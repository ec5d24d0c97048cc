"""Diagnosis: the numbers are right, k-hat is ArviZ's, the stopping rules read the trace."""

import math

import numpy as np
import pytest

import relbo
from helpers import TWO_MODES, within
from relbo.diagnostics import psis
from relbo.estimate import format_estimate


@pytest.fixture(scope="module")
def posterior():
    return relbo.fit(TWO_MODES.target(), seed=0, progress_bar=False, family="mean_field_normal")


def test_diagnose_measures_the_known_truth(posterior):
    found = relbo.diagnose(posterior, num_draws=4000, seed=5)
    assert within(found.log_z.value, found.log_z.std_err, TWO_MODES.log_z, rounding=1e-5)
    assert found.elbo.value <= found.log_z.value + 1e-6
    # k-hat knows the shape of the ratios' tail and not their size: of a fit as good as this one it says little.
    assert math.isfinite(found.k_hat)
    assert 0.9 * 4000 < found.ess <= 4000.5
    text = str(found)
    assert "ELBO" in text and "k-hat" in text and "+-" in text and found.verdict in text
    assert relbo.diagnose(posterior, num_draws=4000, seed=5) == found


def test_too_few_draws_are_refused(posterior):
    with pytest.raises(ValueError, match="num_draws must be at least 100, got 10"):
        relbo.diagnose(posterior, num_draws=10)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_k_hat_is_that_of_arviz(scale):
    import arviz

    log_ratios = np.random.default_rng(1).standard_normal(3000) ** 2 * scale
    weights, k_hat = psis(log_ratios)
    their_weights, their_k_hat = arviz.psislw(log_ratios.copy())
    assert abs(k_hat - float(their_k_hat)) < 1e-9
    np.testing.assert_allclose(weights, their_weights, rtol=1e-9)


def record(improvement, gap, accepted=True, std_err=1e-4, **changes):
    estimate = relbo.Estimate
    values = {
        "iteration": 1, "kind": "fully-corrective", "accepted": accepted, "num_components": 2,
        "weights": np.array([0.5, 0.5]), "step_size": 0.5, "elbo": estimate(0.0, 0.1, 10),
        "improvement": estimate(improvement, std_err, 10), "gap": estimate(gap, std_err, 10), "objective": None,
        "seconds": 1.0, "evaluations": 100, "num_nan": 0, "num_zero": 0, "nan_fraction": 0.0,
    }  # fmt: skip
    return relbo.Record(**(values | changes))


def test_gap_below_needs_two_in_a_row_and_no_progress():
    rule, small, large = relbo.GapBelow(0.01), record(0.0, 0.001), record(0.0, 0.5)
    assert rule.reason([small]) is None
    assert rule.reason([small, large]) is None
    assert rule.reason([large, small, small]) is not None
    noisy = record(0.0, 0.001, std_err=0.1)
    assert rule.reason([small, noisy]) is None
    assert rule.reason([small, record(0.2, -0.01)]) is None


def test_stalled_is_a_paired_test():
    rule = relbo.Stalled(patience=3, min_improvement=1e-3)
    assert rule.reason([record(0.1, 1.0)] * 3) is None
    assert rule.reason([record(0.1, 1.0, std_err=0.5)] * 3) is not None
    assert rule.reason([record(1e-4, 1.0, std_err=1e-6)] * 3) is not None
    assert rule.reason([record(-0.1, 1.0, accepted=False)] * 3) is not None
    assert rule.reason([record(0.0, 1.0)] * 2) is None


def test_budgets():
    records = [record(0.1, 1.0)] * 3
    assert relbo.MaxSeconds(4.0).reason(records) is None and relbo.MaxSeconds(3.0).reason(records) is not None
    assert relbo.MaxEvaluations(400).reason(records) is None and relbo.MaxEvaluations(300).reason(records) is not None
    assert relbo.MaxComponents(3).reason(records) is None and relbo.MaxComponents(2).reason(records) is not None
    with pytest.raises(ValueError, match="at least 1, got 0"):
        relbo.MaxComponents(0)


def test_estimates_are_rounded_as_a_person_would():
    assert format_estimate(-77.98312, 0.0123) == "-77.983 +- 0.012"
    assert format_estimate(1234.5, 20.0) == "1234 +- 20"
    assert format_estimate(math.nan, 1.0) == "nan +- 1"

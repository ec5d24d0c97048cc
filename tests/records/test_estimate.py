"""An estimate, for people."""

import pytest

from relbo.records.estimate import Estimate, format_estimate


@pytest.mark.parametrize(
    ("value", "std_err", "text"),
    [
        (-77.98312, 0.0123, "-77.983 +- 0.012"),
        (1234.5, 56.0, "1234 +- 56"),
        (0.5, 0.0, "0.5 +- 0"),
        (float("nan"), 0.1, "nan +- 0.1"),
        (3.0, float("inf"), "3 +- inf"),
        (1.0, 1.25, "1.0 +- 1.2"),
    ],
)
def test_an_estimate_prints_as_a_person_would(value, std_err, text):
    assert format_estimate(value, std_err) == text
    assert str(Estimate(value, std_err, 10)) == text

"""What the display says of a fit's cost."""

import pytest

from relbo.progress import _table, summary
from test_diagnostics import record


@pytest.mark.parametrize(
    ("seconds", "compiling", "evaluations", "words"),
    [
        (3.0, 1.0, 10_000, "3.0 s, 1.0 of them compiling; 10,000 evaluations, 0.2 ms each"),
        (50.0, 0.0, 100, "50.0 s, 0.0 of them compiling; 100 evaluations, 0.5 s each"),
        (1.0, 1.0, 0, "1.0 s, 1.0 of them compiling; 0 evaluations"),
    ],
)
def test_a_line_says_how_often_the_model_was_called_and_how_long_that_takes(seconds, compiling, evaluations, words):
    records = [record(0.1, 0.1, seconds=seconds, compile_seconds=compiling, evaluations=evaluations)]
    assert summary(records).endswith(words)
    assert f"{evaluations:,} evaluations" in str(_table(records, seconds).title)

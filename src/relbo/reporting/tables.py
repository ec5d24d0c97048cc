"""The table of parameters."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from relbo.diagnostics import Diagnosis
from relbo.diagnostics.parameters import ParameterCheck
from relbo.diagnostics.verdict import wrong_parameters
from relbo.posterior.posterior import Posterior
from relbo.reporting.encoding import figure, with_error
from relbo.views.scalars import Scalars

MOST_ROWS = 1000  # more would make the page slow to open


@dataclass(frozen=True)
class Cell:
    """What is shown, and what to sort by."""

    text: str
    key: Any
    note: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[Cell]
    wrong: str
    """What is wrong with it, in words; empty if nothing is known to be."""


@dataclass(frozen=True)
class Table:
    heads: list[tuple[str, str]]
    """Of the columns after the name: a word, and what it means."""
    rows: list[Row]
    num_left_out: int
    num_draws: int


_HEADS = [
    ("mean", "Mean of the draws, with its Monte Carlo error"),
    ("sd", "Standard deviation"),
    ("5%", "One draw in twenty lies below"),
    ("median", "Half of the draws lie below"),
    ("95%", "One draw in twenty lies above"),
]
_CHECKS = [
    ("mean off", "The mean less what importance weights say, in standard deviations"),
    ("sd ratio", "The standard deviation over what importance weights say"),
]


def parameter_table(posterior: Posterior, diagnosis: Diagnosis | None, drawn: Scalars | None) -> Table | None:
    """Every scalar, in the model's order; None if there are no draws."""
    if drawn is None:
        return None
    supports = posterior.target.supports()
    checks = {} if diagnosis is None else {check.name: check for check in diagnosis.parameters}
    wrong = set() if diagnosis is None else {check.name for check in wrong_parameters(diagnosis)}
    heads = ([("support", "Where the parameter lives")] if supports else []) + _HEADS + (_CHECKS if checks else [])
    rows = []
    for name, values in zip(drawn.names[:MOST_ROWS], drawn.values.T, strict=False):
        support = [Cell(supports.get(name.partition("[")[0], ""), name)] if supports else []
        cells = support + _summary(values) + (_checked(checks.get(name)) if checks else [])
        rows.append(Row(name, cells, checks[name].describe() if name in wrong else ""))
    return Table(heads, rows, max(0, len(drawn.names) - MOST_ROWS), len(drawn.values))


def _summary(values: np.ndarray) -> list[Cell]:
    with np.errstate(invalid="ignore", over="ignore"):
        mean, sd = float(values.mean()), float(values.std())
        cuts = [float(cut) for cut in np.quantile(values, [0.05, 0.5, 0.95])]
    centre = Cell(with_error(mean, sd / math.sqrt(len(values))), mean)
    return [centre, *(Cell(figure(each), each) for each in (sd, *cuts))]


def _checked(check: ParameterCheck | None) -> list[Cell]:
    if check is None:
        return [Cell("", 0.0), Cell("", 0.0)]
    off, ratio = float(check.mean_error.value), math.exp(float(check.log_sd_error.value))
    doubt = f"± {figure(float(check.mean_error.std_err), 2)}"
    spread = float(check.log_sd_error.std_err)
    ratio_doubt = f"± {figure(ratio * spread, 2)}" if math.isfinite(spread) else "error unknown"
    return [Cell(_signed(off), abs(off), doubt), Cell(f"{ratio:.2f}", abs(ratio - 1), ratio_doubt)]


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")

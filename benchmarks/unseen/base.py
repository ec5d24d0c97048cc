"""A case: a target through one door, a reference by other means, and the numbers by which they are compared."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
Values = Mapping[str, Any]


def same(values: Values) -> Values:
    return values


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of every compared number, with the standard errors of both."""

    names: list[str]
    mean: np.ndarray
    mean_error: np.ndarray
    sd: np.ndarray
    sd_error: np.ndarray
    how: str
    """Where they come from: chains and draws, or the method of integration."""
    r_hat: float = 1.0
    """The largest of a number, 1 where there are no chains."""


@dataclass(frozen=True)
class Case:
    """`view` makes the compared numbers of named draws, the same for fit and reference.

    It picks what both have, and takes logarithms where single draws carry a moment (the scales of a horseshoe), which
    no sample of a usual size can tell.
    """

    name: str
    door: str
    target: Callable[[], Any]
    reference: Callable[[Callable[[Values], Values]], Moments]
    view: Callable[[Values], Values] = same
    dim: int = 0


def columns(values: Values) -> tuple[list[str], np.ndarray]:
    """Named draws, (num, ...) each, as names and a matrix with a column for every number that varies."""
    names, parts = [], []
    for name, value in sorted(values.items()):
        array = np.asarray(value, np.float64)
        flat = array.reshape(len(array), -1)
        for index in range(flat.shape[1]):
            if np.ptp(flat[:, index]) > 1e-6 * np.abs(flat[:, index]).max():  # the diagonal of a correlation matrix
                names.append(f"{name}[{index}]" if array.ndim > 1 else name)
                parts.append(flat[:, index])
    return names, np.stack(parts, axis=1)


def moments_of(values: Values) -> tuple[list[str], np.ndarray, np.ndarray]:
    names, matrix = columns(values)
    return names, matrix.mean(axis=0), matrix.std(axis=0)


def reference_path(name: str) -> Path:
    return HERE / "references" / f"{name.replace(' ', '_')}.json"


def save_reference(case: Case) -> Moments:
    """Compute the reference of a case, and keep it."""
    found = case.reference(case.view)
    rows = zip(found.names, found.mean, found.mean_error, found.sd, found.sd_error, strict=True)
    numbers = {name: [float(f"{value:.6g}") for value in row] for name, *row in rows}
    text = {"how": found.how, "r_hat": round(found.r_hat, 4), "columns": "mean, its error, sd, its error"}
    body = ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in numbers.items())
    head = json.dumps(text)[1:-1]
    reference_path(case.name).write_text(f'{{{head}, "numbers": {{\n{body}\n}}}}\n')
    return found


def load_reference(name: str) -> Moments | None:
    path = reference_path(name)
    if not path.is_file():
        return None
    stored = json.loads(path.read_text())
    table = np.array(list(stored["numbers"].values()))
    return Moments(list(stored["numbers"]), *table.T, stored["how"], stored["r_hat"])

"""From columns to arguments: what was asked for by `--arg`, and what names say by themselves.

In this order: `--arg`; a column or array of the argument's own name, or of that name but for upper and lower case; the
number of rows for N and its like; all columns that are left for a single matrix such as X, if nothing else is wanted;
the one column that is left for the one argument that is left; the argument's own default. Anything else is an error
that says what there is.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relbo.cli.data import Data
from relbo.cli.session import UsageError
from relbo.runtime.choices import did_you_mean

_NUM_ROWS = "the number of rows"
_ROWS = ("N", "n", "num_rows", "num_data", "num_obs", "n_obs", "n_rows", "size")
_WIDTH = ("K", "k", "P", "p", "D", "d", "M", "num_columns", "num_features", "n_features", "dim")
_MATRICES = ("X", "x", "features", "covariates", "predictors", "design")
_OUTCOMES = ("y", "Y", "outcome", "outcomes", "response", "obs", "observed", "target", "labels")


@dataclass(frozen=True)
class Input:
    """An argument of a model. `ndim` is its number of axes, where the model says so."""

    name: str
    required: bool
    ndim: int | None = None
    default: Any = None

    @property
    def is_wanted(self) -> bool:
        """An outcome without a value would be drawn instead of conditioned on."""
        return self.required or (self.default is None and self.name in _OUTCOMES)

    @property
    def is_matrix(self) -> bool:
        return self.ndim == 2 if self.ndim is not None else self.name in _MATRICES


@dataclass
class Mapped:
    """Where the value of one argument comes from: columns of the data, or a value that is known."""

    name: str
    columns: list[str] = field(default_factory=list)
    stacked: bool = False
    """Whether the columns make a matrix, even if there is but one."""
    value: Any = None
    origin: str = ""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a model, ready to use."""

    mapped: list[Mapped]
    missing: list[str]
    """Arguments that nothing was found for."""
    unused: list[str]
    notes: list[str]
    labels: dict[str, list[str]]
    """The texts that became numbers, in their order, by column."""

    @property
    def values(self) -> dict[str, Any]:
        return {each.name: each.value for each in self.mapped}

    def rows(self) -> list[tuple[str, ...]]:
        """For people: argument, where from, shape and type."""
        return [(each.name, each.origin, *_kind(each.value)) for each in self.mapped]


def map_arguments(
    inputs: Sequence[Input], data: Data, given: Sequence[str], *, first_code: int = 0, drop_missing: bool = False
) -> Arguments:
    """Values for a model's arguments. Texts become whole numbers counted from `first_code`."""
    asked = _parse(given, inputs)
    mapped = {name: _asked(name, text, data, inputs) for name, text in asked.items() if text != "*"}
    _by_name(inputs, data, mapped)
    _by_count(inputs, data, mapped)
    _by_rest(inputs, data, mapped, [name for name, text in asked.items() if text == "*"])
    labels: dict[str, list[str]] = {}
    notes = _fill(list(mapped.values()), data, labels, first_code, drop_missing)
    _by_width(inputs, mapped)
    used = {column for each in mapped.values() for column in each.columns}
    return Arguments(
        mapped=[mapped[each.name] for each in inputs if each.name in mapped],
        missing=[each.name for each in inputs if each.is_wanted and each.name not in mapped],
        unused=[name for name in data.values if name not in used],
        notes=notes,
        labels=labels,
    )


def map_again(
    before: Arguments, data: Data, leave_out: set[str], *, first_code: int = 0, drop_missing: bool = False
) -> dict[str, Any]:
    """Values from other data, by the same columns and with the same numbers for texts; some are left out."""
    mapped = [dataclasses.replace(each) for each in before.mapped if each.name not in leave_out]
    absent = sorted({name for each in mapped for name in each.columns if name not in data.values})
    if absent:
        raise ValueError(f"the new data lack {', '.join(absent)}. They have {', '.join(data.values)}.")
    _fill(mapped, data, dict(before.labels), first_code, drop_missing)
    return {each.name: each.value for each in mapped}


def explain_missing(arguments: Arguments, data: Data) -> str:
    """What a person can do about arguments without values."""
    have = ", ".join(data.values) or "nothing (give --data FILE)"
    outcomes = [name for name in arguments.missing if name in _OUTCOMES]
    example = f"--arg {(outcomes or arguments.missing)[0]}=COLUMN"
    return (
        f"no data were found for the argument{'s' if len(arguments.missing) > 1 else ''} "
        f"{', '.join(arguments.missing)} of the model. The data have {have}. Say which: {example} (several columns: "
        "A,B; all that are left: '*'; or a number)."
    )


def _parse(given: Sequence[str], inputs: Sequence[Input]) -> dict[str, str]:
    names = [each.name for each in inputs]
    asked: dict[str, str] = {}
    for text in given:
        name, equals, what = text.partition("=")
        if not equals or not name or not what:
            raise UsageError(f"--arg takes ARGUMENT=COLUMNS, such as --arg y=outcome, got {text!r}.")
        if name not in names:
            takes = ", ".join(names) or "no arguments"
            raise UsageError(f"the model has no argument {name!r}. {did_you_mean(name, names)}It takes {takes}.")
        asked[name] = what
    return asked


def _asked(name: str, text: str, data: Data, inputs: Sequence[Input]) -> Mapped:
    if text in data.values:
        return _named(name, [text], data, _is_matrix(name, inputs))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts and all(part in data.values for part in parts):
        return _named(name, parts, data, stacked=True)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        absent = next((part for part in parts if part not in data.values), text)
        have = ", ".join(data.values) or "nothing"
        raise UsageError(
            f"--arg {name}={text}: there is no column {absent!r}, and it is no number. "
            f"{did_you_mean(absent, list(data.values))}The data have {have}."
        ) from None
    value = np.asarray(value) if isinstance(value, list) else value
    return Mapped(name, value=value, origin="given")


def _is_matrix(name: str, inputs: Sequence[Input]) -> bool:
    return any(each.name == name and each.ndim == 2 for each in inputs)


def _named(name: str, columns: list[str], data: Data, stacked: bool = False) -> Mapped:
    if len(columns) == 1 and np.ndim(data.values[columns[0]]) != 1:  # a whole array, or a number
        return Mapped(name, columns=columns, origin=columns[0])
    word = "column" if len(columns) == 1 else "columns"
    return Mapped(name, columns, stacked, origin=f"{word} {', '.join(columns)}")


def _by_name(inputs: Sequence[Input], data: Data, mapped: dict[str, Mapped]) -> None:
    lower: dict[str, list[str]] = {}
    for name in data.values:
        lower.setdefault(name.lower(), []).append(name)
    for each in inputs:
        if each.name in mapped:
            continue
        alike = lower.get(each.name.lower(), [])
        if each.name in data.values:
            mapped[each.name] = _named(each.name, [each.name], data, each.ndim == 2)
        elif len(alike) == 1 and not any(other.name in alike for other in inputs):
            mapped[each.name] = _named(each.name, alike, data, each.ndim == 2)


def _by_count(inputs: Sequence[Input], data: Data, mapped: dict[str, Mapped]) -> None:
    for each in inputs:
        if each.name not in mapped and each.required and each.name in _ROWS and data.num_rows and not each.ndim:
            mapped[each.name] = Mapped(each.name, origin=_NUM_ROWS)


def _by_width(inputs: Sequence[Input], mapped: dict[str, Mapped]) -> None:
    """K and its like, from the only matrix that there is; once its columns are known."""
    widths = [each.value.shape[1] for each in mapped.values() if np.ndim(each.value) == 2]
    for each in inputs:
        if each.name not in mapped and each.required and each.name in _WIDTH and len(widths) == 1 and not each.ndim:
            mapped[each.name] = Mapped(each.name, value=widths[0], origin="the number of columns of the matrix")


def _by_rest(inputs: Sequence[Input], data: Data, mapped: dict[str, Mapped], starred: list[str]) -> None:
    """The columns that are left, to whom asked for them, or to whom they can only belong."""
    used = {column for each in mapped.values() for column in each.columns}
    left = [name for name in data.columns if name not in used]
    numbers = [name for name in left if np.asarray(data.values[name]).dtype.kind in "biuf"]
    waiting = [each for each in inputs if each.is_wanted and each.name not in mapped and each.name not in _WIDTH]
    names = starred or [each.name for each in waiting if each.is_matrix]
    others = [each for each in waiting if each.name not in names]
    if len(starred) > 1:
        raise UsageError(f"--arg takes one '*', and {' and '.join(starred)} were both given it.")
    if len(names) == 1 and numbers and (starred or not others):
        mapped[names[0]] = _named(names[0], numbers, data, stacked=True)
    elif not names and len(others) == 1 and len(left) == 1:
        mapped[others[0].name] = _named(others[0].name, left, data, others[0].is_matrix)


def _fill(
    mapped: list[Mapped], data: Data, labels: dict[str, list[str]], first_code: int, drop_missing: bool
) -> list[str]:
    """Look up the values, without rows that lack any; what should be known about them is returned.

    `labels` has the texts that have numbers already, and is given those that get some now.
    """
    notes: list[str] = []
    kept = _whole_rows(mapped, data, drop_missing, notes)
    num_rows = data.num_rows if kept is None else int(kept.sum())
    for each in mapped:
        parts = [_numbers(name, data.values[name], labels, first_code, notes) for name in each.columns]
        if kept is not None:
            pairs = zip(each.columns, parts, strict=True)
            parts = [part[kept] if name in data.columns else part for name, part in pairs]
        if parts:
            each.value = _stacked(each, parts) if each.stacked or len(parts) > 1 else parts[0]
        elif each.origin == _NUM_ROWS:
            each.value = num_rows
    return notes


def _stacked(mapped: Mapped, parts: list[Any]) -> np.ndarray:
    if len(parts) == 1 and np.ndim(parts[0]) == 2:
        return np.asarray(parts[0])
    if any(np.ndim(part) != 1 for part in parts) or len({len(part) for part in parts}) > 1:
        shapes = ", ".join(f"{name} {np.shape(part)}" for name, part in zip(mapped.columns, parts, strict=True))
        raise ValueError(f"the columns for {mapped.name} must be as long as each other, got {shapes}.")
    return np.column_stack(parts)


def _numbers(name: str, value: Any, labels: dict[str, list[str]], first_code: int, notes: list[str]) -> Any:
    """Texts as whole numbers, in alphabetical order, or in the order that they have already."""
    if np.asarray(value).dtype.kind != "U" or np.ndim(value) == 0:
        return value
    if name not in labels:
        labels[name] = np.unique(value).tolist()
        shown = ", ".join(f"{number + first_code} {label}" for number, label in enumerate(labels[name][:6]))
        notes.append(f"{name} holds texts, which become numbers: {shown}{', ...' if len(labels[name]) > 6 else ''}")
    codes = {label: number + first_code for number, label in enumerate(labels[name])}
    unknown = sorted(set(value.tolist()) - codes.keys())
    if unknown:
        raise ValueError(f"{name} has {unknown[0]!r}, which the data of the fit do not have.")
    return np.asarray([codes[label] for label in value.tolist()])


def _whole_rows(mapped: list[Mapped], data: Data, drop_missing: bool, notes: list[str]) -> np.ndarray | None:
    """Which rows of the table lack nothing that is used; None where all do."""
    used = sorted({name for each in mapped for name in each.columns if name in data.columns})
    lacking = {name: _is_missing(data.values[name]) for name in used}
    lacking = {name: where for name, where in lacking.items() if where.any()}
    if not lacking:
        return None
    bad = np.any(list(lacking.values()), axis=0)
    where = ", ".join(f"{name} ({int(rows.sum())})" for name, rows in lacking.items())
    if not drop_missing:
        first = int(np.flatnonzero(bad)[0]) + 1
        raise ValueError(
            f"values are missing in {where}, first in data row {first}. Fill them in, or leave those rows out with "
            "--drop-missing."
        )
    notes.append(f"{int(bad.sum())} of {len(bad)} rows are left out, because values are missing in {where}")
    return ~bad


def _is_missing(column: np.ndarray) -> np.ndarray:
    kind = column.dtype.kind
    return np.isnan(column) if kind == "f" else column == "" if kind == "U" else np.zeros(len(column), bool)


def _kind(value: Any) -> tuple[str, str]:
    return (str(value.shape), str(value.dtype)) if np.ndim(value) else ("", repr(value))

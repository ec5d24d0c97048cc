"""Data files: named columns or arrays from CSV, TSV, JSON, npz, Parquet and NetCDF."""

import csv
import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relbo.runtime.require import require

_MISSING = ("", "na", "nan", "n/a", "null", "none", ".")


@dataclass(frozen=True)
class Data:
    """What the files hold, by name."""

    values: dict[str, Any] = field(default_factory=dict)
    """Arrays, and plain numbers for scalars; columns of text are arrays of str."""
    columns: tuple[str, ...] = ()
    """Those of the names that are the columns of a table, all of one length."""

    @property
    def num_rows(self) -> int | None:
        return len(self.values[self.columns[0]]) if self.columns else None


def read_data(paths: list[pathlib.Path]) -> Data:
    """All files together. A name may be in one of them alone, and one of them may be a table."""
    together = Data()
    for path in paths:
        data = _read_one(path)
        twice = [name for name in data.values if name in together.values]
        if twice:
            raise ValueError(f"{path} and another data file both have {', '.join(twice)}: name it differently in one.")
        if together.columns and data.columns and together.num_rows != data.num_rows:
            raise ValueError(f"{path} has {data.num_rows} rows, where another data file has {together.num_rows}.")
        together = Data({**together.values, **data.values}, (*together.columns, *data.columns))
    return together


def _read_one(path: pathlib.Path) -> Data:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} is of no kind that can be read: give a file that ends in {', '.join(_READERS)}.")
    if not path.is_file():
        raise ValueError(f"there is no data file {path}.")
    try:
        data = reader(path)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error, KeyError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as {path.suffix.lower()[1:]}: {error}.") from error
    if not data.values:
        raise ValueError(f"{path} holds no data.")
    return data


def _read_csv(path: pathlib.Path, delimiter: str = ",") -> Data:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    if not rows:
        return Data()
    heading = [name.strip() for name in rows[0]]
    if len(set(heading)) < len(heading):
        raise ValueError(f"{path} has two columns of one name: {', '.join(heading)}.")
    if all(_number(name) is not None for name in heading):
        raise ValueError(f"{path} has no line with the names of its columns: its first line is {','.join(heading)}.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(heading):
            raise ValueError(f"{path} has {len(heading)} columns, and {len(row)} in line {number}.")
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else ()
    return _table(dict(zip(heading, map(_column, columns), strict=False)))


def _column(cells: tuple[str, ...]) -> np.ndarray:
    """Numbers if all cells are (whole ones if they are), else texts. A missing number is NaN."""
    numbers = [_number(cell) for cell in cells]
    if any(
        number is None and cell.strip().lower() not in _MISSING for number, cell in zip(numbers, cells, strict=True)
    ):
        return np.asarray([cell.strip() for cell in cells])
    column = np.asarray([np.nan if number is None else number for number in numbers])
    whole = np.all(np.isfinite(column)) and all("." not in cell and "e" not in cell.lower() for cell in cells)
    return column.astype(np.int64) if whole else column


def _number(cell: str) -> float | None:
    words = {"true": 1.0, "false": 0.0}
    cell = cell.strip().lower()
    if cell in words:
        return words[cell]
    try:
        return None if cell in _MISSING or "_" in cell else float(cell)
    except ValueError:
        return None


def _table(columns: dict[str, Any]) -> Data:
    return Data(columns, tuple(columns))


def _read_json(path: pathlib.Path) -> Data:
    """An object of names and values, as CmdStan's; or a list of objects, one for every row."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        names = list(dict.fromkeys(name for row in content for name in row))
        return _table({name: _listed([row.get(name, np.nan) for row in content], path, name) for name in names})
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object of names and values, or a list of rows.")
    values = {name: _listed(value, path, name) for name, value in content.items()}
    lengths = {len(value) if np.ndim(value) == 1 else None for value in values.values()}
    return _table(values) if len(lengths) == 1 and None not in lengths else Data(values)


def _listed(value: Any, path: pathlib.Path, name: str) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return np.asarray([np.nan if part is None else part for part in value])
    except ValueError as error:
        raise ValueError(f"{path}: {name} is a ragged list, and arrays have rows of one length.") from error


def _read_npz(path: pathlib.Path) -> Data:
    with np.load(path, allow_pickle=False) as arrays:
        return Data({name: _scalar(arrays[name]) for name in arrays.files})


def _read_parquet(path: pathlib.Path) -> Data:
    frame = require("pyarrow.parquet", extra="parquet").read_table(path)
    return _table({name: _arrow(frame.column(name)) for name in frame.column_names})


def _arrow(column: Any) -> np.ndarray:
    array = np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray([str(value) for value in array]) if array.dtype == object else array


def _read_netcdf(path: pathlib.Path) -> Data:
    """The variables at the root of the file, or those of ArviZ's observed_data and constant_data."""
    xarray = require("xarray", extra="arviz")
    found: dict[str, Any] = {}
    for group in (None, "observed_data", "constant_data"):
        try:
            with xarray.open_dataset(path, group=group, engine="h5netcdf") as dataset:
                found |= {str(name): _scalar(dataset[name].values) for name in dataset.data_vars}
        except (OSError, KeyError, ValueError):
            if group is None:
                raise
    return Data(found)


def _scalar(array: Any) -> Any:
    return array.item() if np.ndim(array) == 0 else np.asarray(array)


_READERS: dict[str, Callable[[pathlib.Path], Data]] = {
    ".csv": _read_csv,
    ".tsv": lambda path: _read_csv(path, "\t"),
    ".json": _read_json,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".nc": _read_netcdf,
    ".netcdf": _read_netcdf,
}

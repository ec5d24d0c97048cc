"""The data of a Stan program: what the user may give, and the JSON that Stan reads."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def read_data(data: Any) -> dict[str, Any]:
    """Names and plain values: numbers, nested lists, and dicts for tuples.

    `data` is None, a mapping, JSON, or the path of a file that holds JSON.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping | str | os.PathLike):
        raise TypeError(f"data must be a dict, JSON or the path of a .json file, got {type(data).__name__}.")
    if not isinstance(data, Mapping):
        is_text = isinstance(data, str) and data.lstrip().startswith("{")
        data = json.loads(str(data) if is_text else pathlib.Path(data).read_text())
    return {str(name): _plain(str(name), value) for name, value in data.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, str):  # "NaN", "Infinity": how JSON for Stan writes them
        return value
    if isinstance(value, Mapping):
        return {str(member): _plain(name, part) for member, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if np.ma.is_masked(value):
        raise TypeError(f"datum {name!r} is a masked array, which Stan cannot read. Leave the masked entries out.")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"datum {name!r} holds {type(value).__name__} of dtype {array.dtype}, which Stan cannot read. Give real "
            "numbers; encode categories as integers."
        )
    return (array.astype(int) if array.dtype == bool else array).tolist()


def to_json(values: dict[str, Any]) -> str:
    return json.dumps(values)


def to_arrays(values: dict[str, Any]) -> dict[str, np.ndarray]:
    """Those that are numbers or rectangular arrays of numbers."""
    arrays = {}
    for name, value in values.items():
        try:
            arrays[name] = np.asarray(value)
        except ValueError:  # ragged
            continue
    return {name: array for name, array in arrays.items() if array.dtype.kind in "iuf"}

"""The data of a Stan program: what the user may give, and the JSON that Stan reads."""

import json
import os
import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np


def read_data(data: Any) -> dict[str, Any]:
    """Names and plain values: numbers, nested lists, and dicts for tuples.

    `data` is None, a mapping, JSON, or the path of a file that holds JSON.
    """
    if isinstance(data, str) and data.lstrip().startswith("{"):
        data = json.loads(data)
    elif isinstance(data, str | os.PathLike):
        data = json.loads(pathlib.Path(data).read_text())
    elif not isinstance(data, Mapping | None):
        raise TypeError(f"data must be a dict, JSON or the path of a .json file, got {type(data).__name__}.")
    return {
        str(name): jax.tree.map(partial(_plain, str(name)), value, is_leaf=lambda part: part is None)
        for name, value in (data or {}).items()
    }


def _plain(name: str, value: Any) -> Any:
    """A leaf as JSON for Stan has it, which writes "NaN" and "Infinity" as texts."""
    if np.ma.is_masked(value):
        raise TypeError(f"datum {name!r} is a masked array, which Stan cannot read. Leave the masked entries out.")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" and not isinstance(value, str):
        raise TypeError(
            f"datum {name!r} holds {type(value).__name__} of dtype {array.dtype}, which Stan cannot read. Give real "
            "numbers; encode categories as integers."
        )
    return (array.astype(int) if array.dtype == bool else array).tolist()


def to_arrays(values: dict[str, Any]) -> dict[str, np.ndarray]:
    """Those that are numbers or rectangular arrays of numbers."""
    arrays = {}
    for name, value in values.items():
        try:
            arrays[name] = np.asarray(value)
        except ValueError:  # ragged
            continue
    return {name: array for name, array in arrays.items() if array.dtype.kind in "iuf"}

"""Other data and labels in a PyMC model, for as long as something is computed with them."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from relbo.runtime.words import shorten

Labels = Mapping[str, Any]


def put(model: Any, values: Mapping[Any, Any], labels: Labels) -> None:
    for variable, value in values.items():
        variable.set_value(np.asarray(value, variable.dtype))
    model.coords.update(labels)


def replace_data(model: Any, new_data: Mapping[str, Any], coords: Labels | None) -> None:
    """`pm.set_data`, with the labels of an axis counted anew if its length changes and `coords` has none for it."""
    coords = dict(coords or {})
    _check_names(model, new_data, coords)
    axes_of = model.named_vars_to_dims
    used = {axis for name in new_data for axis in axes_of.get(name) or ()}
    for axis in coords.keys() - used:
        along = [variable.name for variable in model.data_vars if axis in (axes_of.get(variable.name) or ())]
        if along and len(coords[axis]) != int(model.dim_lengths[axis].eval()):
            raise ValueError(
                f"coords gives {axis!r} another length, and {shorten(along)} lie along it: give them, too."
            )
        model.set_dim(axis, len(coords[axis]), coord_values=tuple(coords[axis]))
    for name, value in new_data.items():
        array = _array(model, name, value)
        labels = {}
        for axis, size in zip(axes_of.get(name) or (), array.shape, strict=False):
            if axis in coords and len(coords[axis]) != size:
                raise ValueError(
                    f"coords has {len(coords[axis])} labels for {axis!r}, and {name!r} has length {size} there. Give "
                    "one label for every entry."
                )
            if axis in coords or (model.coords.get(axis) is not None and len(model.coords[axis]) != size):
                labels[axis] = tuple(coords.get(axis, range(size)))
        model.set_data(name, array, coords=labels)


def _check_names(model: Any, new_data: Mapping[str, Any], coords: Labels) -> None:
    known = [variable.name for variable in model.data_vars]
    for name in new_data:
        if name not in known:
            raise ValueError(f"the model has no pm.Data called {name!r}. It has: {', '.join(known) or 'none'}.")
    for name in coords:
        if name not in model.coords:
            raise ValueError(f"coords names {name!r}, and the model has the dims {', '.join(model.coords) or 'none'}.")


def _array(model: Any, name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name!r} must hold real numbers, got dtype {array.dtype}. Encode categories as integers.")
    ndim = model[name].ndim
    if array.ndim != ndim:
        raise ValueError(f"{name!r} must have {ndim} dimensions as in the model, got shape {array.shape}.")
    return array


@contextlib.contextmanager
def readable_errors(before: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> Iterator[None]:
    """Where new data do not fit the rest of the model, PyTensor's errors tell of its own graph. These tell of the data.

    `before` has the shapes of all `pm.Data` before some were `given` anew.
    """
    try:
        yield
    except Exception as error:
        changed = [name for name in given if np.shape(given[name]) != before[name]]
        if not changed or _is_ours(error):
            raise
        resized = [f"{name} from {before[name]} to {np.shape(given[name])}" for name in changed]
        old = {size for name in changed for size in before[name]}
        kept = [f"{name} {shape}" for name, shape in before.items() if name not in given and old & set(shape)]
        advice = (
            f"Of the same length as before {'is' if len(kept) == 1 else 'are'} {shorten(kept)}: give new values for "
            f"{'it' if len(kept) == 1 else 'them'}, too."
            if kept
            else "Does an observed variable or a free one have the old length? shape=mu.shape lets it follow the data."
        )
        raise ValueError(
            f"the model cannot be run with these data: {', '.join(resized)}. {advice} PyTensor says: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _is_ours(error: Exception) -> bool:
    """Whether it was raised in this package, with a sentence of its own."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").startswith("relbo.")

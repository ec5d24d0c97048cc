"""A target in float64, whatever it was made in."""

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from relbo.targets.base import AbstractTarget
from relbo.targets.layout import Layout

T = TypeVar("T", bound=AbstractTarget)
_DOUBLE = np.dtype(np.float64)


def in_double(target: T) -> T:
    """The same target computing in float64: its data, its layout, and the targets that it wraps.

    To be called, and its density traced, inside `jax.enable_x64(True)`. What a model's function has written into it
    stays as it is: arrays of float32 are promoted where they meet the parameters, and a cast to float32 is a cast.
    """
    fields = {field.name: getattr(target, field.name) for field in dataclasses.fields(target)}
    return _copy(target, {name: _in_double(name, value) for name, value in fields.items()})


def _in_double(name: str, value: Any) -> Any:
    if isinstance(value, AbstractTarget):
        return in_double(value)
    if isinstance(value, Layout):
        return dataclasses.replace(value, dtype=_DOUBLE)
    if name == "dtype":
        return _DOUBLE
    return jax.tree.map(lambda leaf: leaf.astype(_DOUBLE) if _is_single(leaf) else leaf, value)


def widened(arrays: list[Any]) -> list[Any]:
    """Those of float32 in float64, by one program; the others as they are. Inside `jax.enable_x64(True)`."""
    wide = iter(_widened([array for array in arrays if _is_single(array)]))
    return [next(wide) if _is_single(array) else array for array in arrays]


@jax.jit
def _widened(arrays: list[Any]) -> list[Any]:
    return [array.astype(jnp.float64) for array in arrays]


def _is_single(leaf: Any) -> bool:
    return eqx.is_array_like(leaf) and getattr(leaf, "dtype", None) == np.float32


def _copy(target: Any, fields: dict[str, Any]) -> Any:
    """An Equinox module with other fields. Its own constructor would read the model again."""
    new = object.__new__(type(target))
    for name, value in fields.items():
        object.__setattr__(new, name, value)
    return new

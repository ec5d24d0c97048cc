"""Settings objects as JSON, by name: only classes and functions listed here can be read, and reading calls none else.

An object is `{"is": "NaturalAscent", "num_steps": 100, ...}`. What a user wrote themselves (a schedule, an Optax
optimiser, a family of their own) cannot be named; it is stored as its text, `{"not_stored": "..."}`, for the reader.
"""

import dataclasses
import functools
import inspect
import math
from types import NoneType
from typing import Any

import equinox as eqx
import jax
import numpy as np

from relbo import ascent, families, objectives, oracles, steps
from relbo.coordinates.race import Preconditioner
from relbo.objectives.residual import SCHEDULES, Constant, open_loop
from relbo.runtime.require import require
from relbo.storage.container import DTYPES

_CLASSES: dict[str, type[eqx.Module]] = {
    cls.__name__: cls
    for cls in (
        families.Box, families.Cholesky, families.Diagonal, families.FlowFamily, families.Laplace,
        families.LocationScale, families.LowRank,
        families.Normal, families.NumPyroFamily, families.StudentT, families.TruncatedNormal,
        objectives.ELBO, objectives.RELBO, objectives.FiniteStep, objectives.Reparameterized, objectives.ScoreFunction,
        objectives.StickingTheLanding, Constant,
        ascent.GradientAscent, ascent.NaturalAscent,
        oracles.AscentOracle, oracles.JointOracle, oracles.LaplaceOracle, oracles.Starts,
        steps.Adaptive, steps.Away, steps.Fixed, steps.FullyCorrective, steps.LineSearch, steps.NormCorrective,
        steps.Pairwise,
        Preconditioner,
    )
}  # fmt: skip
_FUNCTIONS = {**SCHEDULES, "1/(t+2)": open_loop}
_MOST_NESTED = 20  # ours have a few levels: more is forged


class NotStored(eqx.Module):
    """In place of a setting that a file cannot hold."""

    text: str = eqx.field(static=True)


@functools.singledispatch
def encode(value: Any) -> Any:
    """JSON for a setting; raises TypeError where there is none."""
    if type(value) is _CLASSES.get(type(value).__name__):
        return {"is": type(value).__name__} | {
            field.name: encode(_python(field.type, getattr(value, field.name))) for field in dataclasses.fields(value)
        }
    for name, function in _FUNCTIONS.items():
        if value is function:
            return {"function": name}
    if _is_numpyro(value):
        return {"numpyro": value.__name__}
    raise _unnamed(value)


@encode.register(str | int | NoneType)
def _(value):
    return value


@encode.register(float | np.float64)  # the latter is a float, too
def _(value):
    return encode_number(value)


@encode.register
def _(value: NotStored):
    return {"not_stored": value.text}


@encode.register(np.ndarray | np.generic | jax.Array)
def _(value):
    number = np.asarray(value)
    if number.ndim > 0:
        raise _unnamed(value)
    return {"number": encode_number(number.item()), "dtype": number.dtype.name}


@encode.register
def _(value: tuple):
    return {"tuple": [encode(item) for item in value]}


def _unnamed(value: Any) -> TypeError:
    return TypeError(f"{value!r} has no name that a file could hold")


def _is_numpyro(value: Any) -> bool:
    """Whether it is a distribution that `numpyro.distributions` offers by its name."""
    made_by = getattr(value, "__module__", None) or ""
    return made_by.startswith("numpyro.distributions.") and value in _distributions().values()


def _python(kind: Any, value: Any) -> Any:
    """A NumPy number in the place of a Python one as what it stands for."""
    return value.item() if kind in (int, float, bool) and isinstance(value, np.generic) else value


def encode_or_text(value: Any) -> Any:
    """JSON for a setting, or its text if there is none."""
    try:
        return encode(value)
    except TypeError:
        return {"not_stored": " ".join(repr(value).split())}


def decode(data: Any, depth: int = 0) -> Any:
    """The setting of a JSON value; raises ValueError for what `encode` never writes."""
    if depth > _MOST_NESTED:
        raise ValueError("settings are nested too deeply")
    if type(data) in (NoneType, bool, int, float, str):
        return data
    if type(data) is not dict:
        raise ValueError(f"unknown setting {data!r}")
    if "not_stored" in data:
        return NotStored(str(data["not_stored"]))
    if "number" in data:
        if data["dtype"] not in DTYPES:
            raise ValueError(f"unknown dtype {data['dtype']!r}")
        return np.asarray(decode_number(data["number"]), data["dtype"])
    if "tuple" in data:
        return tuple(decode(item, depth + 1) for item in data["tuple"])
    if "function" in data:
        return _known(_FUNCTIONS, data["function"])
    if "numpyro" in data:
        return _known(_distributions(), data["numpyro"])
    return _object(data, depth)


def _object(data: dict[str, Any], depth: int) -> eqx.Module:
    cls = _known(_CLASSES, data.get("is"))
    names = [field.name for field in dataclasses.fields(cls)]
    if not set(data) <= {"is", *names}:
        raise ValueError(f"{cls.__name__} has the fields {names}, got {sorted(set(data) - {'is'})}")
    made = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name not in data:  # written by an older version, which did not have it
            object.__setattr__(made, field.name, _default(cls, field))
            continue
        value = decode(data[field.name], depth + 1)
        if field.type is float and type(value) in (str, int):
            value = decode_number(value)
        if field.type in (int, bool, str, float) and type(value) is not field.type:
            raise ValueError(f"{cls.__name__}.{field.name} must be of type {field.type.__name__}, got {value!r}")
        if isinstance(field.type, type) and issubclass(field.type, eqx.Module) and not isinstance(value, field.type):
            raise ValueError(f"{cls.__name__}.{field.name} must be a {field.type.__name__}, got {value!r}")
        object.__setattr__(made, field.name, value)
    if hasattr(made, "__check_init__"):
        made.__check_init__()
    return made


def _default(cls: type, field: dataclasses.Field) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise ValueError(f"{cls.__name__} lacks {field.name}")


def _known(names: dict[str, Any], name: Any) -> Any:
    if name not in list(names):  # a list, for what stands in a file may not be hashable
        raise ValueError(f"unknown name {name!r}")
    return names[name]


def _distributions() -> dict[str, type]:
    module = require("numpyro.distributions", extra="numpyro")
    classes = inspect.getmembers(module, inspect.isclass)
    return {name: each for name, each in classes if issubclass(each, module.Distribution)}


def encode_number(value: float | int) -> Any:
    """JSON has no infinities and no NaN: they are written as texts."""
    return value if math.isfinite(value) else repr(float(value))


def decode_number(value: Any) -> float:
    if type(value) not in (int, float) and value not in ("inf", "-inf", "nan"):
        raise ValueError(f"{value!r} is not a number")
    return float(value)

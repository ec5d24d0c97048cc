"""The arguments of a NumPyro model: bound to their names, compared and described."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from relbo.targets.arguments import Arguments


def is_data(value: Any) -> bool:
    return isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def bound(model, args, kwargs) -> dict[str, Any]:
    try:
        signature = inspect.signature(model)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a callable without a signature: handlers wrap models in objects
        return {**{f"arg_{i}": value for i, value in enumerate(args)}, **kwargs}
    flat = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            flat.update({f"{name}_{i}": one for i, one in enumerate(value)})
        else:
            flat[name] = value
    return flat


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def describe(arguments: Arguments, arrays: list[Array]) -> str:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    args, kwargs = arguments.fill(shapes)
    text = [*map(_brief, args), *(f"{name}={_brief(value)}" for name, value in kwargs.items())]
    return f"({', '.join(text)})"


def _brief(value: Any) -> str:
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__

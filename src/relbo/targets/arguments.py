"""The arguments of a user's function, split into arrays, which are traced, and everything else, which is not."""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from relbo.distributed.agreeing import check_same
from relbo.runtime.spreading import is_spread, with_automatic_mesh
from relbo.runtime.words import plural

UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a function wants a traced array as plain numbers."""


@dataclass(frozen=True)
class Arguments:
    """The static part of `(args, kwargs)`. Two calls with arrays of the same shapes have equal static parts."""

    treedef: jax.tree_util.PyTreeDef
    static: tuple["_Fixed | _Traced", ...]
    """Leaf by leaf."""

    def fill(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these arrays in their places."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.treedef, [leaf.take(rest) for leaf in self.static])


@dataclass(frozen=True)
class _Fixed:
    """A static leaf. The type counts too: 1, 1.0 and True are equal, but not as arguments of a model."""

    kind: type
    value: Any

    def take(self, arrays: Iterator[Any]) -> Any:
        return self.value


@dataclass(frozen=True)
class _Traced:
    """The place of an array."""

    def take(self, arrays: Iterator[Any]) -> Any:
        return next(arrays)


def split_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, list[Array]]:
    """Arrays of NumPy and JAX are traced; Python numbers, strings, None and objects stay as they are.

    Series and data frames (of pandas, polars, xarray) are arrays, too: their values, without labels.

    Raises:
        TypeError: for a leaf that is neither an array of numbers nor hashable.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path((args, dict(sorted(kwargs.items()))))
    static: list[_Fixed | _Traced] = []
    arrays: list[Array] = []
    for path, leaf in leaves:
        leaf = _unframed(leaf)
        if isinstance(leaf, jax.Array | np.ndarray):
            _check_numeric(path, leaf)
            static.append(_Traced())
            arrays.append(own_array(leaf))
            continue
        fixed = leaf.item() if isinstance(leaf, np.generic) else leaf
        _check_hashable(path, fixed)
        static.append(_Fixed(type(fixed), fixed))
    return Arguments(treedef, tuple(static)), adopted(arrays)


def adopted(data: PyTree) -> PyTree:
    """Data, those arrays that lie on several devices on one mesh with automatic axes.

    Where other processes hold a part of them, all must mean the same arrays, or they would wait for each other forever.
    """
    spread = [leaf for leaf in jax.tree.leaves(data) if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1]
    if not spread:
        return data
    if not all(leaf.is_fully_addressable for leaf in spread):
        check_same({"the shapes of the data": [(leaf.shape, leaf.dtype.name, str(leaf.sharding)) for leaf in spread]})
    data = jax.tree.map(lambda leaf: with_automatic_mesh(leaf) if any(leaf is each for each in spread) else leaf, data)
    meshes = {str(leaf.sharding.mesh): None for leaf in jax.tree.leaves(data) if is_spread(leaf)}
    if len(meshes) > 1:
        raise ValueError(f"the arrays of data lie on different meshes: {'; '.join(meshes)}. Spread them over one.")
    return data


def own_array(leaf: Any) -> Array:
    """An array that no one else can change: what a user does to NumPy's data later must not reach the target."""
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf))


def is_numeric(dtype: Any) -> bool:
    """Whether JAX can compute with it: bfloat16 and random keys have no kind of their own in NumPy."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.number, jax.dtypes.prng_key))


def _unframed(leaf: Any) -> Any:
    if not hasattr(leaf, "to_numpy"):
        return leaf
    array = np.asarray(leaf.to_numpy())
    if array.dtype == object and all(isinstance(item, int | float | np.number) for item in array.ravel()):
        return array.astype(np.float64)  # columns of different kinds of numbers
    return array


def check_call(what: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that a function does not take, before anything is traced.

    Raises:
        TypeError: with what it takes and what it was given.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = [plural(len(args), "positional argument"), *kwargs]
        raise TypeError(f"{what} takes {signature}, and was given {', '.join(given)}: {error}.") from error


@contextlib.contextmanager
def plain_data_named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Where a model cannot be run, say which of its arguments are texts or lists, if any are."""
    try:
        yield
    except UNTRACEABLE:
        raise
    except TypeError as error:
        plain = _plain_arguments(args, kwargs)
        if not plain:
            raise
        raise TypeError(f"the model cannot be run ({str(error).splitlines()[0]}). {plain}") from error


def _plain_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Texts and lists of plain values among the arguments, which a model may have wanted as arrays; or ""."""
    named = [*((f"number {index + 1}", value) for index, value in enumerate(args)), *kwargs.items()]
    plain = [f"{name} is a {type(value).__name__}" for name, value in named if _is_plain(value)]
    return (
        f"Of its arguments {', '.join(plain)}: pass data as arrays, texts and categories encoded as integers."
        if plain
        else ""
    )


def _is_plain(value: Any) -> bool:
    kinds = {type(item) for item in jax.tree.leaves(value)} if isinstance(value, str | list | tuple) else set()
    return bool(kinds) and all(issubclass(kind, str | int | float) for kind in kinds)


def _check_numeric(path: Any, leaf: Any) -> None:
    where = jax.tree_util.keystr(path[1:])
    if np.ma.is_masked(leaf):
        raise TypeError(
            f"the model's argument {where} is a masked array, and JAX knows no masks. Pass values and mask, for "
            "numpyro.sample(..., obs_mask=mask), or leave the masked rows out."
        )
    if not is_numeric(leaf.dtype):
        raise TypeError(
            f"the model's argument {where} is an array of dtype {leaf.dtype}, which is not numeric. "
            "Encode strings and categories as integers."
        )


def _check_hashable(path: Any, leaf: Any) -> None:
    where = jax.tree_util.keystr(path[1:])
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(
            f"the model's argument {where} is of type {type(leaf).__name__}, which is neither an array nor hashable. "
            "Pass numbers as arrays, for example frame.to_numpy()."
        ) from error

"""The arguments of a user's function, split into arrays, which are traced, and everything else, which is not."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


@dataclass(frozen=True)
class Arguments:
    """The static part of `(args, kwargs)`. Two calls with arrays of the same shapes have equal static parts."""

    treedef: jax.tree_util.PyTreeDef
    static: tuple[Any, ...]
    """Leaf by leaf; None where there is an array."""

    def fill(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these arrays in their places."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf.value for leaf in self.static]
        return jax.tree.unflatten(self.treedef, leaves)


@dataclass(frozen=True)
class _Fixed:
    """A static leaf. The type counts too: 1, 1.0 and True are equal, but not as arguments of a model."""

    kind: type
    value: Any


_ARRAY = "array"


def split_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, list[Array]]:
    """Arrays of NumPy and JAX are traced; Python numbers, strings, None and objects stay as they are.

    Raises:
        TypeError: for a leaf that is neither an array nor hashable, such as a data frame.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path((args, dict(sorted(kwargs.items()))))
    static: list[Any] = []
    arrays: list[Array] = []
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray) and _is_numeric(leaf):
            static.append(_ARRAY)
            # A copy: what the user does to the data later must not reach the target.
            arrays.append(leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf)))
            continue
        fixed = leaf.item() if isinstance(leaf, np.generic) else leaf
        _check_hashable(path, fixed)
        static.append(_Fixed(type(fixed), fixed))
    return Arguments(treedef, tuple(static)), arrays


def _is_numeric(leaf: Any) -> bool:
    return leaf.dtype.kind in "biufc" or jnp.issubdtype(leaf.dtype, jnp.floating) or isinstance(leaf, jax.Array)


def _check_hashable(path: Any, leaf: Any) -> None:
    where = jax.tree_util.keystr(path[1:])
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(
            f"the model's argument {where} is of type {type(leaf).__name__}, which is neither an array nor hashable. "
            "Pass numbers as arrays, for example frame.to_numpy()."
        ) from error

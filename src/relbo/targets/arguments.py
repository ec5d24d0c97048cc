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
    """Leaf by leaf; `"array"` where there is one."""

    def fill(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these arrays in their places."""
        rest = iter(arrays)
        leaves = [leaf.value if isinstance(leaf, _Fixed) else next(rest) for leaf in self.static]
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
        if isinstance(leaf, jax.Array | np.ndarray):
            _check_numeric(path, leaf)
            static.append(_ARRAY)
            # A copy: what the user does to the data later must not reach the target.
            arrays.append(leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf)))
            continue
        fixed = leaf.item() if isinstance(leaf, np.generic) else leaf
        _check_hashable(path, fixed)
        static.append(_Fixed(type(fixed), fixed))
    return Arguments(treedef, tuple(static)), arrays


def _check_numeric(path: Any, leaf: Any) -> None:
    where = jax.tree_util.keystr(path[1:])
    if np.ma.is_masked(leaf):
        raise TypeError(
            f"the model's argument {where} is a masked array, and JAX knows no masks. Pass values and mask, for "
            "numpyro.sample(..., obs_mask=mask), or leave the masked rows out."
        )
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufc" and not jnp.issubdtype(leaf.dtype, jnp.floating):
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

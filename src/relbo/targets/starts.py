"""Starting points: the example, and whatever the user adds to it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo.targets.arguments import UNTRACEABLE
from relbo.targets.layout import Layout

NUM_DRAWS = 16
"""How many points are drawn from a callable `init`."""


def starting_points(layout: Layout, example: list[np.ndarray], init: Any) -> Float[Array, "num dim"]:
    """The example and the points of `init`, unconstrained, by one compiled program.

    `init` is None, a tree of the example's structure whose leaves have a leading axis, or a callable
    `init(key) -> params` from which `NUM_DRAWS` points are drawn with a fixed key. A given point that is not inside its
    support is an error; a drawn one is left out, as a draw may underflow onto the boundary.
    """
    drawn = callable(init)
    extra = _read_points(layout, _draw(init) if drawn else init, "init(key)" if drawn else "init")
    stacked = [np.concatenate([leaf[None], more]) for leaf, more in zip(example, extra, strict=True)]
    points = _unconstrain(layout, stacked)
    finite = np.isfinite(points).all(axis=1)
    if not finite[0]:
        raise ValueError(_on_boundary(layout, np.asarray(points)[0]))
    usable = finite & _inside(layout, stacked)
    usable[0] = True  # `read_example` has judged it before it was rounded to the dtype
    bad = np.flatnonzero(~usable[1:])
    if len(bad) > 0 and not drawn:
        raise ValueError(
            f"point {bad[0]} of init lies outside its support or on its boundary. "
            "Give init in the model's own (constrained) space."
        )
    if len(bad) > NUM_DRAWS // 2:
        raise ValueError(
            f"{len(bad)} of {NUM_DRAWS} draws of init(key) lie outside their support or on its boundary. "
            "Does init return params in the model's own (constrained) space?"
        )
    return points if usable.all() else jnp.asarray(np.asarray(points)[usable])


def _draw(init: Any) -> Any:
    draws = jax.jit(lambda: jax.vmap(init)(jax.random.split(jax.random.key(0), NUM_DRAWS)))
    try:
        return draws()
    except UNTRACEABLE as error:
        raise TypeError(
            "init(key) cannot be traced by JAX. Draw with jax.random, or draw outside and pass the points as a tree "
            f"with a leading axis. JAX says: {str(error).splitlines()[0]}"
        ) from error


def _read_points(layout: Layout, init: Any, what: str) -> list[np.ndarray]:
    """The leaves of `init` as arrays of shape (num, ...), having checked structure and shapes."""
    if init is None:
        return [np.zeros((0, *leaf.shape), layout.dtype) for leaf in layout.leaves]
    arrays = [np.asarray(leaf) for leaf in layout.match(init, what)]
    for leaf, array in zip(layout.leaves, arrays, strict=True):
        if array.ndim == 0 or array.shape[1:] != leaf.shape:
            shape = str(("num", *leaf.shape)).replace("'", "")
            raise ValueError(
                f"parameter {leaf.name!r} of {what} must have shape {shape}, got {array.shape}. "
                "Points are stacked along a leading axis; init(key) returns one point, which is stacked for you."
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"parameter {leaf.name!r} of {what} must hold floats, got dtype {array.dtype}.")
    counts = {leaf.name: len(array) for leaf, array in zip(layout.leaves, arrays, strict=True)}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the leaves of {what} must agree on the number of points, got {counts}.")
    return [array.astype(layout.dtype) for array in arrays]


@partial(jax.jit, static_argnums=0)
def _unconstrain(layout: Layout, stacked: list[Float[Array, "num ..."]]) -> Float[Array, "num dim"]:
    return jax.vmap(layout.unconstrain_leaves)(stacked)


def _inside(layout: Layout, stacked: list[np.ndarray]) -> np.ndarray:
    num = len(stacked[0])
    pairs = zip(layout.leaves, stacked, strict=True)
    masks = [leaf.support.contains(values, layout.dtype) for leaf, values in pairs if leaf.support is not None]
    return np.all([np.ones(num, bool), *masks], axis=0)


def _on_boundary(layout: Layout, point: np.ndarray) -> str:
    names = [name for name, value in zip(layout.coordinate_names(), point, strict=True) if not np.isfinite(value)]
    return (
        f"the example lies on the boundary of its support, where the unconstrained coordinates {', '.join(names[:8])} "
        "are infinite. Move it inside."
    )

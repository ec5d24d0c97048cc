r"""The layout of a parameter tree in one flat, unconstrained vector.

Leaf $i$ of the example, of support $S_i$, owns a slice $z_i$ of $z \in \mathbb{R}^d$, and a bijection
$T_i : \mathbb{R}^{k_i} \to S_i$ maps it to the leaf's value. $T = (T_1, T_2, \dots)$ and
$\log |\det J_T| = \sum_i \log |\det J_{T_i}|$. Sizes may differ: a simplex of $k$ has $k - 1$ coordinates.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.targets.supports import Support, assign_supports, brief


@dataclass(frozen=True)
class Leaf:
    """One leaf of the example. `flat_shape` is the shape of its unconstrained coordinates."""

    name: str
    shape: tuple[int, ...]
    flat_shape: tuple[int, ...]
    support: Support | None

    @property
    def size(self) -> int:
        return math.prod(self.flat_shape)

    def constrain(self, part: Float[Array, " size"]) -> tuple[Float[Array, "..."], Float[Array, ""]]:
        """The value at these coordinates, and log |det J|."""
        x = part.reshape(self.flat_shape)
        if self.support is None:
            return x, jnp.zeros((), x.dtype)
        bijection = self.support.bijection()
        value, intermediates = bijection.call_with_intermediates(x)
        return value, jnp.sum(bijection.log_abs_det_jacobian(x, value, intermediates))

    def unconstrain(self, value: Float[Array, "..."]) -> Float[Array, " size"]:
        x = value if self.support is None else self.support.bijection().inv(value)
        return jnp.reshape(x, (self.size,))

    def coordinate_names(self) -> list[str]:
        return entry_names(self.name, self.flat_shape)


@dataclass(frozen=True)
class Layout:
    """The bijection between flat points and parameter trees. Static and hashable."""

    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[Leaf, ...]
    dtype: np.dtype[Any]

    @property
    def dim(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    @property
    def names(self) -> list[str]:
        return [leaf.name for leaf in self.leaves]

    def constrain(self, z: Float[Array, " dim"]) -> PyTree:
        return self.constrain_with_log_det(z)[0]

    def constrain_with_log_det(self, z: Float[Array, " dim"]) -> tuple[PyTree, Float[Array, ""]]:
        """$T(z)$ as a tree of the example's structure, and $\\log |\\det J_T(z)|$."""
        values, log_dets = zip(*map(Leaf.constrain, self.leaves, self._split(z)), strict=True)
        params = jax.tree.unflatten(self.treedef, [value.astype(self.dtype) for value in values])
        return params, sum(log_dets, jnp.zeros((), self.dtype)).astype(self.dtype)

    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        """$T^{-1}$. Leaves are matched by name, so any container with the example's names will do."""
        values = self.match(params, "params")
        for leaf, value in zip(self.leaves, values, strict=True):
            if jnp.shape(value) != leaf.shape:
                raise ValueError(
                    f"parameter {leaf.name!r} must have shape {leaf.shape}, got {jnp.shape(value)}. "
                    "unconstrain takes one point: use jax.vmap for a batch."
                )
        return self.unconstrain_leaves([jnp.asarray(value, self.dtype) for value in values])

    def unconstrain_leaves(self, values: list[Float[Array, "..."]]) -> Float[Array, " dim"]:
        """$T^{-1}$ of the leaves in the layout's order, unchecked."""
        return jnp.concatenate(list(map(Leaf.unconstrain, self.leaves, values))).astype(self.dtype)

    def coordinate_names(self) -> list[str]:
        return [name for leaf in self.leaves for name in leaf.coordinate_names()]

    def supports(self) -> dict[str, str]:
        """Where every parameter lives, in a word or two."""
        return {leaf.name: "real" if leaf.support is None else leaf.support.label for leaf in self.leaves}

    def match(self, tree: PyTree, what: str) -> list[Any]:
        """The leaves of `tree` in the layout's order, by name."""
        given = dict(named_leaves(tree)[0])
        missing = [name for name in self.names if name not in given]
        unexpected = [name for name in given if name not in self.names]
        if missing or unexpected:
            parts = [f"missing {', '.join(missing)}"] if missing else []
            parts += [f"unexpected {', '.join(unexpected)}"] if unexpected else []
            raise ValueError(
                f"{what} must have the structure of the example, with leaves {', '.join(self.names)}; "
                f"got {'; '.join(parts)}."
            )
        return [given[name] for name in self.names]

    def _split(self, z: Float[Array, " dim"]) -> list[Array]:
        z = one_point(z, self.dim, self.dtype)
        ends = np.cumsum([leaf.size for leaf in self.leaves])
        return [z[end - leaf.size : end] for leaf, end in zip(self.leaves, ends, strict=True)]


def one_point(z: Float[Array, "..."], dim: int, dtype: np.dtype[Any]) -> Float[Array, " dim"]:
    """`z` as an array of this dtype, having checked that it is one point."""
    z = jnp.asarray(z, dtype)
    if z.shape != (dim,):
        raise ValueError(f"expected one point of shape ({dim},), got {z.shape}. Use jax.vmap for a batch.")
    return z


def entry_names(name: str, shape: tuple[int, ...], first_index: int = 0) -> list[str]:
    """The names of the scalars in an array, row by row, counted from `first_index`.

    >>> entry_names("b", (1, 2)), entry_names("mu", ())
    (['b[0,0]', 'b[0,1]'], ['mu'])
    """
    places = [",".join(str(first_index + i) for i in index) for index in np.ndindex(shape)]
    return [f"{name}[{place}]" for place in places] if shape else [name]


def named_leaves(tree: PyTree) -> tuple[list[tuple[str, Any]], jax.tree_util.PyTreeDef]:
    """Leaves with their dotted paths. The only leaf of a bare array is called "z"."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "z", leaf) for path, leaf in leaves], treedef


def read_example(example: PyTree, supports: Any) -> tuple[Layout, list[np.ndarray]]:
    """The layout of an example in constrained space, and its leaves as arrays of the layout's dtype.

    The dtype is JAX's promotion of the leaves (Python floats are weak), float32 at least.
    """
    named, treedef = named_leaves(example)
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise ValueError(f"two parameters of the example have the same path: {', '.join(sorted(names))}. Rename one.")
    arrays = [_float_array(name, leaf) for name, leaf in named]
    if sum(array.size for array in arrays) == 0:
        raise ValueError(f"the example holds no numbers, so there is nothing to infer. Got: {example!r}.")
    dtype = np.dtype(jnp.promote_types(jnp.result_type(*(leaf for _, leaf in named)), jnp.float32))
    given = zip(names, arrays, assign_supports(supports, names), strict=True)
    layout = Layout(treedef, tuple(_read_leaf(name, array, support, dtype) for name, array, support in given), dtype)
    if layout.dim == 0:
        raise ValueError("the example has no free coordinates (a simplex of one entry is a constant). Leave it out.")
    return layout, [array.astype(dtype) for array in arrays]


def _float_array(name: str, leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool:
        raise TypeError(
            f"parameter {name!r} of the example has dtype {array.dtype}; parameters must be floats. Write 0.0 for 0; "
            "marginalise parameters that are truly discrete (sum them out inside log_density)."
        )
    if array.dtype.kind == "c":
        raise TypeError(
            f"parameter {name!r} of the example has dtype {array.dtype}; parameters must be real floats. "
            "Give real and imaginary parts separately."
        )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"parameter {name!r} of the example is {leaf!r}, of type {type(leaf).__name__}; parameters must be real "
            'floats. The example is a point of the model, such as {"mu": 0.0, "sigma": 1.0}.'
        )
    return array


def _read_leaf(name: str, array: np.ndarray, support: Support | None, dtype: np.dtype[Any]) -> Leaf:
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(dtype))
    if not np.all(finite):
        raise ValueError(
            f"parameter {name!r} of the example is not finite in {dtype}: {brief(array)}. "
            "Give a finite point from which the fit may start."
        )
    if support is None:
        return Leaf(name, array.shape, array.shape, None)
    leaf = Leaf(name, array.shape, _flat_shape(name, array.shape, support), support)
    if not support.contains(array[None], dtype)[0]:
        raise ValueError(
            f"parameter {name!r} of the example lies outside its support {support.label}: {brief(array)}. "
            "The example is given in the model's own (constrained) space."
        )
    return leaf


def _flat_shape(name: str, shape: tuple[int, ...], support: Support) -> tuple[int, ...]:
    """The shape of the unconstrained coordinates, having checked that the bijection makes `shape` of them."""
    problem = f"parameter {name!r} of shape {shape} cannot have the support {support.label}"
    if len(shape) < support.event_dim:
        raise ValueError(f"{problem}, which needs an array of at least {support.event_dim} dimensions.")
    bijection = support.bijection()
    try:
        flat_shape = tuple(bijection.inverse_shape(shape))
        forward_shape = tuple(bijection.forward_shape(flat_shape))
    except Exception as error:
        raise ValueError(f"{problem}: {error}") from error
    if forward_shape != shape:
        raise ValueError(f"{problem}, which makes shape {forward_shape}. Do the bounds have the parameter's shape?")
    return flat_shape

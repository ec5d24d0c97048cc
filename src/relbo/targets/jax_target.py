"""A log density written in JAX, over any tree of parameters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.targets.arguments import adopted, check_call, is_numeric, own_array
from relbo.targets.base import AbstractLayoutTarget
from relbo.targets.checks import check_at_example, check_traceable, has_hessian
from relbo.targets.layout import Layout, read_example
from relbo.targets.search import NUM_TRIED, Tries, jittered, name_nan, uniform
from relbo.targets.starts import starting_points


class JaxTarget(AbstractLayoutTarget):
    r"""$\log p(z) = f(T(z), \text{args}) + \log |\det J_T(z)|$ with $f$ traceable by JAX. Made by `from_log_density`.

    The function is static and `args` are array leaves: a target with the same function and other data of the same
    shapes runs the same compiled programs.
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    layout: Layout = eqx.field(static=True)
    function: Callable[..., Any] = eqx.field(static=True)
    args: tuple[PyTree, ...]

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[PyTree, ...],
        layout: Layout,
        initial: Float[Array, "num dim"],
        *,
        differentiable: bool,
        twice_differentiable: bool,
    ):
        self.dim, self.dtype = layout.dim, layout.dtype
        self.differentiable, self.twice_differentiable = differentiable, twice_differentiable
        self.initial, self.layout, self.function, self.args = initial, layout, function, args

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        params, log_det = self.layout.constrain_with_log_det(z)
        return (jnp.asarray(self.function(params, *self.args)) + log_det).astype(self.dtype)

    def held_data(self) -> PyTree:
        return self.args


def from_log_density(
    function: Callable[..., Any],
    example: PyTree,
    *,
    args: Any = (),
    supports: Any = None,
    init: Any = None,
    differentiable: bool = True,
) -> JaxTarget:
    """A target from a JAX log density, checked before it is returned.

    Arguments:
        function: `function(params, *args)` returns log p, a scalar, up to a constant. Use the same function object
            again for new data, and nothing is compiled twice.
        example: one point of positive density, in the model's own (constrained) space: any tree of floats. It sets
            names, structure, shapes and dtype of the parameters (float32, or float64 if JAX has x64 enabled), and is
            the first starting point; if density or gradient are not finite there, another one is looked for, with a
            warning.
        args: data: a tuple of arrays or trees of arrays. They are traced, so new data of the same shapes do not
            recompile.
        supports: where parameters live, if not on the whole real line: `{"sigma": "positive"}`. A name, a tuple such
            as `("interval", 0, 1)` or a NumPyro constraint object, in the structure of the example, cut short
            anywhere. NumPyro's bijections map R^d there, and log |det J| is added (extra `numpyro`).
        init: more starting points: a tree like the example with a leading axis, or `init(key) -> params`, such as prior
            draws, of which sixteen are taken. Points of zero density are kept: whoever starts from them has to look.
        differentiable: False if JAX's gradient of `function` means nothing (it rounds, compares, simulates).

    Raises:
        ValueError, TypeError: for whatever can be seen to be wrong at the example, and if there is no point to start
            from among a hundred (of `init`, near the example, in (-2, 2)). Hidden randomness is found by
            tracing twice, so not if `function` is itself jitted and cached.

    Example:
        >>> import jax.numpy as jnp
        >>> def log_density(params, y):
        ...     residual = (y - params["mu"]) / params["sigma"]
        ...     return -jnp.sum(residual**2) / 2 - y.size * jnp.log(params["sigma"]) - params["sigma"]
        >>> y = jnp.array([1.0, 2.0, 4.0])
        >>> target = from_log_density(
        ...     log_density, {"mu": 0.0, "sigma": 1.0}, args=(y,), supports={"sigma": "positive"}
        ... )
        >>> target.dim, target.coordinate_names()
        (2, ['mu', 'sigma'])
    """
    _check_function(function)
    layout, leaves = read_example(example, supports)
    data = _read_args(args)
    check_call("log_density(params, *args)", function, (example, *data), {})
    check_traceable(function, layout, data)
    initial = starting_points(layout, leaves, init)
    build = partial(JaxTarget, function, data, layout, differentiable=differentiable)
    target = build(initial, twice_differentiable=False)
    target = check_at_example(target, _other_starts(np.asarray(initial)), "the example", partial(_report, data))
    return build(target.initial, twice_differentiable=True) if differentiable and has_hessian(target) else target


def _other_starts(initial: np.ndarray) -> list[Tries]:
    """Where the example will not do: the user's own points first, then points near it, then points anywhere."""
    given = Tries("a point of init", initial[1:NUM_TRIED])
    return [given, jittered(initial[0], "it"), uniform(initial.shape[1], initial.dtype, NUM_TRIED)]


def _report(args: tuple[PyTree, ...]) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(args)
    return name_nan((f"args{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise TypeError(f"log_density must be a function of (params, *args), got {type(function).__name__}.")
    try:
        hash(function)
    except TypeError as error:
        raise TypeError(
            f"log_density of type {type(function).__name__} cannot be hashed, so JAX could not tell whether it is "
            "already compiled. Give a plain function and pass what it holds (arrays, modules) through args."
        ) from error


def _read_args(args: Any) -> tuple[PyTree, ...]:
    if not isinstance(args, tuple | list):
        raise TypeError(f"args must be a tuple of arrays or trees, got {type(args).__name__}. Write args=(data,).")
    return adopted(jax.tree_util.tree_map_with_path(_data_array, tuple(args)))


def _data_array(path: Any, leaf: Any) -> Array:
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if not is_numeric(array.dtype):
        raise TypeError(
            f"args{jax.tree_util.keystr(path)} is of type {type(leaf).__name__} (dtype {array.dtype}), which is not "
            "numeric. Encode categories as integers; bind options by functools.partial, and keep args for data."
        )
    return own_array(array)

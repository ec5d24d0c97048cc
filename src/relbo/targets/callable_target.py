"""A log density computed outside JAX: any value-and-gradient function, by host callback."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo.runtime.choices import whole_number
from relbo.runtime.warn import warn
from relbo.targets.base import AbstractLayoutTarget
from relbo.targets.checks import check_repeatable
from relbo.targets.layout import Layout, one_point, read_example
from relbo.targets.search import NUM_TRIED, Tries, first_usable, jittered, moved, nowhere, problem_at, uniform
from relbo.targets.starts import starting_points
from relbo.targets.supports import brief


@dataclass(frozen=True)
class Host:
    """The user's function, with what is known of its form. Points come as float64 of shape (num, dim)."""

    function: Callable[..., Any]
    gradient: bool
    batched: bool

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of shape (num,) and gradients of shape (num, dim): zeros at zero density, or if there are none."""
        if self.batched:
            values, gradients = self._evaluate(points, points.shape[:1])
        else:
            pairs = [self._evaluate(point, ()) for point in points]
            values, gradients = map(np.stack, zip(*pairs, strict=True))
        return values, np.where(values[:, None] == -np.inf, 0.0, gradients)

    def _evaluate(self, z: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        try:
            out = self.function(z)
        except Exception as error:
            message = f"the function given to from_callable raised {type(error).__name__}: {error} (at z = {brief(z)})"
            raise RuntimeError(message) from error
        if not self.gradient:
            return _real("value", out, shape), np.zeros(z.shape)
        if not isinstance(out, tuple | list) or len(out) != 2:
            raise TypeError(
                f"function must return (value, gradient), got {type(out).__name__}. Pass gradient=False if it has none."
            )
        return _real("value", out[0], shape), _real("gradient", out[1], z.shape)


class CallableTarget(AbstractLayoutTarget):
    """log p from a host function of unconstrained points. Made by `from_callable`.

    One `pure_callback` serves a whole batch under `vmap`. Reverse mode works once (no Hessians, no forward mode); where
    nothing flows back, nothing does: a cotangent of zero gives zero, even against an infinite gradient.
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    layout: Layout = eqx.field(static=True)
    host: Host = eqx.field(static=True)

    def __init__(self, host: Host, layout: Layout, initial: Float[Array, "num dim"]):
        self.dim, self.dtype = layout.dim, layout.dtype
        self.differentiable, self.twice_differentiable = host.gradient, False
        self.initial, self.layout, self.host = initial, layout, host

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return _log_density(self.host, one_point(z, self.dim, self.dtype))

    def on_host(self, batch=None, between=None):
        del batch, between
        return self.host


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_density(host: Host, z: Float[Array, " dim"]) -> Float[Array, ""]:
    return _call_back(host, z)[0]


def _forward(host: Host, z: Float[Array, " dim"]) -> tuple[Array, Array]:
    if not host.gradient:
        raise TypeError(
            "this target was made by from_callable(..., gradient=False), so its log density has no gradient. "
            'Fit it with estimator="score", or give a function that returns (value, gradient).'
        )
    return _call_back(host, z)


def _backward(host: Host, gradient: Float[Array, " dim"], cotangent: Float[Array, ""]) -> tuple[Array]:
    return (jnp.where(cotangent == 0, 0, cotangent * gradient),)


_log_density.defvjp(_forward, _backward)


def _call_back(host: Host, z: Float[Array, " dim"]) -> tuple[Float[Array, ""], Float[Array, " dim"]]:
    shapes = jax.ShapeDtypeStruct((), z.dtype), jax.ShapeDtypeStruct(z.shape, z.dtype)
    return jax.pure_callback(partial(_on_host, host), shapes, z, vmap_method="expand_dims")


def _on_host(host: Host, z: Any) -> tuple[np.ndarray, np.ndarray]:
    """`z` has shape (..., dim), with one leading axis for every `vmap`."""
    points = np.array(z, np.float64)  # a copy: the function may write into it
    values, gradients = host(points.reshape(-1, points.shape[-1]))
    with np.errstate(over="ignore"):
        return values.reshape(z.shape[:-1]).astype(z.dtype), gradients.reshape(z.shape).astype(z.dtype)


def from_callable(
    function: Callable[..., Any],
    dim: int,
    *,
    gradient: bool = True,
    batched: bool = False,
    dtype: Any = None,
    init: Any = None,
    names: Sequence[str] | None = None,
) -> CallableTarget:
    """A target from a log density that JAX cannot see into: BridgeStan, PyTorch, Julia, a simulator.

    Arguments:
        function: takes a NumPy float64 vector of shape (dim,) of unconstrained coordinates, and returns log p and its
            gradient, `(float, array of shape (dim,))`. It must be deterministic. log p may be -inf, and then the
            gradient counts as zero. An exception inside it stops the fit: JAX raises `jax.errors.JaxRuntimeError`
            whose text ends with the exception's own type and message, and the point.
        dim: the number of coordinates.
        gradient: False if `function` returns log p alone; the score-function estimator serves such a target.
        batched: True if `function` takes points of shape (num, dim) and returns values (num,) and gradients (num, dim).
            Otherwise a batch is a loop on the host, within one callback.
        dtype: of what JAX sees; float64 if JAX has x64 enabled, else float32.
        init: starting points: an array of shape (num, dim) or (dim,), or `init(key) -> z`; the origin if not given.
            Where density or gradient are not finite at the first, another one is looked for, with a warning.
        names: of the coordinates, in order; then `constrain` gives a dict of scalars rather than the vector.

    Raises:
        ValueError, TypeError: if what comes back is not a number with a gradient of the right shape, is not
            repeatable, or is not finite at a hundred starting points; or if the gradient contradicts the value's
            change along a line.
        RuntimeError: if the function itself raises there.

    Example:
        >>> target = from_callable(lambda z: (-0.5 * z @ z, -z), dim=3)
        >>> float(target.log_density(jnp.ones(3)))
        -1.5
    """
    _check_form(function, dim, names)
    dtype = _read_dtype(dtype)
    plain, _ = read_example(np.zeros(dim, dtype), None)
    layout = plain
    if names is not None:  # an OrderedDict keeps the order of the coordinates in JAX, where a dict is sorted
        layout, _ = read_example(OrderedDict((name, np.zeros((), dtype)) for name in names), None)
    target = CallableTarget(Host(function, gradient, batched), layout, _read_init(plain, init))
    return _checked_start(target)


def _check_form(function: Any, dim: Any, names: Sequence[str] | None) -> None:
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}.")
    whole_number("dim", dim, 1)
    if names is None:
        return
    if len(names) != dim or len(set(names)) != dim or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names must be {dim} different strings, one for every coordinate, got {names!r}.")


def _read_dtype(dtype: Any) -> np.dtype[Any]:
    wanted = np.dtype(np.float64 if dtype is None else dtype)
    if wanted not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {wanted}.")
    possible = np.dtype(jax.dtypes.canonicalize_dtype(wanted))
    if dtype is not None and possible != wanted:
        raise ValueError('dtype float64 needs x64 in JAX. Call jax.config.update("jax_enable_x64", True) first.')
    return possible


def _read_init(layout: Layout, init: Any) -> Float[Array, "num dim"]:
    """Starting points in the plain coordinates; the origin only if there are no others."""
    origin = [np.zeros(layout.dim, layout.dtype)]
    if init is None:
        return starting_points(layout, origin, None)
    if not callable(init):
        init = np.atleast_2d(np.asarray(init))
    points = np.asarray(starting_points(layout, origin, init))[1:]
    if len(points) == 0:
        raise ValueError("init holds no points. Leave it out to start at the origin.")
    return jnp.asarray(points)


def _checked_start(target: CallableTarget) -> CallableTarget:
    """Call the function on the host, where its exceptions are readable: twice at the start, and on lines from it."""
    names, points = target.coordinate_names(), np.asarray(target.initial)
    values, gradients = target.host(np.asarray([points[0], points[0]], np.float64))
    check_repeatable(values[0], [values[1]], "function")
    problem = problem_at(values[0], gradients[0], names, "function")
    if problem is not None:
        start, num_tried = None, 0
        if values[0] != np.inf:  # an infinite density is no matter of where one starts
            start, num_tried = first_usable(partial(_try, target.host), _other_starts(points))
        if start is None:
            raise ValueError(nowhere(problem, names, points[0], "the first starting point", num_tried, str))
        warn(moved(problem, names, "the first starting point", start))
        target = CallableTarget(target.host, target.layout, target.initial.at[0].set(start.points))
    if target.differentiable:
        _check_lines(target.host, np.asarray(target.initial, np.float64)[0])
    return target


def _try(host: Host, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients at points that nobody asked for: NaN where the function raises, and no warnings of NumPy."""
    try:
        with np.errstate(all="ignore"):
            return host(np.asarray(points, np.float64))
    except RuntimeError:
        return np.full(len(points), np.nan), np.full(points.shape, np.nan)


def _other_starts(points: np.ndarray) -> Iterator[Tries]:
    """One by one, for a call may be expensive: the user's own, then points near the first, then points anywhere."""
    given = Tries("a point of init", points[1:NUM_TRIED])
    for words, tries in (given, jittered(points[0], "it"), uniform(points.shape[1], points.dtype, NUM_TRIED)):
        yield from (Tries(words, point[None]) for point in tries)


def _check_lines(host: Host, start: np.ndarray) -> None:
    r"""Compare $\nabla f \cdot u$ with $(f(z + hu) - f(z - hu)) / 2h$, generously: to find a wrong sign or factor.

    First on a line close to the start, but off it, for it may be a kink. It may also be the mode, where every slope is
    small and of either sign: so on a line through the start, too, some way out in both directions.
    """
    draws = np.random.default_rng(0).standard_normal((3, len(start)))
    directions = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    scale = 1 + float(np.linalg.norm(start))
    _check_line(host, start + 1e-3 * scale * directions[1], directions[0], 1e-3 * scale)
    for distance in (1.0, -30.0):
        _check_line(host, start + distance * scale * directions[2], directions[2], abs(distance) * scale / 20)


def _check_line(host: Host, centre: np.ndarray, direction: np.ndarray, size: float) -> None:
    """The tolerance allows for a function that computes in float32, and for the curvature that the gradients show."""
    values, gradients = _try(host, centre + size * np.outer([0.0, 1.0, -1.0], direction))
    if not (np.isfinite(values).all() and np.isfinite(gradients).all()):
        return
    slopes = gradients @ direction
    measured = (values[1] - values[2]) / (2 * size)
    noise = 10 * np.finfo(np.float32).eps * (1 + np.abs(values).max()) / size
    if np.abs(measured - slopes[0]) > noise + 0.1 * np.abs(measured) + 2 * np.ptp(slopes):
        check_repeatable(values[0], list(_try(host, centre[None])[0]), "function")  # else it contradicts itself
        raise ValueError(
            f"the gradient contradicts the value: along a line at z = {brief(centre)} the value changes by "
            f"{measured:.6g} per unit and the gradient says {slopes[0]:.6g}. Return the gradient of the log density "
            "itself, not of its negative."
        )


def _real(what: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != shape:
        wanted = "a scalar" if shape == () else f"of shape {shape}"
        raise ValueError(f"the {what} that function returns must be {wanted}, got shape {array.shape}.")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"the {what} that function returns must be real numbers, got dtype {array.dtype}.")
    return array.astype(np.float64)

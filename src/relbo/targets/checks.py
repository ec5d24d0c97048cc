r"""Checks of a log density before anything is fitted to it.

One `eval_shape` and one compiled program look at the example $z_0$ and at a few points $z_0 + \delta_j$. What they can
find: a log density that JAX cannot trace, that is not a finite scalar, has no gradient, is constant for automatic
differentiation although its value moves, or gives another value when it is evaluated again.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.runtime.compiling import compiled
from relbo.runtime.warn import warn
from relbo.runtime.words import shorten
from relbo.targets.arguments import UNTRACEABLE
from relbo.targets.base import AbstractTarget
from relbo.targets.layout import Layout
from relbo.targets.search import Tries, evaluate, first_usable, moved, nowhere, problem_at

T = TypeVar("T", bound=AbstractTarget)

NUM_PROBES = 4  # around the start: one alone may lie where a wrong gradient is right


def check_traceable(function: Any, layout: Layout, args: tuple[PyTree, ...]) -> None:
    """Trace `function` once, and see that it returns one real number."""
    structs = [jax.ShapeDtypeStruct(leaf.shape, layout.dtype) for leaf in layout.leaves]
    try:
        out = jax.eval_shape(function, jax.tree.unflatten(layout.treedef, structs), *args)
    except UNTRACEABLE as error:
        raise TypeError(
            "log_density cannot be traced by JAX: it turns a parameter into a Python or NumPy value, or branches on "
            "one. Write it with jax.numpy, or wrap it as it is with relbo.from_callable. (Every leaf of args is traced "
            f"too: bind sizes and flags by functools.partial.) JAX says: {str(error).splitlines()[0]}"
        ) from error
    except Exception as error:
        error.add_note(
            f"(raised by log_density(params, *args), traced by JAX, where params has leaves {', '.join(layout.names)}. "
            "Every leaf of args is traced too: bind sizes and flags by functools.partial.)"
        )
        raise
    _check_scalar(out)


def _check_scalar(out: Any) -> None:
    if not isinstance(out, jax.ShapeDtypeStruct):
        raise TypeError(f"log_density must return a scalar, got {type(out).__name__}. Return the log density alone.")
    if out.shape != ():
        raise ValueError(f"log_density must return a scalar, got shape {out.shape}. Sum over observations inside it.")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(f"log_density must return a float, got dtype {out.dtype}. Compute it in floating point.")


def check_at_example(target: T, others: Iterable[Tries], what: str, report: Callable[[], str]) -> T:
    """Evaluate a JAX target at its example and around it, and judge what comes out.

    Where it is not finite at the example, the first of `others` where it is takes the example's place, with a warning.
    `report` is what the door can say about the model, for the error if there is none.
    """
    values, gradients, again, dead = _probe_readably(target)
    names, origin = target.coordinate_names(), np.asarray(target.initial)[0]
    check_repeatable(values[0], [values[1], again[0]], "log_density")
    problem = problem_at(values[0], gradients[0], names, "log_density")
    if problem is not None:
        if values[0] == np.inf:  # an infinite density is no matter of where one starts
            raise ValueError(nowhere(problem, names, origin, what, 0, report))
        usable, num_tried = first_usable(partial(evaluate, target), others)
        if usable is None:
            raise ValueError(nowhere(problem, names, origin, what, num_tried, report))
        warn(moved(problem, names, what, usable))
        target = eqx.tree_at(lambda each: each.initial, target, target.initial.at[0].set(usable.points))
        values, gradients, again, dead = _probe_readably(target)
        check_repeatable(values[0], [values[1], again[0]], "log_density")
    if target.differentiable:
        _check_moves(again, dead, names)
    return target


def _probe_readably(target: AbstractTarget) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((NUM_PROBES, target.dim)).astype(target.dtype)
    try:
        return jax.tree.map(np.asarray, _probe(target, jax.device_put(steps)))
    except jax.errors.UnexpectedTracerError as error:
        raise ValueError(
            "log_density has side effects: it keeps a value of one call for the next. Make it a pure function."
        ) from error
    except (TypeError, ValueError, NotImplementedError) as error:
        if not target.differentiable:
            raise
        raise ValueError(
            "log_density can be evaluated, but JAX cannot differentiate it. Pass differentiable=False and fit with "
            'estimator="score", or give its gradient through relbo.from_callable. '
            f"JAX says: {str(error).splitlines()[0]}"
        ) from error


@partial(compiled, runs_once=True)
def _probe(target: AbstractTarget, steps: Float[Array, "num dim"]) -> tuple[Array, Array, Array, Array]:
    """Values and gradients at z0, z0 and z0 + steps; then, from a second trace, values at z0 and at z0 + steps * dead,
    where `dead` marks the coordinates whose gradient was exactly zero everywhere.

    The second trace is what finds hidden randomness: NumPy draws are constants of a trace.
    """
    origin = target.initial[0]
    points = origin + jnp.concatenate([jnp.zeros((2, target.dim), target.dtype), steps])
    if target.differentiable:
        values, gradients = jax.vmap(jax.value_and_grad(target.log_density))(points)
    else:
        values, gradients = jax.vmap(target.log_density)(points), jnp.ones_like(points)
    dead = jnp.all(gradients == 0, axis=0)
    moved = origin + jnp.concatenate([jnp.zeros((1, target.dim), target.dtype), steps * dead])
    return values, gradients, jax.vmap(target.log_density)(moved), dead


def has_hessian(target: AbstractTarget) -> bool:
    """Whether JAX can differentiate the gradient forwards, which it cannot through a callback. Traces only."""
    gradient = jax.grad(target.log_density)
    point = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    try:
        jax.eval_shape(lambda z: jax.jvp(gradient, (z,), (z,)), point)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def check_repeatable(value: np.floating, others: Sequence[np.floating], what: str) -> None:
    """The same point has to give the same value, up to rounding in another order of summation."""
    tolerance = np.sqrt(np.finfo(value.dtype).eps) * (1 + np.abs(value))
    for other in others:
        if not (np.array_equal(value, other, equal_nan=True) or np.abs(value - other) <= tolerance):
            raise ValueError(
                f"{what} gave {value!s} and {other!s} at the same point: it has side effects or hidden randomness. "
                "Make it a pure function; pass random numbers or data in as arguments."
            )


def _check_moves(values: np.ndarray, dead: np.ndarray, names: Sequence[str]) -> None:
    """`values[0]` is at the example, the others where only coordinates of zero gradient were moved."""
    finite = values[np.isfinite(values)]
    if not dead.any() or np.ptp(finite) <= np.sqrt(np.finfo(values.dtype).eps) * (1 + np.abs(values[0])):
        return
    moved = [name for name, is_dead in zip(names, dead, strict=True) if is_dead]
    raise ValueError(
        f"log_density changes with {shorten(moved)} but its gradient there is exactly zero, so it is not "
        "differentiable (rounding, comparison, indexing, stop_gradient). Make it smooth, or pass differentiable=False "
        'and fit with estimator="score".'
    )

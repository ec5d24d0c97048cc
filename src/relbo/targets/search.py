"""A point from which a fit can start: the log density and its gradient are finite there.

The point that was asked for comes first. Where it will not do (a kink, a point of zero density), others are tried as
NumPyro, Stan and PyMC do: the point jittered, draws from (-2, 2) in unconstrained coordinates, and draws of the prior
where there is one. Which one was taken is said; where none will do, what is wrong at the first.
"""

import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from relbo.runtime.compiling import compiled
from relbo.runtime.words import shorten
from relbo.targets.base import AbstractTarget
from relbo.targets.supports import brief

NUM_TRIED = 100
"""So many points are tried in all, before a model is refused."""
NUM_STARTS = 4
"""So many points a fit is given to start from, where the model has no example."""
_AT_ONCE = 32  # one program, whatever the number of points
_MOST_NAMED = 8  # bad coordinates in an error: a line or two


class Tries(NamedTuple):
    """Points to try, and what they are called; or the one that was found."""

    words: str
    points: np.ndarray


Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def jittered(point: np.ndarray, what: str, num: int = _AT_ONCE, seed: int = 0) -> Tries:
    """Around a point, the nearest first: uniform within 0.1 to 1 of it in every coordinate."""
    widths = np.geomspace(0.1, 1, num)[:, None]
    steps = widths * np.random.default_rng(seed).uniform(-1, 1, (num, len(point)))
    return Tries(f"a point near {what}", (point + steps).astype(point.dtype))


def uniform(dim: int, dtype: np.dtype, num: int, seed: int = 0) -> Tries:
    """Stan's and NumPyro's habit."""
    points = np.random.default_rng(seed).uniform(-2, 2, (num, dim)).astype(dtype)
    return Tries("a draw from (-2, 2)", points)


def from_prior(target: AbstractTarget, num: int, seed: int = 0) -> Iterator[Tries]:
    """Draws of the prior, if the model can make them; asked for only when they are needed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draws = target.sample_prior(num, seed)[0]
            points = np.asarray(jax.vmap(target.unconstrain)(draws), target.dtype)
    except Exception:  # whatever keeps a broken model from this is not what its user has to hear of first
        return
    yield Tries("a draw from the prior", points[np.isfinite(points).all(axis=1)])


def first_usable(evaluate: Evaluate, tries: Iterable[Tries]) -> tuple[Tries | None, int]:
    """The first point whose value and gradient are finite, and how many were looked at."""
    num = 0
    for words, points in tries:
        points = points[: NUM_TRIED - num]
        if len(points) == 0:
            continue
        usable = is_usable(*evaluate(points))
        if usable.any():
            return Tries(words, points[np.argmax(usable)]), num + int(np.argmax(usable)) + 1
        num += len(points)
    return None, num


def is_usable(values: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & np.isfinite(gradients).all(axis=1)


def evaluate(target: AbstractTarget, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients (zeros where a target has none), by one program whatever the number of points."""
    values, gradients = [], []
    for start in range(0, len(points), _AT_ONCE):
        chunk = points[start : start + _AT_ONCE]
        filled = np.concatenate([chunk, np.repeat(chunk[:1], _AT_ONCE - len(chunk), axis=0)])
        evaluated = _values_and_gradients(target, jax.device_put(filled))
        values.append(np.asarray(evaluated[0])[: len(chunk)])
        gradients.append(np.asarray(evaluated[1])[: len(chunk)])
    return np.concatenate(values), np.concatenate(gradients)


def find_starts(target: AbstractTarget, what: str, report: Callable[[], str]) -> Float[Array, "num dim"]:
    """Usable points for a model that comes without an example: the origin and draws around it, or draws of the prior.

    Always `NUM_STARTS` rows, the first repeated if there are fewer, so that shapes do not hang on the data.
    """
    around = uniform(target.dim, target.dtype, _AT_ONCE).points
    around[0] = 0
    rest = uniform(target.dim, target.dtype, NUM_TRIED, seed=1)
    num, problem, names = 0, "", target.coordinate_names()
    for words, points in itertools.chain([Tries("", around)], from_prior(target, _AT_ONCE), [rest]):
        points = points[: NUM_TRIED - num]
        if len(points) == 0:
            continue
        values, gradients = evaluate(target, points)
        problem = problem or problem_at(values[0], gradients[0], names, what) or ""
        usable = points[is_usable(values, gradients)][:NUM_STARTS]
        if len(usable) > 0:
            if problem:
                words = words or rest.words
                logging.getLogger("relbo").info(moved(problem, names, "the origin", Tries(words, usable[0])))
            return jax.device_put(np.concatenate([usable, np.repeat(usable[:1], NUM_STARTS - len(usable), axis=0)]))
        num += len(points)
    raise ValueError(nowhere(problem, names, around[0], "the origin", num - 1, report))


@compiled
def _values_and_gradients(target: AbstractTarget, points: Float[Array, "num dim"]) -> tuple[Array, Array]:
    if not target.differentiable:
        return jax.lax.map(target.log_density, points, batch_size=8), jax.numpy.zeros_like(points)
    return jax.lax.map(jax.value_and_grad(target.log_density), points, batch_size=8)


# The words


def problem_at(value: np.floating, gradient: np.ndarray, names: Sequence[str], what: str) -> str | None:
    """What keeps a fit from starting at a point; None if nothing does."""
    if not np.isfinite(value):
        meanings = {-np.inf: "zero density", np.inf: "an infinite density"}
        return f"{what} is {value!s} ({meanings.get(float(value), 'broken arithmetic')})"
    bad = [name for name, slope in zip(names, gradient, strict=True) if not np.isfinite(slope)]
    return f"the gradient of {what} is not finite in {shorten(bad)}" if bad else None


def moved(problem: str, names: Sequence[str], what: str, tries: Tries) -> str:
    """The warning that the fit starts elsewhere."""
    return (
        f"{problem} at {what}, so the fit starts from {tries.words} instead, in unconstrained coordinates "
        f"{describe_point(names, tries.points)}. Give another start if you want another."
    )


def nowhere(
    problem: str, names: Sequence[str], point: np.ndarray, what: str, num_tried: int, report: Callable[[], str]
) -> str:
    """The error that there is no start. `report` is what the door can say about the model there."""
    said = _try(report)
    tried = f" None of {num_tried} other points will do either." if num_tried else ""
    advice = "Start from a point of finite density, or mend the model there."
    if problem.startswith("the gradient"):
        advice = (
            "Its value is finite: look for sqrt, log or a division at zero, also in the branch that a jnp.where does "
            "not take."
        )
    return (
        f"{problem} at {what}, in unconstrained coordinates {describe_point(names, point)}.{tried}"
        f"{' ' + said if said else ''} {advice}"
    )


def _try(report: Callable[[], str]) -> str:
    """A model that is broken may break its report as well, which must not hide the error that it is made for."""
    try:
        return report()
    except Exception:
        logging.getLogger("relbo").debug("no report of the model", exc_info=True)
        return ""


def describe_point(names: Sequence[str], point: np.ndarray) -> str:
    """`mu = 0.0, theta[0] = 1.5 and 3 more`: up to eight coordinates."""
    return shorten([f"{name} = {value:.6g}" for name, value in zip(names, point, strict=True)])


def name_entries(name: str, values: Any, chosen: Any) -> str:
    """`y[3] = -1, y[7] = nan and 2 more`: the entries of an array where `chosen`, over its first axes, is true."""
    places = np.argwhere(chosen)
    entries = []
    for index in places[:_MOST_NAMED]:
        place = f"[{','.join(map(str, index))}]" if len(index) else ""
        entries.append(f"{name}{place} = {brief(values[tuple(index)])}")
    return shorten([*entries, *[""] * (len(places) - len(entries))])


def name_nan(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """NaN in the data is the commonest reason for NaN in the density: a sentence that says where they are, or ""."""
    named = [(name, np.asarray(array)) for name, array in arrays]
    bad = [(name, array) for name, array in named if array.dtype.kind in "fc" and np.isnan(array).any()]
    words = [name_entries(name, array, np.isnan(array)) for name, array in bad]
    return f"The data contain NaN: {'; '.join(words)}." if words else ""

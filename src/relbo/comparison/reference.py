"""Reference draws in any of the forms people have them in, as one table of scalars."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo.mixture import map_chunks
from relbo.posterior.posterior import Posterior
from relbo.runtime.compiling import compiled
from relbo.targets import AbstractTarget
from relbo.targets.layout import entry_names, named_leaves

_FEWEST = 20  # with fewer every floor is as wide as the posterior


@dataclass(frozen=True)
class Draws:
    """`columns` (num,) by the names of scalars; `points` (num, dim) in unconstrained coordinates, where known."""

    columns: dict[str, np.ndarray]
    points: np.ndarray | None
    num_chains: int = 0
    """0: the draws are independent."""
    notes: list[str] = field(default_factory=list)


def own_draws(posterior: Posterior, num_draws: int, seed: int, first_index: int | None = None) -> Draws:
    """Independent draws. Entries are counted as in the posterior's own model, unless `first_index` says otherwise."""
    points = posterior.sample_unconstrained(num_draws, seed=seed)
    first_index = posterior.target.first_index if first_index is None else first_index
    return Draws(_columns(_named(posterior.constrain(points)), first_index), np.asarray(points, np.float64))


def read_reference(reference: Any, posterior: Posterior, num_draws: int, seed: int) -> Draws:
    """See `relbo.compare` for what is understood."""
    if hasattr(reference, "posterior"):  # ArviZ's
        return _read_named(_from_dataset(reference.posterior), posterior.target)
    return _read(reference, posterior, num_draws, seed)


@singledispatch
def _read(reference: Any, posterior: Posterior, num_draws: int, seed: int) -> Draws:
    return _read_points(np.asarray(reference), posterior)


@_read.register
def _(reference: Mapping, posterior: Posterior, num_draws: int, seed: int) -> Draws:
    return _read_named({name: np.asarray(value) for name, value in reference.items()}, posterior.target)


@_read.register
def _(reference: Posterior, posterior: Posterior, num_draws: int, seed: int) -> Draws:
    drawn = own_draws(reference, num_draws, seed, posterior.target.first_index)
    same = reference.target.coordinate_names() == posterior.target.coordinate_names()
    return drawn if same else Draws(drawn.columns, None, notes=["the two have different coordinates"])


def _from_dataset(dataset: Any) -> dict[str, np.ndarray]:
    return {str(name): dataset[name].transpose("chain", "draw", ...).values for name in dataset.data_vars}


def _read_points(points: np.ndarray, posterior: Posterior) -> Draws:
    if points.dtype.kind not in "fiu" or points.ndim not in (2, 3) or points.shape[-1] != posterior.dim:
        raise ValueError(
            f"an array of reference draws must have shape (num, {posterior.dim}) or (chains, num, {posterior.dim}), in "
            f"unconstrained coordinates; got {points.dtype} of shape {points.shape}. Pass a dict of named arrays for "
            "draws in the model's own space."
        )
    num_chains = points.shape[0] if points.ndim == 3 else 0
    flat = points.reshape(-1, posterior.dim)
    _check_enough(len(flat), num_chains)
    named = _named(posterior.constrain(jnp.asarray(flat, posterior.target.dtype)))
    columns = _columns(named, posterior.target.first_index)
    return Draws(columns, flat.astype(np.float64), num_chains, _independence_note(num_chains))


def _read_named(arrays: dict[str, np.ndarray], target: AbstractTarget) -> Draws:
    shapes = _shapes(target)
    known = {name: arrays[key] for name in shapes for key in (name, name.replace("/", ".")) if key in arrays}
    if not known:
        raise ValueError(
            f"the reference and the posterior have no variable in common: {', '.join(arrays) or 'nothing'} against "
            f"{', '.join(shapes)}."
        )
    num_chains, flat = _flatten(known, shapes)
    missing = [name for name in shapes if name not in known]
    notes = [f"the reference lacks {', '.join(missing)}"] if missing else []
    points = _unconstrain(target, flat)
    if points is None:
        notes.append("the reference cannot be unconstrained, so mode masses are left out")
    return Draws(_columns(flat, target.first_index), points, num_chains, notes + _independence_note(num_chains))


def _flatten(arrays: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> tuple[int, dict[str, np.ndarray]]:
    """The number of chains (0 if there is no such axis), and the arrays behind one axis of draws."""
    leading = {}
    for name, array in arrays.items():
        extra = array.ndim - len(shapes[name])
        if extra not in (1, 2) or array.shape[extra:] != shapes[name]:
            raise ValueError(
                f"reference draws of {name!r} must have shape (num, ...) or (chains, num, ...) before the variable's "
                f"own {shapes[name]}, got {array.shape}."
            )
        leading[name] = array.shape[:extra]
    if len(set(leading.values())) > 1:
        raise ValueError(f"the reference has different numbers of draws for its variables: {leading}.")
    first = next(iter(leading.values()))
    num_chains = first[0] if len(first) == 2 else 0
    _check_enough(math.prod(first), num_chains)
    return num_chains, {name: array.reshape(-1, *shapes[name]) for name, array in arrays.items()}


def _check_enough(num: int, num_chains: int) -> None:
    if num < _FEWEST or (num_chains and num // num_chains < 8):
        raise ValueError(f"the reference has {num} draws, too few to compare with: give at least {_FEWEST}.")


def _independence_note(num_chains: int) -> list[str]:
    return [] if num_chains else ["the reference draws are taken to be independent; give chains as (chains, num, ...)"]


def _shapes(target: AbstractTarget) -> dict[str, tuple[int, ...]]:
    point = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    return {name: leaf.shape for name, leaf in named_leaves(jax.eval_shape(lambda z: target.constrain(z), point))[0]}


def _unconstrain(target: AbstractTarget, arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    try:
        points = np.asarray(_unconstrained(target, {k: v.astype(target.dtype) for k, v in arrays.items()}), np.float64)
    except ValueError:  # not all parameters are there
        return None
    return points if np.isfinite(points).all() else None


@compiled
def _unconstrained(target, params):
    return map_chunks(target.unconstrain, params)


def _named(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in named_leaves(tree)[0]}


def _columns(arrays: dict[str, np.ndarray], first_index: int) -> dict[str, np.ndarray]:
    """Scalar by scalar, in float64."""
    return {
        entry: column
        for name, array in arrays.items()
        for entry, column in zip(
            entry_names(name, array.shape[1:], first_index),
            array.reshape(len(array), -1).T.astype(np.float64),
            strict=True,
        )
    }

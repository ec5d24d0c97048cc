"""What a file keeps of a target, so that a posterior can be used without model and data."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo.mixture import map_chunks
from relbo.posterior.posterior import Posterior
from relbo.runtime.compiling import compiled
from relbo.runtime.warn import warn
from relbo.storage.container import DTYPES
from relbo.storage.layouts import decode_layout, encode_layout
from relbo.targets import AbstractTarget
from relbo.targets.layout import named_leaves
from relbo.targets.stored import Labels, StoredDraws, StoredTarget

NUM_DRAWS = 2000  # kept where only the model could make more: quantiles to about a hundredth
_MOST_NUMBERS = 2**24
"""A group of arrays (log likelihoods, data) larger than this is left out; by default there are fewer draws."""

Arrays = dict[str, np.ndarray]


def encode_target(posterior: Posterior, num_draws: int | None, data: bool) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays. With `num_draws` draws, and what the model computes of them; with the data, or without."""
    target = posterior.target
    layout = target.described()
    if target.stored is not None:
        draws = _some_draws(target.stored.draws, num_draws, data)
    else:
        draws = _try_to_draw(posterior, num_draws, data) if num_draws != 0 else None
    labels = _labels(target, data)
    header: dict[str, Any] = {
        "kind": target.model_kind,
        "dim": target.dim,
        "dtype": target.dtype.name,
        "differentiable": bool(target.differentiable),
        "twice_differentiable": bool(target.twice_differentiable),
        "names": target.coordinate_names(),
        "layout": None if layout is None else encode_layout(layout),
        "dims": {name: list(axes) for name, axes in labels.dims.items()},
    }
    arrays = {"target/initial": np.asarray(target.initial)}
    header["coords"] = {}
    for name, values in labels.coords.items():
        header["coords"][name], kept = _encode_labels(np.asarray(values))
        arrays |= {f"coords/{name}": kept} if kept is not None else {}
    groups = {"observed_data": labels.observed_data, "constant_data": labels.constant_data}
    if draws is not None:
        groups |= {"draws": {"z": draws.z, "log_p": draws.log_p, "log_q": draws.log_q}}
        groups |= {"values": draws.values, "log_likelihood": draws.log_likelihood}
    for group, members in groups.items():
        header[group] = list(members)
        arrays |= {f"{group}/{name}": value for name, value in members.items()}
    return header, arrays


def decode_target(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> StoredTarget:
    dim, dtype = header["dim"], np.dtype(header["dtype"])
    if type(dim) is not int or dim < 1 or dtype not in (np.float32, np.float64):
        raise ValueError(f"dim {dim!r} and dtype {dtype}")
    if len(header["names"]) != dim:
        raise ValueError(f"{len(header['names'])} names of {dim} coordinates")
    layout = decode_layout(header["layout"], dtype)
    if layout is not None and layout.dim != dim:
        raise ValueError(f"the layout has {layout.dim} coordinates, not {dim}")
    initial = arrays["target/initial"]
    if initial.shape[1:] != (dim,) or initial.dtype != dtype:
        raise ValueError(f"starting points of shape {initial.shape} and dtype {initial.dtype}")
    groups = {
        group: {name: arrays[f"{group}/{name}"] for name in header.get(group, ())}
        for group in ("draws", "values", "log_likelihood", "observed_data", "constant_data")
    }
    labels = Labels(
        {str(name): tuple(map(str, axes)) for name, axes in header["dims"].items()},
        {str(name): _decode_labels(name, words, arrays) for name, words in header["coords"].items()},
        groups["observed_data"],
        groups["constant_data"],
    )
    draws = None
    if groups["draws"]:
        draws = StoredDraws(**groups["draws"], values=groups["values"], log_likelihood=groups["log_likelihood"])
        _check_draws(draws, dim)
    return StoredTarget(
        dim=dim,
        dtype=dtype,
        differentiable=bool(header["differentiable"]),
        twice_differentiable=bool(header["twice_differentiable"]),
        initial=jnp.asarray(initial),
        kind=str(header["kind"]),
        names=tuple(map(str, header["names"])),
        layout=layout,
        draws=draws,
        labels=labels,
    )


def _check_draws(draws: StoredDraws, dim: int) -> None:
    lengths = {len(each) for each in (*draws.values.values(), *draws.log_likelihood.values())}
    shapes = {draws.log_p.shape, draws.log_q.shape}
    if draws.z.shape != (draws.num, dim) or shapes != {(draws.num,)} or not lengths <= {draws.num}:
        raise ValueError("the stored draws do not fit each other")


def _some_draws(draws: StoredDraws | None, num_draws: int | None, data: bool) -> StoredDraws | None:
    """As many of the draws that a file already holds, with the likelihood of the data or without."""
    if draws is None or num_draws == 0:
        return None
    draws = jax.tree.map(lambda array: array[:num_draws], draws)
    return draws if data else StoredDraws(draws.z, draws.log_p, draws.log_q, draws.values, {})


def _try_to_draw(posterior: Posterior, num_draws: int | None, data: bool) -> StoredDraws | None:
    """Draws; or none, with a warning, if the model is broken: the posterior must not be lost with it."""
    try:
        return _make_draws(posterior, num_draws, data)
    except Exception as error:
        line = str(error).strip().splitlines()[:1] or [""]
        warn(f"The file holds no draws, because the model failed at them ({type(error).__name__}: {line[0]}).")
        return None


def _make_draws(posterior: Posterior, num_draws: int | None, data: bool) -> StoredDraws:
    target = posterior.target
    values = jax.eval_shape(target.constrain, jax.ShapeDtypeStruct((target.dim,), target.dtype))
    if num_draws is None:
        size = target.dim + sum(leaf.size for leaf in jax.tree.leaves(values))
        num_draws = max(1, min(NUM_DRAWS, _MOST_NUMBERS // size))
    z = posterior.sample_unconstrained(num_draws, seed=0)
    pointwise = jax.eval_shape(target.log_likelihood, z[0])
    with_likelihood = data and num_draws * sum(leaf.size for leaf in pointwise.values()) <= _MOST_NUMBERS
    likelihood = _likelihood(target, z, posterior.booster.chunk) if pointwise and with_likelihood else {}
    return StoredDraws(
        z=np.asarray(z),
        log_p=posterior.log_target(z),
        log_q=np.asarray(posterior.log_prob(z)),
        values=_numbers(dict(named_leaves(posterior.constrain(z))[0])),
        log_likelihood=_numbers(likelihood),
    )


@partial(compiled, runs_once=True)
def _likelihood(target: AbstractTarget, draws, chunk: int):
    return map_chunks(target.log_likelihood, draws, chunk)


def _labels(target: AbstractTarget, data: bool) -> Labels:
    observed, constant = (target.observed_data(), target.constant_data()) if data else ({}, {})
    return Labels(target.dims(), target.coords(), _small(observed), _small(constant))


def _small(group: Mapping[str, Any]) -> Arrays:
    """The group, if a file can hold it: of numbers, and not too many."""
    numeric = _numbers(group)
    return numeric if sum(value.size for value in numeric.values()) <= _MOST_NUMBERS else {}


def _numbers(group: Mapping[str, Any]) -> Arrays:
    """Those of the group that are real numbers; of others there is a warning."""
    arrays = {name: np.asarray(value) for name, value in group.items()}
    other = [f"{name} ({array.dtype})" for name, array in arrays.items() if array.dtype.name not in DTYPES]
    if other:
        warn(f"The file leaves out {', '.join(other)}: it holds real numbers.")
    return {name: array for name, array in arrays.items() if array.dtype.name in DTYPES}


def _encode_labels(values: np.ndarray) -> tuple[Any, np.ndarray | None]:
    """Labels of an axis: numbers and dates as an array, texts in the header."""
    if values.dtype.kind in "mM":
        return {"kind": values.dtype.name}, values.astype(np.int64)
    if values.dtype.name in DTYPES:
        return {"kind": "number"}, values
    return {"kind": "text", "values": [str(value) for value in values.tolist()]}, None


def _decode_labels(name: str, words: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    kind = words["kind"]
    if kind == "text":
        return np.asarray([str(value) for value in words["values"]])
    stored = arrays[f"coords/{name}"]
    if kind == "number":
        return stored
    if not re.fullmatch(r"(datetime|timedelta)64\[\w+\]", kind) or stored.dtype != np.int64:
        raise ValueError(f"labels of kind {kind!r}")
    return stored.astype(kind)

"""What a file keeps of a target, so that a posterior can be used without model and data."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo._compiled import compiled
from relbo.mixture import map_chunks
from relbo.posterior import Posterior
from relbo.storage.layouts import decode_layout, encode_layout
from relbo.targets import AbstractTarget
from relbo.targets.layout import named_leaves
from relbo.targets.stored import Labels, StoredDraws, StoredTarget

_MOST_NUMBERS = 2**24
"""A group of arrays (draws, log likelihoods, data) larger than this is left out, or made of fewer draws."""

Arrays = dict[str, np.ndarray]


def encode_target(posterior: Posterior, num_draws: int, data: bool) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays. With `num_draws` draws, and what the model computes of them; with the data, or without."""
    target = posterior.target
    if isinstance(target, StoredTarget):
        layout, draws, kind = target.layout, target.draws, target.kind
    else:
        layout, kind = target.described(), type(target).__name__
        draws = _make_draws(posterior, num_draws, data) if num_draws else None
    labels = _labels(target, data)
    header = {
        "kind": kind,
        "dim": target.dim,
        "dtype": target.dtype.name,
        "differentiable": bool(target.differentiable),
        "twice_differentiable": bool(target.twice_differentiable),
        "names": target.coordinate_names(),
        "layout": None if layout is None else encode_layout(layout),
        "dims": {name: list(axes) for name, axes in labels.dims.items()},
        "coords": {name: _encode_labels(values) for name, values in labels.coords.items()},
    }
    arrays = {"target/initial": np.asarray(target.initial)}
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
        {str(name): np.asarray(values) for name, values in header["coords"].items()},
        groups["observed_data"],
        groups["constant_data"],
    )
    draws = None
    if groups["draws"]:
        draws = StoredDraws(**groups["draws"], values=groups["values"], log_likelihood=groups["log_likelihood"])
        if draws.z.shape != (draws.num, dim) or any(
            len(each) != draws.num
            for each in (draws.log_p, draws.log_q, *draws.values.values(), *draws.log_likelihood.values())
        ):
            raise ValueError("the stored draws do not fit each other")
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


def _make_draws(posterior: Posterior, num_draws: int, data: bool) -> StoredDraws:
    target = posterior.target
    values = jax.eval_shape(target.constrain, jax.ShapeDtypeStruct((target.dim,), target.dtype))
    size = target.dim + sum(leaf.size for leaf in jax.tree.leaves(values))
    num = max(1, min(num_draws, _MOST_NUMBERS // size))
    z = posterior.sample_unconstrained(num, seed=0)
    pointwise = jax.eval_shape(target.log_likelihood, z[0])
    with_likelihood = data and num * sum(leaf.size for leaf in pointwise.values()) <= _MOST_NUMBERS
    log_p, likelihood = _evaluate(target, z, bool(pointwise) and with_likelihood)
    return StoredDraws(
        z=np.asarray(z),
        log_p=np.asarray(log_p),
        log_q=np.asarray(posterior.log_prob(z)),
        values={name: np.asarray(value) for name, value in named_leaves(posterior.constrain(z))[0]},
        log_likelihood={name: np.asarray(value) for name, value in likelihood.items()},
    )


@partial(compiled, runs_once=True)
def _evaluate(target: AbstractTarget, draws, with_likelihood: bool):
    def at(z):
        return target.log_density(z), target.log_likelihood(z) if with_likelihood else {}

    return map_chunks(at, draws, target.points_at_once)


def _labels(target: AbstractTarget, data: bool) -> Labels:
    observed, constant = (target.observed_data(), target.constant_data()) if data else ({}, {})
    return Labels(target.dims(), target.coords(), _small(observed), _small(constant))


def _small(group: Mapping[str, np.ndarray]) -> Arrays:
    """The group, if a file can hold it: of numbers, and not too many."""
    arrays = {name: np.asarray(value) for name, value in group.items()}
    numeric = {name: value for name, value in arrays.items() if value.dtype.kind in "biuf"}
    return numeric if sum(value.size for value in numeric.values()) <= _MOST_NUMBERS else {}


def _encode_labels(values: np.ndarray) -> list[Any]:
    listed = np.asarray(values).tolist()
    return [value if isinstance(value, bool | int | str) else str(value) for value in listed]

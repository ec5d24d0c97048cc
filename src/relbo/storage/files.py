"""`save` and `load`: a posterior in one file, to be used again without model or data."""

import dataclasses
import importlib.metadata
import os
import re
from typing import Any

import jax
import numpy as np

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.distributed.agreeing import from_first, is_first
from relbo.families import AbstractFamily
from relbo.model.placing import is_together, spans_processes
from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import whole_number
from relbo.storage.container import pack, write_atomically
from relbo.storage.layouts import (
    PARTS,
    Arrays,
    encode_estimate,
    encode_flow,
    encode_record,
    named_leaves,
)
from relbo.storage.objects import encode, encode_number, encode_or_text
from relbo.storage.reading import read
from relbo.storage.targets import encode_target
from relbo.targets import AbstractTarget, as_target


def save(posterior: Posterior, path: str | os.PathLike, *, num_draws: int | None = None, data: bool = True) -> None:
    """Write a posterior to one file, whole or not at all. `relbo.load` reads it, without model or data.

    Arguments:
        num_draws: draws to keep with what only the model can compute about them (deterministic quantities, log density,
            pointwise log likelihood), for `relbo.to_arviz` and `relbo.diagnose` of the loaded posterior. By default
            2,000, and fewer in more than 4,000 dimensions.
        data: whether observed and constant data, and the pointwise log likelihood, go into the file as well.

    The file is a header in JSON and arrays (docs/storage.md has the format); reading it executes nothing. Where several
    processes hold the data of a fit all of them call this, the first writes, and the data do not go into the file.
    """
    num_draws = None if num_draws is None else whole_number("num_draws", num_draws, 0)
    together = is_together(posterior.target, posterior.booster.points_over)
    parts = to_bytes(posterior, num_draws=num_draws, data=data and not spans_processes(posterior.target))
    if not together or is_first():
        write_atomically(path, parts)
    if together:
        from_first(lambda: b"")  # none goes on before the file is there


def load(path: str | os.PathLike, target: Any = None) -> Posterior:
    """The posterior in a file that `relbo.save`, or `relbo.fit(checkpoint=...)`, has written.

    It can sample, give densities and go to ArviZ without model or data. With `target` (the same, made anew) it is as
    it was: it can predict, be diagnosed afresh and be boosted further, `relbo.fit(target, start=posterior)`.

    Raises:
        ValueError: if the file is none of relbo's, is damaged or cut short, or was written by a newer version; or if
            `target` is not like the one that was fitted.
    """
    posterior = read(path).posterior
    return posterior if target is None else attach(posterior, as_target(target))


def attach(posterior: Posterior, target: AbstractTarget) -> Posterior:
    """The same posterior with a target instead of the one that it was loaded with."""
    check_alike(posterior.target, target, "the file's posterior")
    booster = posterior.booster
    booster = dataclasses.replace(booster, target=target)
    whitened = posterior.whitened.with_target(target)
    state = dataclasses.replace(posterior.state, target=whitened)
    return Posterior(posterior.mixture, whitened, posterior.elbo, posterior.trace, posterior.stop, booster, state)


def check_alike(stored: AbstractTarget, target: AbstractTarget, what: str) -> None:
    """Refuse a target with other coordinates."""
    if (target.dim, target.dtype) != (stored.dim, stored.dtype):
        raise ValueError(
            f"{what} is in {stored.dim} dimensions ({stored.dtype}), the target has {target.dim} ({target.dtype}): "
            "pass the target that was fitted."
        )
    names = target.coordinate_names()
    if stored.coordinate_names() not in (names, [_counted_from_zero(name, target.first_index) for name in names]):
        pairs = zip(stored.coordinate_names(), target.coordinate_names(), strict=True)
        before, now = next((a, b) for a, b in pairs if a != b)
        raise ValueError(f"{what} has a coordinate {before!r} where the target has {now!r}: pass the same model.")


def _counted_from_zero(name: str, first_index: int) -> str:
    """As the first files name the coordinates of a Stan program: `theta[0]` for `theta[1]`."""
    return re.sub(r"(?<=[\[,])\d+(?=[\],])", lambda match: str(int(match[0]) - first_index), name)


def to_bytes(posterior: Posterior, *, num_draws: int | None = 0, data: bool = False) -> list[bytes]:
    """The parts of the file."""
    return pack(*describe(posterior, *encode_target(posterior, num_draws, data)))


def describe(
    posterior: Posterior, target: dict[str, Any], target_arrays: Arrays, fit: Any = None, best: State | None = None
) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays. `fit` is what a checkpoint says about the fit in progress, `best` its best iterate so far."""
    arrays = dict(target_arrays)
    state, booster = posterior.state, posterior.booster
    mixtures = {"state": state.mixture, "mixture": posterior.mixture, "best": best.mixture if best else state.mixture}
    for name, mixture in mixtures.items():
        if name == "state" or mixture is not state.mixture:
            arrays[f"{name}/log_weights"] = np.asarray(mixture.log_weights)
            arrays |= named_leaves(f"{name}/params", mixture.params)
    arrays |= named_leaves("modes", state.modes) | named_leaves("memory", state.memory)
    arrays |= named_leaves("map", posterior.whitened.params) | named_leaves("flow", posterior.whitened.flow)
    if state.other is not None:
        arrays["other/log_weights"] = np.asarray(state.other.mixture.log_weights)
        arrays |= named_leaves("other/params", state.other.mixture.params)
        arrays |= named_leaves("other_modes", state.other.modes) | named_leaves("other_memory", state.other.memory)
    if (anchor := posterior.whitened.target.anchor) is not None:
        arrays["anchor"] = np.asarray(anchor)
    described = {
        "relbo": importlib.metadata.version("relbo"),
        "jax": jax.__version__,
        "target": target,
        "family": encode_family(booster.family),
        "settings": settings_of(booster),
        "map": encode(posterior.whitened.family),
        "flow": encode_flow(posterior.whitened.flow),
        "other": None if state.other is None else _about(state.other),
        **_about(state),
        "elbo": encode_estimate(posterior.elbo),
        "stop_reason": posterior.stop_reason,
        "stop": {"kind": posterior.stop.kind, "limit": posterior.stop.limit},
        "trace": [encode_record(record) for record in posterior.trace],
        "fit": fit,
    }
    return described, arrays


def _about(state: State) -> dict[str, Any]:
    return {
        "iteration": state.iteration, "explore": int(state.explore), "state_elbo": encode_estimate(state.elbo)
    }  # fmt: skip


def encode_family(family: AbstractFamily) -> Any:
    """Raises ValueError if a file cannot hold it."""
    try:
        return encode(family)
    except TypeError as error:
        raise ValueError(
            f"A file cannot hold the family {type(family).__name__}: it holds those of relbo.families, and NumPyro's "
            f"distributions ({error}). Keep the draws instead: relbo.to_arviz(posterior).to_netcdf(path)."
        ) from error


def settings_of(booster: Booster) -> dict[str, Any]:
    """The settings of a booster as JSON."""
    parts = {part: encode_or_text(getattr(booster, part)) for part in PARTS}
    return parts | {
        "min_improvement": encode_number(booster.min_improvement),
        "num_measure": booster.num_measure,
        "points_at_once": booster.points_at_once,
    }

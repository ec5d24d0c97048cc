"""Reading a file: every part is checked before it is believed."""

import importlib.metadata
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.families import AbstractFamily
from relbo.mixture import Mixture, empty_mixture
from relbo.model.whitening import Whitened
from relbo.posterior.posterior import Posterior
from relbo.records.outcome import Stop, old_stop
from relbo.settings.names import make_booster
from relbo.steps import AbstractStep
from relbo.storage.container import unpack
from relbo.storage.layouts import (
    PARTS,
    Arrays,
    decode_estimate,
    decode_record,
    flow_like,
    named_leaves,
)
from relbo.storage.objects import NotStored, decode, decode_number
from relbo.storage.targets import decode_target
from relbo.targets.minibatch import Anchored
from relbo.targets.stored import StoredTarget

_BROKEN = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError, MemoryError,
    NotImplementedError, AssertionError,
)  # fmt: skip


class Contents(NamedTuple):
    """What a file holds. `best` is the best iterate so far, in the checkpoint of a step rule that is not monotone."""

    posterior: Posterior
    header: dict[str, Any]
    best: Mixture | None


def read(path: str | os.PathLike, step_rule: AbstractStep | None = None) -> Contents:
    """The contents of a file. A `step_rule` of the user's own, which a file cannot hold, is given."""
    return read_bytes(pathlib.Path(path).read_bytes(), str(os.fspath(path)), step_rule)


def read_bytes(content: bytes, name: str, step_rule: AbstractStep | None = None) -> Contents:
    """The contents of the bytes of a file; `name` is for errors."""
    header, arrays = unpack(content, name)
    try:
        target = decode_target(header["target"], arrays)
        if target.dtype == jax.dtypes.canonicalize_dtype(target.dtype):
            return _contents(header, arrays, target, step_rule)
    except _BROKEN as error:
        raise ValueError(
            f"{name} cannot be read as a posterior ({type(error).__name__}: {error}). Either it was not written by "
            f"relbo.save, or by a version whose settings this one does not know: it says {_versions(header)}."
        ) from error
    raise ValueError(
        f'{name} holds a posterior in float64. Call jax.config.update("jax_enable_x64", True) first, at the start of '
        "the program."
    )


def _contents(header: dict[str, Any], arrays: Arrays, target: StoredTarget, step_rule) -> Contents:
    posterior = _posterior(header, arrays, target, step_rule)
    fit = header["fit"]
    if fit is not None:
        _whole(fit["first_new"])
        _whole(fit["seed"])
        if fit["best"] is not None:
            decode_number(fit["best"])
            decode_estimate(fit["best_elbo"])
        [decode_number(value) for value in [*fit["log_densities"], *fit.get("slopes", [])]]
        if type(fit["finished"]) is not bool or not posterior.trace or not fit["log_densities"]:
            raise ValueError("what it says of its fit is not whole")
    if "best/log_weights" not in arrays:
        return Contents(posterior, header, None)
    family, like = posterior.mixture.family, _one(posterior.mixture.family, target)
    return Contents(posterior, header, _mixture("best", family, like, arrays, target.dtype))


def _posterior(header: dict[str, Any], arrays: Arrays, target: StoredTarget, step_rule) -> Posterior:
    family = decode(header["family"])
    if not isinstance(family, AbstractFamily):
        raise ValueError(f"{family!r} is not a family")
    member = _one(family, target)
    mixture = _mixture("state", family, member, arrays, target.dtype)
    shown = _mixture("mixture", family, member, arrays, target.dtype) if "mixture/log_weights" in arrays else mixture
    whitened = _whitened(header, arrays, target)
    booster = _booster(header["settings"], target, family)
    dtype, rule = target.dtype, step_rule or booster.step_rule

    def state_of(facts: dict[str, Any], prefix: str, mixture: Mixture, at: Whitened, other: State | None) -> State:
        return State(
            target=at,
            mixture=mixture,
            modes=_modes(f"{prefix}modes", arrays, member),
            memory=_memory(f"{prefix}memory", rule, arrays, "step_rule" in booster.missing),
            elbo=decode_estimate(facts["state_elbo"]),
            iteration=_whole(facts["iteration"]),
            explore=int(facts["explore"]),
            other=other,
        )

    other = None
    if header.get("other") is not None:  # files of older versions say nothing of it
        before = _mixture("other", family, member, arrays, dtype)
        other = state_of(header["other"], "other_", before, whitened.affine, None)
    state = state_of(header, "", mixture, whitened, other)
    trace = [decode_record(record, dtype) for record in header["trace"]]
    return Posterior(shown, whitened, decode_estimate(header["elbo"]), trace, _stop(header), booster, state)


def _stop(header: dict[str, Any]) -> Stop:
    sentence, more = str(header["stop_reason"]), header.get("stop")
    return old_stop(sentence) if more is None else Stop(more["kind"], sentence, str(more["limit"]))


def _one(family: AbstractFamily, target: StoredTarget) -> PyTree:
    """The shapes of a stack of one component."""
    return jax.eval_shape(lambda: empty_mixture(family, target.dim, 1, target.dtype)).params


def _booster(settings: dict[str, Any], target: StoredTarget, family: AbstractFamily) -> Booster:
    """The settings of the fit. Those that the file could not hold are `missing`, and stand at their defaults."""
    parts = {part: _part(settings[part], Booster.__dataclass_fields__[part].type) for part in PARTS}
    missing = [part for part, value in parts.items() if isinstance(value, NotStored)]
    if missing:
        default = make_booster(target, family=family)
        parts |= {part: getattr(default, part) for part in missing}
    limit = settings["points_at_once"]
    return Booster(
        target=target,
        family=family,
        **parts,
        min_improvement=decode_number(settings["min_improvement"]),
        num_measure=_whole(settings["num_measure"]),
        points_at_once=None if limit is None else _whole(limit),
        missing=tuple(missing),
    )


def _part(data: Any, kind: Any) -> Any:
    """A setting; one that this version does not know, or that was never stored, is needed only to go on boosting."""
    try:
        part = decode(data)
    except ValueError as error:
        return NotStored(str(error))
    return part if isinstance(part, kind) else NotStored(repr(part))


def _whitened(header: dict[str, Any], arrays: Arrays, target: StoredTarget) -> Whitened:
    family = decode(header["map"])
    zeros = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    params = _unflatten("map", arrays, jax.eval_shape(family.init, zeros, zeros))
    flow = None
    if header.get("flow") is not None:  # files of older versions say nothing of it
        flow = _unflatten("flow", arrays, flow_like(header["flow"], target.dim, target.dtype))
    _check_numbers("the map to whitened coordinates", jax.tree.leaves((params, flow)))
    if "anchor" in arrays:
        point = _checked("anchor", arrays["anchor"], (target.dim,), target.dtype)
        return Whitened(Anchored(target, point, np.nan, np.nan), family, params, flow)
    return Whitened(target, family, params, flow)


def _mixture(name: str, family: AbstractFamily, member: PyTree, arrays: Arrays, dtype) -> Mixture:
    log_weights = arrays[f"{name}/log_weights"]
    capacity = log_weights.shape[0]
    weights = _checked(name, log_weights, (capacity,), dtype)
    if not np.isclose(np.exp(log_weights.astype(np.float64)).sum(), 1, atol=1e-3):
        raise ValueError("the weights do not sum to one")
    params = _unflatten(f"{name}/params", arrays, member, capacity)
    _check_numbers("a component", [np.asarray(leaf)[log_weights > -np.inf] for leaf in jax.tree.leaves(params)])
    return Mixture(family, params, weights)


def _modes(name: str, arrays: Arrays, member: PyTree) -> PyTree:
    if f"{name}/0" not in arrays:
        return None
    return _unflatten(name, arrays, member, arrays[f"{name}/0"].shape[0])


def _memory(name: str, step_rule: AbstractStep, arrays: Arrays, unknown: bool) -> PyTree:
    """Shaped as the rule's own; of a rule that is not known, the bare leaves."""
    if unknown:
        return [jax.device_put(value) for key, value in sorted(arrays.items()) if key.startswith(f"{name}/")]
    fresh = step_rule.init()
    # Files of 0.1 held them in the precision of the fit.
    cast = {key: np.asarray(arrays[key], leaf.dtype) for key, leaf in named_leaves(name, fresh).items()}
    return _unflatten(name, cast, fresh)


def _unflatten(name: str, arrays: Mapping[str, np.ndarray], like: PyTree, num: int | None = None) -> PyTree:
    """The tree of arrays with the shapes of `like`; or of a stack of `num`, where `like` is a stack of any height."""
    structs, treedef = jax.tree.flatten(like)
    leaves = []
    for number, struct in enumerate(structs):
        shape = struct.shape if num is None else (num, *struct.shape[1:])
        leaves.append(_checked(f"{name}/{number}", arrays[f"{name}/{number}"], shape, struct.dtype))
    return jax.tree.unflatten(treedef, leaves)


def _checked(name: str, array: np.ndarray, shape: tuple[int, ...], dtype) -> jax.Array:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}, not {shape} and {dtype}")
    return jax.device_put(array)


def _check_numbers(what: str, leaves: list[Any]) -> None:
    """A parameter that is not finite would make NaN of every draw."""
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        raise ValueError(f"the parameters of {what} are not finite")


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a whole number")
    return number


def other_versions(header: dict[str, Any]) -> str | None:
    """What wrote a file, if that was another version of relbo or JAX than this; None if it was this one."""
    ours = {"relbo": importlib.metadata.version("relbo"), "jax": jax.__version__}
    same = all(header.get(name) == version for name, version in ours.items())
    return None if same else f"{_versions(header)}, where this is {_versions(ours)}"


def _versions(header: dict[str, Any]) -> str:
    return f"relbo {header.get('relbo', 'unknown')} with JAX {header.get('jax', 'unknown')}"

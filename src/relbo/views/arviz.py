"""A posterior as ArviZ's InferenceData (or, from ArviZ 1 on, an xarray DataTree)."""

import datetime
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from relbo.diagnostics import psis, resample_whitened
from relbo.mixture import map_chunks
from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import seed_number, whole_number
from relbo.runtime.compiling import compiled
from relbo.runtime.require import require
from relbo.targets.layout import named_leaves
from relbo.targets.stored import StoredTarget

_MOST_LOG_LIKELIHOODS = 10**8  # 0.8 GB in float64
_FEWEST_RATIOS = 100  # of which 20 are the tail: with fewer k-hat is noise
_SHORTEST_CHAIN = 4  # ArviZ's own limit
_CHAINS = "independent draws of an approximation, dealt out; no Markov chains, so r_hat and ess say nothing about it"


def to_arviz(
    posterior: Posterior,
    *,
    num_draws: int = 2000,
    num_chains: int | None = None,
    seed: int = 0,
    importance_resampled: bool = False,
    log_likelihood: bool | None = None,
    posterior_predictive: bool | Sequence[str] = False,
    prior: int = 0,
) -> Any:
    """Draws, named and shaped as in the model, with everything `az.summary`, `az.plot_pair` and `az.loo` need.

    Arguments:
        num_draws: in all; they are independent.
        num_chains: the draws are dealt out to so many "chains", 4 by default (fewer where that does not divide),
            because ArviZ's tools want more than one. They are independent draws and no Markov chains, as the attribute
            `chains` says: r-hat is 1 however bad the fit is: ask `relbo.diagnose`.
        importance_resampled: draws of `relbo.resample`, by Pareto-smoothed importance weights, which correct what the
            mixture misses. Refused where the weights cannot be trusted even with defensive draws.
        log_likelihood: pointwise, for `az.loo`; by default wherever the model has it and it fits into memory.
        posterior_predictive: True, and the model draws the observed variables anew; or names of variables among the
            draws (Stan's generated quantities) that are predictions, and are moved to that group.
        prior: the number of draws from the prior and the prior predictive.

    The groups are posterior, sample_stats (`lp`, the log joint density in unconstrained coordinates, and `log_q`, the
    mixture's), log_likelihood, observed_data, constant_data, and posterior_predictive, prior, prior_predictive if
    asked for. Attributes say with what and how the posterior was made, and how good it is.
    """
    num_chains = _num_chains(num_draws, num_chains)
    seed, prior = seed_number(seed), whole_number("prior", prior, 0)
    target = posterior.target
    if target.stored is not None:
        if importance_resampled or log_likelihood:
            raise ValueError(
                "This needs the model, and the posterior was loaded without: relbo.load(path, target=...)."
            )
        stats, values, pointwise, k_hat = _from_file(posterior, target.stored, num_draws, seed)
        pointwise = {} if log_likelihood is False else pointwise
    else:
        z, lp, log_q, k_hat = _draw(posterior, num_draws, seed, importance_resampled)
        stats = {"lp": lp, "log_q": log_q}
        values = {name: np.asarray(leaf) for name, leaf in named_leaves(posterior.constrain(z))[0]}
        pointwise = _log_likelihood(posterior, z, log_likelihood)
    groups = {"sample_stats": stats}
    if pointwise:
        groups["log_likelihood"] = pointwise
    names = [] if type(posterior_predictive) is bool else list(posterior_predictive)
    _check_names(names, values)
    if names:
        groups["posterior_predictive"] = {name: values[name] for name in names}
    elif posterior_predictive:
        groups["posterior_predictive"] = target.predict(values, seed)
    # What a program computes as its log likelihood or predictions (Stan) is not a parameter.
    groups["posterior"] = {k: v for k, v in values.items() if k not in pointwise and k not in names}
    if prior:
        groups["prior"], groups["prior_predictive"] = target.sample_prior(prior, seed)
    sampled = {group: _chains(arrays, num_chains) for group, arrays in groups.items()}
    for group in ("prior", "prior_predictive"):
        if group in groups:
            sampled[group] = _chains(groups[group], _num_chains(prior, None))
    fixed = {"observed_data": target.observed_data(), "constant_data": target.constant_data()}
    return _assemble(target, sampled, {k: v for k, v in fixed.items() if v}, _attributes(posterior, k_hat))


def _num_chains(num_draws: int, num_chains: int | None) -> int:
    """As many as asked for, or as ArviZ's users are used to."""
    whole_number("num_draws", num_draws, 1)
    if num_chains is None:
        return next((num for num in (4, 3, 2) if num_draws % num == 0 and num_draws // num >= _SHORTEST_CHAIN), 1)
    if num_draws % whole_number("num_chains", num_chains, 1):
        raise ValueError(f"num_draws must be a positive multiple of num_chains, got {num_draws} and {num_chains}.")
    return num_chains


def _check_names(names: list[str], values: dict[str, np.ndarray]) -> None:
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(
            f"posterior_predictive names {', '.join(missing)}, which is not among the draws. "
            f"They hold {', '.join(values)}."
        )


def _from_file(posterior: Posterior, target: StoredTarget, num_draws: int, seed: int):
    """Of a posterior loaded without its model: stored draws; or fresh ones, about which the model is not asked."""
    num_stored = 0 if target.draws is None else target.draws.num
    if num_draws > num_stored and target.layout is not None:
        z = posterior.sample_unconstrained(num_draws, seed=seed)
        values = {name: np.asarray(leaf) for name, leaf in named_leaves(posterior.constrain(z))[0]}
        return {"log_q": np.asarray(posterior.log_prob(z))}, values, {}, float("nan")
    draws = target.choose_draws(num_draws, seed)
    ratios = (draws.log_p - draws.log_q).astype(np.float64)
    ratios = ratios[np.isfinite(ratios)]
    k_hat = psis(ratios)[1] if len(ratios) >= _FEWEST_RATIOS else float("nan")
    return {"lp": draws.log_p, "log_q": draws.log_q}, draws.values, draws.log_likelihood, k_hat


def _draw(posterior: Posterior, num_draws: int, seed: int, resampled: bool):
    """Points, log p and log q there, and k-hat of the weights (NaN if there are too few draws)."""
    if resampled:
        points, weighted = resample_whitened(posterior, num_draws, seed)
        z = jax.vmap(posterior.whitened.unwhiten)(jax.numpy.asarray(points))
        return (
            z,
            posterior.log_target(z),
            np.asarray(posterior.log_prob(z)),
            weighted.k_hat,
        )
    z = posterior.sample_unconstrained(num_draws, seed=seed)
    lp, log_q = posterior.log_target(z), np.asarray(posterior.log_prob(z))
    ratios = (lp - log_q).astype(np.float64)
    finite = np.isfinite(ratios)
    k_hat = psis(ratios[finite])[1] if finite.sum() >= _FEWEST_RATIOS else float("nan")
    return z, lp, log_q, k_hat


def _log_likelihood(posterior: Posterior, z, wanted: bool | None) -> dict[str, np.ndarray]:
    if wanted is False:
        return {}
    target, chunk = posterior.target, posterior.booster.chunk
    shapes = jax.eval_shape(target.log_likelihood, z[0])
    size = len(z) * sum(struct.size for struct in shapes.values())
    if wanted and not shapes:
        raise ValueError(
            f"log_likelihood=True, but {type(target).__name__} does not know the likelihood of single observations. "
            "A Stan program computes it as a generated quantity called log_lik."
        )
    if wanted is None and size > _MOST_LOG_LIKELIHOODS:
        return {}
    return {name: np.asarray(values) for name, values in _pointwise(target, z, chunk).items()}


@compiled
def _pointwise(target, draws, chunk: int):
    return map_chunks(target.log_likelihood, draws, chunk)


def _chains(arrays: dict[str, np.ndarray], num_chains: int) -> dict[str, np.ndarray]:
    return {name: np.reshape(value, (num_chains, -1, *np.shape(value)[1:])) for name, value in arrays.items()}


def _assemble(target, sampled: dict[str, Any], fixed: dict[str, Any], attributes: dict[str, Any]) -> Any:
    xarray = require("xarray", extra="arviz")
    arviz = require("arviz", extra="arviz")
    dims, coords = target.dims(), target.coords()

    def dataset(arrays: dict[str, np.ndarray], leading: tuple[str, ...]) -> Any:
        variables = {}
        for name, value in arrays.items():
            axes = _axes(name, np.shape(value)[len(leading) :], dims, arrays, coords)
            variables[_export_name(name)] = ((*leading, *axes), value)
        sizes = {
            axis: size for axes, value in variables.values() for axis, size in zip(axes, np.shape(value), strict=True)
        }
        labels = {axis: coords[axis] if axis in coords else np.arange(size) for axis, size in sizes.items()}
        return xarray.Dataset(variables, labels, attributes)

    groups = {name: dataset(arrays, ("chain", "draw")) for name, arrays in sampled.items()}
    groups |= {name: dataset(arrays, ()) for name, arrays in fixed.items()}
    groups = {"posterior": groups.pop("posterior"), **groups}
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(attrs=attributes, **groups)
    return xarray.DataTree.from_dict({"/": xarray.Dataset(attrs=attributes), **groups})


def _export_name(name: str) -> str:
    """Files and trees use slashes for groups, and ArviZ calls the first axes chain and draw."""
    return f"{name}_" if name in ("chain", "draw") else name.replace("/", ".")


def _axes(name: str, shape: tuple[int, ...], dims, arrays, coords) -> list[str]:
    """A name for every axis of a variable: the model's where its length fits, else `name_dim_0` as ArviZ would."""
    given = dims.get(name, ())
    axes = []
    for axis, size in enumerate(shape):
        # A log likelihood has the batch axes of its variable, without those of the event.
        label = _export_name(given[axis] if axis < len(given) else f"{name}_dim_{axis}")
        if label in map(_export_name, arrays):  # xarray keeps the name of a variable from its axes
            label = f"{label}_dim"
        fits = label not in coords or len(coords[label]) == size
        axes.append(label if fits and label not in axes else _export_name(f"{name}_dim_{axis}"))
    return axes


def _attributes(posterior: Posterior, k_hat: float) -> dict[str, Any]:
    booster = posterior.booster
    parts = ("family", "objective", "oracle", "step_rule", "estimator", "refinement", "preconditioner")
    settings = {part: " ".join(repr(getattr(booster, part)).split()) for part in parts}
    gaps = [record.gap for record in posterior.trace if record.gap is not None]
    attributes = {
        "inference_library": "relbo",
        "chains": _CHAINS,
        "inference_library_version": importlib.metadata.version("relbo"),
        "jax_version": jax.__version__,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
        "settings": json.dumps(settings),
        "stop_reason": posterior.stop_reason,
        "num_components": posterior.num_components,
        "num_evaluations": posterior.num_evaluations,
        "elbo": posterior.elbo.value,
        "elbo_std_err": posterior.elbo.std_err,
        "k_hat": k_hat,
    }
    if gaps:
        attributes |= {"duality_gap": gaps[-1].value, "duality_gap_std_err": gaps[-1].std_err}
    return attributes

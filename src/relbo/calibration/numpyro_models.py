"""NumPyro models whose observed sites take simulated values. Imported only when one is calibrated.

The values go to the sites and not to the model's arguments, so it does not matter which argument holds which data, nor
whether the model uses them for something else (a lagged regressor stays what it was, in the simulation as in the fit).
Wrapped models are equal if their models are, so that a second calibration finds the programs of the first compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.primitives import Messenger

from relbo.calibration.trial import AbstractExperiment
from relbo.posterior.posterior import Posterior
from relbo.targets import AbstractTarget
from relbo.targets.numpyro.data import is_data
from relbo.targets.numpyro.target import NumPyroTarget, read_target


@dataclass(frozen=True)
class Reobserved:
    """The model with its observed sites at the values of the first argument."""

    model: Callable[..., Any]

    def __call__(self, observed: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with _Replace(observed):
            return self.model(*args, **kwargs)


@dataclass(frozen=True)
class Repeated:
    """The model with its own observations, and a second set of them, the first argument, given the same parameters."""

    model: Callable[..., Any]

    def __call__(self, observed: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with _Repeat(observed):
            return self.model(*args, **kwargs)


class _OnObserved(Messenger):
    def __init__(self, values: dict[str, Any]):
        self.values = values
        super().__init__()

    def concerns(self, msg: dict[str, Any]) -> bool:
        return msg["type"] == "sample" and msg["is_observed"] and msg["name"] in self.values


class _Replace(_OnObserved):
    def process_message(self, msg):
        if self.concerns(msg):
            msg["value"] = self.values[msg["name"]]


class _Repeat(_OnObserved):
    def postprocess_message(self, msg):
        if self.concerns(msg):
            numpyro.sample(f"{msg['name']}__repeated", msg["fn"], obs=self.values[msg["name"]])


class NumPyroExperiment(AbstractExperiment):
    """Data drawn by the model itself; a fit to each set of them. Made in one process, used in others.

    `simulated` holds parameters and data, name to array behind an axis of simulations. The target is made at the first
    use, once in a process, and others differ in their data alone: they share its compiled programs.
    """

    def __init__(self, wrapped, target: NumPyroTarget, simulated: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]):
        self.wrapped, self.observed = wrapped, target.observed_data()
        args, kwargs = target.arguments.fill(target.arrays)
        self.args, self.kwargs = jax.tree.map(_to_host, (args, kwargs))
        self.params, data = simulated
        self.data = {name: _as_observed(name, data[name], value) for name, value in self.observed.items()}
        self._target: NumPyroTarget | None = None

    def jobs(self, num_simulations: int) -> list[Any]:
        sets = self.params, self.data
        return [jax.tree.map(lambda array, i=index: np.asarray(array[i]), sets) for index in range(num_simulations)]

    def realise(self, job: Any) -> tuple[dict[str, np.ndarray], NumPyroTarget]:
        params, data = job
        if self._target is None:
            self._target = read_target(self.wrapped, (self.observed, *self.args), self.kwargs)
        return params, self._target.with_data(data, *self.args, **self.kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Without the simulations, which travel with their jobs, and without the target."""
        return self.__dict__ | {"params": None, "data": None, "_target": None}


def from_prior(target: AbstractTarget, num_simulations: int, seed: int) -> NumPyroExperiment:
    """Parameters from the prior and data given them."""
    target = _checked(target)
    factors = [site.name for site in target.facts.of_kind("factor")]
    if factors:
        raise ValueError(
            f"the model has numpyro.factor sites ({', '.join(factors)}), and no draw from its prior knows of them. "
            "Calibrate at the data at hand, relbo.calibrate(posterior), or give simulate and make_target."
        )
    return NumPyroExperiment(Reobserved(target.model), target, target.sample_prior(num_simulations, seed))


def from_posterior(posterior: Posterior, num_simulations: int, draw_seed: int, data_seed: int) -> NumPyroExperiment:
    """Parameters from the posterior, a second set of data for each, and the model's own data beside it."""
    target = _checked(posterior.target)
    if target.facts.enumerated:
        raise ValueError(
            "the model has discrete latents, and a second set of data would need their values too. "
            "Calibrate the model itself, relbo.calibrate(target)."
        )
    params = posterior.sample(num_simulations, seed=draw_seed)
    return NumPyroExperiment(Repeated(target.model), target, (params, target.predict(params, data_seed)))


def _checked(target: AbstractTarget) -> NumPyroTarget:
    if not isinstance(target, NumPyroTarget):
        raise TypeError(
            f"a {type(target).__name__} knows a density, and not how data are drawn. Write simulate(rng) -> (params, "
            "data) and pass it with make_target, which makes such a target from data."
        )
    if not target.facts.of_kind("observed"):
        raise ValueError(
            "the model has no observed sites, so there are no data to simulate. Pass the data, as for a fit: their "
            "shapes say what is observed, and their values do not matter for draws from the prior."
        )
    if target.facts.subsampled:
        names = ", ".join(plate.name for plate in target.facts.subsampled)
        raise ValueError(
            f"the model subsamples its plates ({names}), and simulated data would have to follow the minibatch. Drop "
            "subsample_size, or give simulate and make_target."
        )
    return target


def _as_observed(name: str, values: np.ndarray, observed: np.ndarray) -> np.ndarray:
    if values.shape[1:] != observed.shape:
        raise ValueError(f"the model draws {name!r} of shape {values.shape[1:]} and observes it of {observed.shape}.")
    return values.astype(observed.dtype)


def _to_host(leaf: Any) -> Any:
    return np.asarray(leaf) if is_data(leaf) else leaf

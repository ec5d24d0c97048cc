"""One simulation: draw parameters and data, fit, and rank the parameters among the posterior's draws."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo.calibration.ranks import rank_of
from relbo.loop.fitting import fit
from relbo.mixture import map_chunks
from relbo.posterior.posterior import Posterior
from relbo.runtime.compiling import compiled
from relbo.runtime.workers import AbstractTask
from relbo.targets import AbstractTarget, as_target
from relbo.targets.layout import entry_names, named_leaves

LOG_JOINT = "log joint density"


class AbstractExperiment(abc.ABC):
    """Where parameters and data come from."""

    @abc.abstractmethod
    def jobs(self, num_simulations: int) -> list[Any]:
        """What each simulation needs; asked in the user's process."""

    @abc.abstractmethod
    def realise(self, job: Any) -> tuple[Any, AbstractTarget]:
        """The true parameters of a simulation, and the target given its data; asked wherever the fit runs."""


class SimulatorExperiment(AbstractExperiment):
    """The user's own pair of functions: `simulate(rng)` gives parameters and data, `make_target(data)` the target."""

    def __init__(self, simulate: Callable[..., Any], make_target: Callable[[Any], Any], seed: int):
        self.simulate, self.make_target, self.seed = simulate, make_target, seed

    def jobs(self, num_simulations: int) -> list[Any]:
        return [(self.seed, index) for index in range(num_simulations)]

    def realise(self, job: Any) -> tuple[Any, AbstractTarget]:
        drawn = self.simulate(np.random.default_rng(job))
        if not isinstance(drawn, tuple) or len(drawn) != 2:
            raise TypeError(f"simulate(rng) must return (params, data), got {type(drawn).__name__}.")
        return drawn[0], as_target(self.make_target(drawn[1]))


@dataclass(frozen=True)
class FitWith:
    """`relbo.fit` with these settings, as a function of a target and a seed."""

    settings: dict[str, Any]

    def __call__(self, target: AbstractTarget, seed: int) -> Posterior:
        return fit(target, seed=seed, progress_bar=False, **self.settings)


@dataclass
class Outcomes:
    """How simulations ended, in the order in which they did."""

    ranks: list["Ranks"] = field(default_factory=list)
    failures: list["Failure"] = field(default_factory=list)

    @property
    def num(self) -> int:
        return len(self.ranks) + len(self.failures)


@dataclass(frozen=True)
class Failure:
    """A simulation without ranks, and why."""

    simulation: int
    message: str

    def add_to(self, outcomes: Outcomes) -> None:
        outcomes.failures.append(self)

    def as_entry(self) -> dict[str, Any]:
        return {"simulation": self.simulation, "failure": self.message}


@dataclass(frozen=True)
class Ranks:
    """The ranks of one simulation, by the names of the quantities."""

    simulation: int
    names: list[str]
    values: np.ndarray
    truth: np.ndarray

    def add_to(self, outcomes: Outcomes) -> None:
        outcomes.ranks.append(self)

    def as_entry(self) -> dict[str, Any]:
        return {"simulation": self.simulation, "names": self.names, "ranks": self.values, "truth": self.truth}


def from_entry(entry: dict[str, Any]) -> Ranks | Failure:
    """The outcome of which `as_entry` made a line of a journal."""
    if "failure" in entry:
        return Failure(entry["simulation"], entry["failure"])
    truth = np.array(entry["truth"], np.float64)
    return Ranks(entry["simulation"], list(entry["names"]), np.array(entry["ranks"]), truth)


@dataclass(frozen=True)
class Trial(AbstractTask):
    """What a process needs to run any of the simulations."""

    experiment: AbstractExperiment
    fit: Callable[[AbstractTarget, int], Posterior]
    num_draws: int
    seed: int

    def run(self, simulation: int, job: Any) -> Ranks | Failure:
        """The ranks; or what went wrong, whatever it was. The result depends on the arguments and the seed alone."""
        fit_seed, draw_seed, tie_seed = np.random.SeedSequence([self.seed, simulation]).generate_state(3) >> 1
        try:
            truth, target = self.experiment.realise(job)
            posterior = self.fit(target, int(fit_seed))
            if posterior.stop.kind == "interrupted":
                raise KeyboardInterrupt
            if posterior.stop.kind == "failed":
                raise RuntimeError(posterior.stop_reason)
            draws = posterior.sample_unconstrained(self.num_draws, seed=int(draw_seed))
            values, constrained = _quantities(truth, target, posterior, draws)
            first = target.first_index
            names = [entry for name, value in values.items() for entry in entry_names(name, value.shape, first)]
            below, drawn = _flat(values, 0), _flat(constrained, 1)
            _check_numbers(names, below, drawn)
            ranks = rank_of(below, drawn, np.random.default_rng(tie_seed))
        except Exception as error:
            return self.failed(simulation, job, f"{type(error).__name__}: {error}")
        return Ranks(simulation, names, ranks, below)

    def failed(self, simulation: int, job: Any, message: str) -> Failure:
        return Failure(simulation, message)


def _quantities(truth: Any, target: AbstractTarget, posterior: Any, draws) -> tuple[dict, dict]:
    """Name to value at the truth, and at the draws: the parameters, and the log joint density where it can be had."""
    values = {name: np.asarray(leaf) for name, leaf in named_leaves(truth)[0]}
    drawn = {name: np.asarray(leaf) for name, leaf in named_leaves(posterior.constrain(draws))[0]}
    for name, value in values.items():
        if name not in drawn or drawn[name].shape[1:] != value.shape:
            shapes = ", ".join(f"{key} {array.shape[1:]}" for key, array in drawn.items())
            raise ValueError(
                f"the true parameter {name!r} of shape {value.shape} is not among those of the posterior: {shapes}. "
                "simulate returns parameters by the names and shapes of the target's own."
            )
    drawn = {name: drawn[name] for name in values}
    log_joint = _log_joint_at(target, truth, draws)
    if log_joint is not None:
        values[LOG_JOINT], drawn[LOG_JOINT] = log_joint[0], log_joint[1:]
    return values, drawn


def _log_joint_at(target: AbstractTarget, truth: Any, draws) -> np.ndarray | None:
    """log p(parameters, data) at the truth and at the draws; None if `truth` does not hold all parameters.

    It depends on the data, which gives it power where parameters alone have none (Modrak et al. 2023): a fit that
    returns its prior has uniform ranks for every parameter.
    """
    try:
        return np.asarray(_log_joint(target, jax.tree.map(jnp.asarray, truth), draws))
    except ValueError:
        return None


@compiled
def _log_joint(target, truth, draws):
    points = jnp.concatenate([target.unconstrain(truth)[None], draws])
    return map_chunks(target.log_density, points, target.points_at_once)


def _flat(values: dict[str, np.ndarray], leading: int) -> np.ndarray:
    parts = [np.reshape(value, (*value.shape[:leading], -1)).astype(np.float64) for value in values.values()]
    return np.concatenate(parts, axis=-1)


def _check_numbers(names: list[str], truth: np.ndarray, draws: np.ndarray) -> None:
    broken = np.isnan(truth) | np.isnan(draws).any(axis=0)
    if broken.any():
        raise ValueError(f"{names[int(np.argmax(broken))]} is NaN at the true parameters or at a draw.")

"""PyMC's ADVI, mean-field and full-rank, on the models that have a PyMC form."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor

from methods.base import NUM_DRAWS, Density, Outcome, Task

NUM_LAST = 1000
"""Steps at the end whose mean loss chooses between the learning rates."""


def run(task: Task) -> Outcome:
    settings, rates = task.settings, task.settings["learning_rates"]
    inference = _Restartable(task, task.model.pymc())
    fits = [inference.fit(rate) for rate in rates]
    best = int(np.nanargmin([loss for loss, _ in fits]))
    approximation = inference.load(fits[best][1])
    draws = _draw(task, approximation)
    num_gradients = len(rates) * settings["num_steps"] * settings["num_particles"]
    facts = {"learning_rate": rates[best]}
    return Outcome(draws, num_gradients, lambda: _density(approximation, task.seed), facts)


class _Restartable:
    """An inference whose step is compiled once, and started anew with every learning rate."""

    def __init__(self, task: Task, model: pm.Model):
        kind = {"advi": pm.ADVI, "fullrank_advi": pm.FullRankADVI}[task.settings["method"]]
        self.task, self.rate = task, pytensor.shared(pm.floatX(0.0))
        self.inference = kind(model=model, random_seed=task.seed)
        objective = self.inference.objective
        with task.clock.span():
            self.step = objective.step_function(
                score=True,
                obj_n_mc=task.settings["num_particles"],
                obj_optimizer=pm.adagrad_window(learning_rate=self.rate),
            )
        objective.step_function = lambda *_, **__: self.step
        self.start = [(variable, variable.get_value()) for variable in self.step.get_shared()]

    def fit(self, rate: float) -> tuple[float, list[Any]]:
        """The mean loss at the end, and the parameters there; a fit that breaks down has the loss NaN."""
        for variable, value in self.start:
            variable.set_value(value)
        self.rate.set_value(rate)
        self.inference.hist = np.empty(0)
        try:
            approximation = self.inference.fit(self.task.settings["num_steps"], progressbar=False)
        except FloatingPointError:
            return float("nan"), []
        return float(np.mean(approximation.hist[-NUM_LAST:])), [p.get_value() for p in approximation.params]

    def load(self, values: list[Any]) -> pm.Approximation:
        for parameter, value in zip(self.inference.approx.params, values, strict=True):
            parameter.set_value(value)
        return self.inference.approx


def _draw(task: Task, approximation: pm.Approximation) -> np.ndarray:
    """Named draws, as PyMC gives them, in the model's coordinates."""
    posterior = approximation.sample(NUM_DRAWS, random_seed=task.seed).posterior
    return task.model.from_pymc({name: np.asarray(posterior[name])[0] for name in posterior.data_vars})


def _density(approximation: pm.Approximation, seed: int) -> Density:
    """Fresh draws in PyMC's unconstrained coordinates, which are the model's, with log q."""
    mean, covariance = approximation.mean.eval(), approximation.cov.eval()
    factor = np.linalg.cholesky(covariance)
    noise = np.random.default_rng(seed).standard_normal((NUM_DRAWS, len(mean)))
    log_volume = np.log(np.diag(factor)).sum() + 0.5 * len(mean) * np.log(2 * np.pi)
    return Density(mean + noise @ factor.T, -0.5 * (noise**2).sum(axis=1) - log_volume)

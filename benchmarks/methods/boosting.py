"""relbo, at default settings."""

import jax.numpy as jnp
import numpy as np

import relbo
from methods.base import NUM_DRAWS, Density, Outcome, Task


def run(task: Task) -> Outcome:
    posterior = relbo.fit(_target(task), seed=task.seed, progress_bar=False)
    draws = np.asarray(posterior.sample_unconstrained(NUM_DRAWS, seed=task.seed + 1000))
    facts = {"num_components": posterior.num_components, "stop_reason": posterior.stop_reason}
    return Outcome(
        draws, posterior.num_evaluations, lambda: Density(draws, np.asarray(posterior.log_prob(draws))), facts
    )


def _target(task: Task):
    model = task.model
    if model.through == "callable":
        return relbo.from_callable(lambda z: model.host_density(z, *task.data), model.dim)
    return relbo.from_log_density(model.log_density, jnp.zeros(model.dim), args=task.data)

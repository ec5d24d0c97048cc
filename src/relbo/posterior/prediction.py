"""Posterior predictive draws."""

from typing import Any

import numpy as np

from relbo.posterior.posterior import Posterior


def predict(
    posterior: Posterior, /, *args: Any, num_draws: int = 1000, seed: int = 0, **kwargs: Any
) -> dict[str, np.ndarray]:
    """Draws of the observed variables given draws of the posterior: name to array behind an axis of draws.

    Without `args` and `kwargs` they are for the data that were fitted, with them for new data: for a NumPyro model its
    arguments (leave the observed ones out or None), for a PyMC model the names of its `pm.Data`,
    and `coords` for the labels of dims that change with them.

    >>> predictions = relbo.predict(posterior, X_new)["y"]  # doctest: +SKIP
    """
    draws = posterior.sample(num_draws, seed=seed)
    return posterior.target.predict(draws, seed, *args, **kwargs)

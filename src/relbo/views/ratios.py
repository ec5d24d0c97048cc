"""Importance ratios of a posterior's own draws."""

import numpy as np

from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import seed_number, whole_number


def log_ratios(posterior: Posterior, num_draws: int = 4000, seed: int = 0) -> np.ndarray:
    """log p - log q at draws of the mixture, p not normalised; NaN where the model is broken, -inf outside its support.

    Of a posterior that was loaded without its model, those in the file; there may be fewer of them.
    """
    num_draws, seed = whole_number("num_draws", num_draws, 1), seed_number(seed)
    stored = posterior.target.stored
    if stored is not None:
        drawn = stored.choose_draws(stored.at_most(num_draws), seed)
        return drawn.log_p.astype(np.float64) - drawn.log_q.astype(np.float64)
    points = posterior.sample_unconstrained(num_draws, seed=seed)
    return posterior.log_target(points) - np.asarray(posterior.log_prob(points), np.float64)

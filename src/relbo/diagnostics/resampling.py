"""Importance resampling: draws of the posterior itself, made from draws of the mixture and its heavy companion."""

import jax
import numpy as np
from jaxtyping import Float, PyTree

from relbo.diagnostics.defensive import constrained, draw, new_modes
from relbo.diagnostics.estimates import Weighted, balanced, weigh
from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import seed_number, whole_number
from relbo.runtime.compiling import host_split

_DRAWN_FOR_ONE = 4  # so that uneven weights need not repeat many of them
_FEWEST_DRAWN = 4000  # so that the tail by which weights are smoothed has 190


def resample(posterior: Posterior, num_draws: int = 2000, seed: int = 0) -> PyTree:
    """Named, constrained draws as of `posterior.sample`, corrected by importance weights for what the mixture misses.

    Five times as many are drawn, a fifth of them from a heavy-tailed companion of the mixture, and resampled by
    Pareto-smoothed weights (with replacement). Raises ValueError where even these weights cannot be trusted.
    """
    points, _ = resample_whitened(posterior, num_draws, seed)
    return jax.tree.map(np.asarray, constrained(posterior, points))


def resample_whitened(
    posterior: Posterior, num_draws: int, seed: int
) -> tuple[Float[np.ndarray, "num_draws dim"], Weighted]:
    """Draws in the mixture's coordinates, and the weights by which they were chosen."""
    num_draws, seed = whole_number("num_draws", num_draws, 1), seed_number(seed)
    mode_key, draw_key = host_split(jax.random.fold_in(jax.random.key(seed), 0xD4A3), 2)
    num_own = max(_FEWEST_DRAWN, _DRAWN_FOR_ONE * num_draws)
    sample = draw(draw_key, posterior, num_own, num_own // 4, new_modes(mode_key, posterior))
    weighted = weigh(balanced(sample.log_ratio, sample.log_heavy, num_own), explored=True)
    if not weighted.reliable:
        raise ValueError(
            f"importance resampling needs k-hat below {weighted.k_hat_limit:.2f} and a hundred effective draws; here "
            f"k-hat is {weighted.k_hat:.2f} and there are {weighted.ess:.0f}: a few draws would carry all the weight. "
            "Add components (fit with start=), or use the draws as they are."
        )
    chosen = np.random.default_rng(seed).choice(weighted.keep, num_draws, p=_probabilities(weighted))
    return sample.points[chosen], weighted


def _probabilities(weighted: Weighted) -> np.ndarray:
    weights = np.exp(weighted.log_weights)
    return weights / weights.sum()

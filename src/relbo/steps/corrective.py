"""Variant 2: re-optimise every weight."""

import equinox as eqx
import numpy as np

from relbo.steps.base import AbstractStep, WeightUpdate


class FullyCorrective(AbstractStep):
    r"""$\min_{w \in \Delta} \mathrm{KL}(q_w \| p)$ on cached draws, by mirror descent with unit step.

    $\log w \leftarrow \log w - g(w)$, renormalised. The objective is 1-smooth relative to the entropy, because
    $\mathrm{KL}(q_{w'} \| q_w) \le \mathrm{KL}(w' \| w)$, so every exact step descends and there is nothing to tune.
    Weights below `drop` are set to zero, and their slots are empty again. Several proposals may come at once.
    """

    kinds = ("fully-corrective",)
    monotone = True
    at_once = 4
    num_draws: int = eqx.field(static=True, default=256)
    num_steps: int = eqx.field(static=True, default=200)
    drop: float = 1e-5

    def update(self, problem, mixture, slots, iteration, memory):
        gamma = len(slots) / (np.sum(problem.weights > 0) + len(slots))
        weights = (1 - gamma) * problem.inside
        weights[slots] = gamma / len(slots)
        used = np.flatnonzero(weights > 0)
        for _ in range(self.num_steps):
            gradient = problem.gradient(weights)
            log_weights = np.log(weights[used]) - gradient[used]
            moved = np.exp(log_weights - log_weights.max())
            weights[used] = np.maximum(moved / moved.sum(), np.finfo(float).tiny)
        kept = problem.whole(np.where(weights < self.drop, 0.0, weights))
        return WeightUpdate(kept, float(kept[slots].sum())), memory

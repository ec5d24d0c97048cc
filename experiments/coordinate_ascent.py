r"""What variational inference comes to on faces: coordinate ascent, one full covariance a row of $U$ and of $V$.

With $q(u_i) = N(m_i, S_i)$ and likewise for $V$, noise of deviation 1 and standard normal priors, each update is the
best there is given the rest:

$$S_i^{-1} = I + \sum_j o_{ij} (n_j n_j^\top + T_j), \qquad m_i = S_i \sum_j o_{ij} R_{ij} n_j.$$
"""

import time
from typing import Any

import numpy as np

from experiments.factorization import Task

VB = "coordinate ascent"
_MOST_ROUNDS, _SMALL = 500, 1e-6
"""Rounds over both factors, and the change of the held-out error relative to it that ends them."""


def coordinate_ascent(task: Task) -> dict[str, Any]:
    """The held-out error of the product of posterior means."""
    begun = time.process_time()
    entries, observed = task.matrix.entries.astype(np.float64), task.observed.astype(np.float64)
    rng = np.random.default_rng([task.seed, task.rank])
    v = rng.normal(size=(entries.shape[1], task.rank))
    v_cov = np.broadcast_to(np.eye(task.rank), (len(v), task.rank, task.rank))
    held, error, rounds = observed == 0, np.inf, 0
    for rounds in range(1, _MOST_ROUNDS + 1):
        u, u_cov = _updated(entries, observed, v, v_cov)
        v, v_cov = _updated(entries.T, observed.T, u, u_cov)
        before, error = error, float(np.mean((entries - u @ v.T)[held] ** 2))
        if rounds > 10 and abs(before - error) < _SMALL * error:
            break
    about = {"data": task.matrix.name, "rank": task.rank, "noise": task.noise, "seed": task.seed, "system": VB}
    row = about | {"test_mse": error, "rounds": rounds, "dim": task.rank * sum(entries.shape)}
    return {"rows": [row | {"cpu_seconds": time.process_time() - begun}]}


def _updated(entries, observed, mean, cov):
    """Means and covariances of one factor's rows, given those of the other."""
    rank = mean.shape[1]
    second = (mean[:, :, None] * mean[:, None, :] + cov).reshape(len(mean), -1)
    precision = np.eye(rank) + (observed @ second).reshape(-1, rank, rank)
    found = np.linalg.inv(precision)
    return np.einsum("irs,is->ir", found, (observed * entries) @ mean), found

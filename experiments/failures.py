"""Whole fits where the best KL is known to be zero: the recorded duality gap, and the paper's two failure modes.

Every target is a mixture of two normals with independent axes, so that it lies in the hull of each family, the primal
error of a mixture is its KL, and targets of one dimension share compiled programs.
"""

import math

import numpy as np

SYSTEMS = {
    "fixed": "paper, fixed step",
    "line_search": "paper, line search",
    "fully_corrective": "paper, fully corrective",
    "default": "relbo's default",
}
TARGETS = {
    "two modes": ([0.4, 0.6], [-1.0, 1.0], [0.5, 0.5]),
    "symmetric modes": ([0.5, 0.5], [-1.0, 1.0], [0.5, 0.5]),
    "one component": ([0.5, 0.5], [1.0, 1.0], [0.7, 0.7]),
    "two modes, 2-d": ([0.35, 0.65], [[-1.2, 0.5], [1.0, -0.4]], [[0.5, 0.8], [0.7, 0.4]]),
}
_STUCK = 0.01
"""Nats by which an iteration must have improved on the first component not to count as stuck."""


def gap_points(fit: dict) -> np.ndarray:
    """Rows of primal error, recorded gap and its standard error, one for each mixture whose gap was recorded.

    The gap that a record holds is that of the mixture before its iteration.
    """
    rows = [
        (kl, gap, std_err)
        for kl, gap, std_err in zip(fit["kl"][:-1], fit["gap"][1:], fit["gap_std_err"][1:], strict=True)
        if gap is not None
    ]
    return np.array(rows, float).reshape(-1, 3)


def num_stuck(kls: list[float]) -> int:
    """How many iterations passed before the first that improved on the first component."""
    better = [index for index, kl in enumerate(kls) if kl < kls[0] - _STUCK]
    return (better[0] if better else len(kls)) - 1


def profiles(places: np.ndarray) -> dict[str, np.ndarray]:
    """Symmetric modes, one component fitted: the second one's objective at each location, with its best scale.

    Beside the paper's RELBO at t = 1 stands what the finite-step objective ascends, ELBO((1 - gamma) q + gamma s) /
    gamma. Both are relative to their value in the middle.
    """
    z = np.linspace(-9, 9, 1801)
    width = z[1] - z[0]
    log_p = np.logaddexp(_log_normal(z, -1.0, 0.5), _log_normal(z, 1.0, 0.5)) - math.log(2)
    scales = np.exp(np.linspace(-2.5, 1.0, 71))

    def kl(log_q):
        return width * np.sum(np.exp(log_q) * (log_q - log_p))

    log_q = _log_normal(z, 0.0, min(scales, key=lambda scale: kl(_log_normal(z, 0.0, scale))))
    gamma = 1 / 3

    def residual(log_s):
        lam = 1 / math.sqrt(2)
        return width * np.sum(np.exp(log_s) * (log_p - lam * log_s - log_q))

    def after(log_s):
        return -kl(np.logaddexp(math.log(1 - gamma) + log_q, math.log(gamma) + log_s)) / gamma

    middle = int(np.argmin(np.abs(places)))
    found = {}
    for name, objective in (("RELBO", residual), ("finite step", after)):
        best = np.array([max(objective(_log_normal(z, place, scale)) for scale in scales) for place in places])
        found[name] = best - best[middle]
    return found


def _log_normal(z, loc, scale):
    return -0.5 * ((z - loc) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)

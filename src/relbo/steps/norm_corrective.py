r"""Weights by projecting a gradient step onto the convex hull, in $L_2$ (Locatello, Khanna, Ghosh and Rätsch 2018)."""

import equinox as eqx
import jax
import numpy as np

from relbo.mixture import Mixture
from relbo.runtime.compiling import compiled
from relbo.steps.base import AbstractStep, WeightProblem, WeightUpdate

_FIRST_CURVATURE = 2.0**-10
"""In units of the largest difference of the gradient: so small that the step goes all the way to the best component."""


class NormCorrective(AbstractStep):
    r"""$\min_{w \in \Delta} \| q_w - (q_t - \tfrac1L \nabla f(q_t)) \|_2^2$ over the weights of all components.

    Up to a constant that is the quadratic model $g^\top (w - w_t) + \tfrac L2 (w - w_t)^\top G (w - w_t)$ of the
    divergence, with $g_i = E_{s_i}[\log q_t - \log p]$ on cached draws and $G_{ij} = \langle s_i, s_j \rangle$ in
    closed form. Norms of densities in many dimensions are of any order of magnitude, so no fixed $L$ will do: $G$ is
    divided by its largest entry, and $L$, starting small, is multiplied by `growth` until the divergence falls as the
    model promises. Weights below `drop` are set to zero. Needs a family with closed-form inner products.
    """

    kinds = ("norm-corrective",)
    monotone = True
    at_once = 1
    num_draws: int = eqx.field(static=True, default=256)
    growth: float = 2.0
    max_backtracks: int = eqx.field(static=True, default=80)
    num_steps: int = eqx.field(static=True, default=500)
    drop: float = 1e-5

    def check(self, family):
        if not getattr(family, "has_inner", False):
            raise ValueError(
                'step="norm_corrective" needs inner products of components in closed form, which '
                f'{family} does not have. Use a normal family, or family="truncated_normal".'
            )

    def update(self, problem, mixture, slots, iteration, memory):
        weights = problem.inside
        gradient, inner = problem.gradient(weights), inner_products(mixture, problem.usable)
        spread = np.max(np.abs(gradient - weights @ gradient)[problem.usable])
        curvature = max(_FIRST_CURVATURE * spread, np.finfo(np.float32).eps)
        for _ in range(self.max_backtracks):
            moved = nearest_weights(weights, gradient / curvature, inner, problem.usable, self.num_steps)
            offset = moved - weights
            model = gradient @ offset + 0.5 * curvature * offset @ inner @ offset
            if not _rise(problem, weights, offset) > model:
                break
            curvature *= self.growth
        kept = problem.whole(np.where(moved < self.drop, 0.0, moved))
        return WeightUpdate(kept, float(kept[slots[0]])), memory


def inner_products(mixture: Mixture, usable: np.ndarray) -> np.ndarray:
    """G over its largest entry, zero for slots that are not usable."""
    log_inner = np.asarray(_log_inner(mixture), np.float64)
    pair = usable[:, None] & usable
    scaled = np.exp(np.where(pair, log_inner, -np.inf) - np.max(log_inner[pair]))
    return 0.5 * (scaled + scaled.T)


@compiled
def _log_inner(mixture):
    r"""$\log \int s(z)\, s'(z)\, dz$ of all pairs of members, which families that `has_inner` know in closed form."""
    each = jax.vmap(mixture.family.log_inner, (None, 0))
    return jax.vmap(each, (0, None))(mixture.params, mixture.params)


def nearest_weights(
    weights: np.ndarray, slope: np.ndarray, inner: np.ndarray, usable: np.ndarray, num_steps: int
) -> np.ndarray:
    r"""$\arg\min_{w \in \Delta}\ \text{slope}^\top (w - w_t) + \tfrac12 (w - w_t)^\top G (w - w_t)$.

    Weight moves between two components at a time, exactly as much as pays, and of all pairs the one that gains most
    moves first. Unlike a projected gradient this does not mind entries of G of very different sizes, and a weight that
    is used up is exactly zero.
    """
    diagonal = np.diagonal(inner)
    distance = np.maximum(diagonal[:, None] + diagonal - 2 * inner, np.finfo(float).tiny)
    nearest = weights.copy()
    for _ in range(num_steps):
        gradient = slope + inner @ (nearest - weights)
        gap = gradient[:, None] - gradient  # of a unit of weight that goes from the row to the column
        with np.errstate(over="ignore"):
            amount = np.clip(gap / distance, 0.0, nearest[:, None])
        gain = np.where(usable, amount * (gap - 0.5 * distance * amount), 0.0)
        giver, taker = np.unravel_index(np.argmax(gain), gain.shape)
        if not gain[giver, taker] > 0:
            break
        moving = amount[giver, taker]
        nearest[giver] -= moving
        nearest[taker] += moving
    return nearest


def _rise(problem: WeightProblem, weights: np.ndarray, offset: np.ndarray) -> float:
    """f(w + offset) - f(w) as the integral of the slope, by Simpson's rule on four panels.

    On cached draws f itself is not quite that integral, and for a gap below their noise no step would ever do.
    """
    shares = np.linspace(0.0, 1.0, 9)
    slopes = [offset @ problem.gradient(np.maximum(weights + share * offset, 0.0)) for share in shares]
    return float(np.asarray(slopes) @ np.asarray([1, 4, 2, 4, 2, 4, 2, 4, 1]) / 24)

r"""Weights by projecting a gradient step onto the convex hull, in $L_2$ (Locatello, Khanna, Ghosh and Rätsch 2018)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from relbo.steps.base import AbstractStep, WeightProblem, WeightUpdate, to_log_weights, weight_problem

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
    num_draws: int = eqx.field(static=True, default=256)
    growth: float = 2.0
    max_backtracks: int = eqx.field(static=True, default=80)
    num_steps: int = eqx.field(static=True, default=500)
    drop: float = 1e-5

    def init(self, dtype):
        return ()

    def check(self, family):
        if not family.has_inner:
            raise ValueError(
                'step="norm_corrective" needs inner products of components in closed form, which '
                f'{family} does not have. Use a normal family, or family="truncated_normal".'
            )

    def update(self, key, target, mixture, slot, iteration, memory):
        problem = weight_problem(key, target, mixture, slot, self.num_draws)
        weights = problem.inside(jnp.exp(mixture.log_weights))
        gradient = problem.gradient(weights)
        inner = inner_products(mixture, problem.usable)
        spread = jnp.max(jnp.where(problem.usable, jnp.abs(gradient - weights @ gradient), 0.0))

        def corrected(curvature):
            return nearest_weights(weights, gradient / curvature, inner, problem.usable, self.num_steps)

        def too_bold(carry):
            curvature, moved, count = carry
            offset = moved - weights
            model = gradient @ offset + 0.5 * curvature * offset @ inner @ offset
            return (_rise(problem, weights, offset) > model) & (count < self.max_backtracks)

        def grow(carry):
            curvature = carry[0] * self.growth
            return curvature, corrected(curvature), carry[2] + 1

        first = jnp.maximum(_FIRST_CURVATURE * spread, jnp.finfo(mixture.dtype).eps)
        _, moved, _ = jax.lax.while_loop(too_bold, grow, (first, corrected(first), jnp.asarray(0)))
        kept = jnp.where(moved < self.drop, 0.0, moved)
        log_weights = to_log_weights(problem.whole(kept))
        return WeightUpdate(log_weights, jnp.exp(log_weights[slot]), jnp.asarray(0), problem.num_nan), memory


def inner_products(mixture, usable: Bool[Array, " capacity"]) -> Float[Array, "capacity capacity"]:
    """G over its largest entry, zero for slots that are not usable."""
    each = jax.vmap(mixture.family.log_inner, (None, 0))
    log_inner = jax.vmap(each, (0, None))(mixture.params, mixture.params)
    pair = usable[:, None] & usable
    scaled = jnp.exp(log_inner - jnp.max(jnp.where(pair, log_inner, -jnp.inf)))
    return jnp.where(pair, 0.5 * (scaled + scaled.T), 0.0)


def nearest_weights(
    weights: Float[Array, " capacity"],
    slope: Float[Array, " capacity"],
    inner: Float[Array, "capacity capacity"],
    usable: Bool[Array, " capacity"],
    num_steps: int,
) -> Float[Array, " capacity"]:
    r"""$\arg\min_{w \in \Delta}\ \text{slope}^\top (w - w_t) + \tfrac12 (w - w_t)^\top G (w - w_t)$.

    Weight moves between two components at a time, exactly as much as pays, and of all pairs the one that gains most
    moves first. Unlike a projected gradient this does not mind entries of G of very different sizes, and a weight that
    is used up is exactly zero.
    """
    diagonal = jnp.diagonal(inner)
    distance = jnp.maximum(diagonal[:, None] + diagonal - 2 * inner, 0.0)
    tiny = jnp.finfo(weights.dtype).tiny

    def move(carry):
        now, _, count = carry
        gradient = slope + inner @ (now - weights)
        gap = gradient[:, None] - gradient  # of a unit of weight that goes from the row to the column
        amount = jnp.clip(gap / jnp.maximum(distance, tiny), 0.0, now[:, None])
        gain = jnp.where(usable, amount * (gap - 0.5 * distance * amount), 0.0)
        giver, taker = jnp.unravel_index(jnp.argmax(gain), gain.shape)
        moved = now.at[giver].add(-amount[giver, taker]).at[taker].add(amount[giver, taker])
        return jnp.where(gain[giver, taker] > 0, moved, now), gain[giver, taker], count + 1

    def unfinished(carry):
        return (carry[1] > 0) & (carry[2] < num_steps)

    first = (weights, jnp.ones((), weights.dtype), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, move, first)[0]


def _rise(problem: WeightProblem, weights, offset) -> Float[Array, ""]:
    """f(w + offset) - f(w) as the integral of the slope, by Simpson's rule on four panels.

    On cached draws f itself is not quite that integral, and for a gap below their noise no step would ever do.
    """

    def slope(share):
        return offset @ problem.gradient(jnp.maximum(weights + share * offset, 0.0))

    values = jax.vmap(slope)(jnp.linspace(0.0, 1.0, 9, dtype=weights.dtype))
    return values @ jnp.asarray([1, 4, 2, 4, 2, 4, 2, 4, 1], weights.dtype) / 24

"""Coordinates in which a posterior is sampled more easily than in the model's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from posteriors.discrete import ORDERS, relabelled
from posteriors.laws import half_cauchy, normal
from posteriors.regressions import NUM_SLOPES, TAU0, horseshoe


@dataclass(frozen=True)
class Chart:
    """`log_density(u, *data)` and the draws of z that belong to draws of u, (copies, num, dim)."""

    dim: int
    log_density: Callable[..., Any]
    to_model: Callable[[np.ndarray, tuple], np.ndarray]
    start: np.ndarray
    log_copies: float = 0.0


def plain_chart(model) -> Chart:
    return Chart(model.dim, model.log_density, lambda draws, data: draws[None], np.zeros(model.dim))


def ordered_chart(model) -> Chart:
    """Means of the mixture in increasing order by their log gaps; z has six copies of every draw."""

    def ordered(u):
        return jnp.concatenate([u[:1] + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(u[1:3]))]), u[3:]])

    def to_model(draws, data):
        draws = np.asarray(jax.vmap(ordered)(draws))
        return np.stack([relabelled(draws, order) for order in ORDERS])

    def log_density(u, *data):
        return model.log_density(ordered(u), *data) + u[1] + u[2]

    start = np.concatenate([[-4.0], np.log([4.0, 4.0]), np.zeros(5)])
    return Chart(model.dim, log_density, to_model, start, np.log(len(ORDERS)))


def hmm_chart(model) -> Chart:
    start = np.concatenate([[-1.5], np.log([2.0, 2.5, 0.8]), [2.0, 0.0, 0.0, 2.0, -2.0, -2.0]])
    return Chart(model.dim, model.log_density, lambda draws, data: draws[None], start)


def horseshoe_chart(model) -> Chart:
    """Intercept and slopes integrated out (they are normal given the rest); half-Cauchy scales as normal scores.

    u = (log sigma, log c², score of tau, scores of the local scales). `_rest_of` gives the normal law of what is left.
    """
    dim = 3 + NUM_SLOPES

    def log_density(u, *data):
        log_tau, log_local = _log_scale(u[2], TAU0), _log_scale(u[3:], 1.0)
        center, factor = _rest_of(u, data)
        prior_change = normal(u[2:]) - half_cauchy(log_tau, TAU0) - jnp.sum(half_cauchy(log_local, 1.0))
        log_volume = 0.5 * center.size * jnp.log(2 * jnp.pi) - jnp.sum(jnp.log(jnp.diagonal(factor)))
        return horseshoe(_horseshoe_point(u, center), *data) + log_volume + prior_change

    def to_model(draws, data):
        noise = np.random.default_rng(0).standard_normal((len(draws), 1 + NUM_SLOPES))

        def complete(pair):
            u, white = pair
            center, factor = _rest_of(u, data)
            rest = center + jax.scipy.linalg.solve_triangular(factor.T, white, lower=False)
            return _horseshoe_point(u, rest)

        return np.asarray(jax.jit(lambda pairs: jax.lax.map(complete, pairs, batch_size=256))((draws, noise)))[None]

    start = np.concatenate([[0.0, 1.4], np.zeros(1 + NUM_SLOPES)])
    return Chart(dim, log_density, to_model, start)


def _horseshoe_point(u, rest):
    log_tau, log_local = _log_scale(u[2], TAU0), _log_scale(u[3:], 1.0)
    return jnp.concatenate([rest[:1], u[:1], log_tau[None], u[1:2], log_local, rest[1:]])


def _rest_of(u, data):
    """Mean, and Cholesky factor of the precision, of (intercept, raw slopes) given u."""

    def joint(rest):
        return horseshoe(_horseshoe_point(u, rest), *data)

    origin = jnp.zeros(1 + NUM_SLOPES)
    factor = jnp.linalg.cholesky(-jax.hessian(joint)(origin))
    return jax.scipy.linalg.cho_solve((factor, True), jax.grad(joint)(origin)), factor


def _log_scale(score, scale):
    """log x of x ~ HalfCauchy(scale) with the given normal score; the lower tail serves both sides, being precise."""
    lower = norm.cdf(-jnp.abs(score))
    return jnp.log(scale) - jnp.sign(score) * jnp.log(jnp.tan(0.5 * jnp.pi * lower))


CHARTS: dict[str, Callable[..., Chart]] = {
    "label_switching": ordered_chart,
    "hmm": hmm_chart,
    "horseshoe": horseshoe_chart,
}

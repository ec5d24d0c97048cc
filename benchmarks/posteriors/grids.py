"""The models whose posterior is had by quadrature, each with its grid: functions of the model and its data."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from scipy.optimize import minimize

from posteriors.base import Model
from posteriors.laws import beta, half_normal, normal
from posteriors.quadrature import Grid, normal_rest


def _of(model: Model, data: tuple) -> Callable:
    return lambda z: model.log_density(z, *data)


def _plain(model: Model, data: tuple, axes) -> Grid:
    return Grid(axes, normal_rest(_of(model, data), lambda u, rest: u, 0))


def _schools(model: Model, data: tuple, centered: bool) -> Grid:
    """u = log tau, rest = (mu, eta)."""

    def to_model(u, rest):
        schools = rest[0] + jnp.exp(u) * rest[1:] if centered else rest[1:]
        return jnp.concatenate([rest[:1], u, schools])

    log_det = (lambda u: 8 * u[0]) if centered else None
    return Grid(((-16.0, 9.0, 501),), normal_rest(_of(model, data), to_model, 9, log_det))


def _intercepts(model: Model, data: tuple) -> Grid:
    """u = (log tau, log sigma), rest = (mu, gamma, beta, eta)."""
    level = data[3]

    def to_model(u, rest):
        alpha = rest[0] + rest[1] * level + jnp.exp(u[0]) * rest[3:]
        return jnp.concatenate([rest[:3], u, alpha])

    given = normal_rest(_of(model, data), to_model, 3 + level.size, lambda u: level.size * u[0])
    return Grid(((-15.0, 1.0, 201), (-0.6, 0.1, 41)), given)


# Poisson counts in groups: given u = (mu, beta, log tau) the groups are independent, one integral each.

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_NEWTON_STEPS = 30


def _poisson_given(u, counts, x, log_factorials):
    """Gauss-Hermite rules around each group's mode, scaled by its curvature."""
    mu, beta, log_tau, tau = *u, jnp.exp(u[2])
    totals, exposures = counts.sum(axis=1), jnp.exp(beta * x).sum(axis=1)

    def rate(eta):
        return jnp.exp(mu + tau * eta) * exposures

    def newton(_, eta):
        return eta + jnp.clip((tau * (totals - rate(eta)) - eta) / (tau**2 * rate(eta) + 1), -1.0, 1.0)

    mode = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, jnp.zeros(totals.size))
    scale = (tau**2 * rate(mode) + 1) ** -0.5
    eta = mode + scale * _NODES[:, None]
    log_terms = totals * (mu + tau * eta) - rate(eta) - 0.5 * eta**2 - 0.5 * jnp.log(2 * jnp.pi)
    log_terms += jnp.log(scale) + 0.5 * _NODES[:, None] ** 2 + np.log(_WEIGHTS)[:, None]
    log_groups = jax.scipy.special.logsumexp(log_terms, axis=0)
    weights = jnp.exp(log_terms - log_groups)
    mean = jnp.sum(weights * eta, axis=0)
    variance = jnp.sum(weights * (eta - mean) ** 2, axis=0)
    prior = normal(mu, 0.0, 2.0) + normal(beta, 0.0, 1.0) + half_normal(log_tau, 1.0)
    value = prior + jnp.sum(log_groups) + beta * jnp.sum(counts * x) - log_factorials
    return value, jnp.concatenate([u, mean]), jnp.concatenate([jnp.zeros(3), variance])


def _poisson(model: Model, data: tuple) -> Grid:
    """Axes of nine standard deviations to either side of the mode."""

    def given(u):
        return _poisson_given(u, *data)

    log_density = jax.jit(lambda u: given(u)[0])
    mode = minimize(lambda u: -float(log_density(u)), np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-4}).x
    step = 1e-3 * np.eye(3)
    curvature = [
        [log_density(mode + a + b) - log_density(mode + a - b) - log_density(mode - a + b) + log_density(mode - a - b)
         for a in step] for b in step
    ]  # fmt: skip
    sd = np.sqrt(np.diag(np.linalg.inv(-np.array(curvature) / 4e-6)))
    return Grid(tuple((float(m - 9 * s), float(m + 9 * s), 45) for m, s in zip(mode, sd, strict=True)), given)


# Stochastic volatility: given (mu, logit phi, log sigma), h is a Markov chain of one number, here on a fine grid.

_STATES = np.linspace(-6.4, 6.4, 161)


def _volatility_given(hyper, y):
    """Forward and backward recursions for x_t = h_t / its stationary sd; noise_t = (x_t - phi x_(t-1)) / spread."""
    mu, logit_phi, log_sigma = hyper
    phi = jnp.tanh(logit_phi / 2)
    spread = 2 * jnp.exp(0.5 * (log_sigmoid(logit_phi) + log_sigmoid(-logit_phi)))
    moves = jax.nn.softmax(-0.5 * ((_STATES - phi * _STATES[:, None]) / spread) ** 2, axis=1)
    log_variance = mu + jnp.exp(log_sigma) / spread * _STATES
    log_seen = -0.5 * (jnp.log(2 * jnp.pi) + log_variance + (y**2)[:, None] * jnp.exp(-log_variance))
    top = log_seen.max(axis=1)
    seen = jnp.exp(log_seen - top[:, None])

    def forward(probs, seen_now):
        joint = probs @ moves * seen_now
        return joint / joint.sum(), (joint / joint.sum(), joint.sum())

    def backward(ahead, seen_and_norm):
        seen_next, norm = seen_and_norm
        later = seen_next * ahead / norm
        return moves @ later, (moves @ later, moves @ (later * _STATES))

    start = jax.nn.softmax(-0.5 * _STATES**2) * seen[0]
    _, (probs, norms) = jax.lax.scan(forward, start / start.sum(), seen[1:])
    probs = jnp.concatenate([(start / start.sum())[None], probs])
    ones = jnp.ones(_STATES.size)
    _, (ahead, next_ahead) = jax.lax.scan(backward, ones, (seen[1:], norms), reverse=True)
    smooth = probs * jnp.concatenate([ahead, ones[None]])
    first, second = smooth @ _STATES, smooth @ _STATES**2
    cross = (probs[:-1] * next_ahead) @ _STATES
    mean = jnp.concatenate([first[:1], (first[1:] - phi * first[:-1]) / spread])
    square = (second[1:] - 2 * phi * cross + phi**2 * second[:-1]) / spread**2
    prior = normal(mu, 0.0, 3.0) + beta(logit_phi, 20.0, 1.5) + half_normal(log_sigma, 1.0)
    value = prior + jnp.log(start.sum()) + jnp.sum(jnp.log(norms)) + jnp.sum(top)
    variance = jnp.concatenate([jnp.zeros(3), second[:1], square]) - jnp.concatenate([jnp.zeros(3), mean**2])
    return value, jnp.concatenate([hyper, mean]), variance


def _volatility(model: Model, data: tuple) -> Grid:
    """u = (v, logit phi, log sigma), mu = level + width v: how well mu is known depends on the size of h."""
    level = np.log(np.mean(data[0] ** 2))

    def given(u):
        log_size_squared = 2 * u[2] - jnp.log(4.0) - log_sigmoid(u[1]) - log_sigmoid(-u[1])
        width = jnp.sqrt(1 / 30 + 1 / (jnp.exp(-log_size_squared) + 1 / 9))
        value, mean, variance = _volatility_given(jnp.stack([level + width * u[0], u[1], u[2]]), *data)
        return value + jnp.log(width), mean, variance

    return Grid(((-8.0, 8.0, 41), (-1.5, 12.0, 31), (-16.0, 2.0, 73)), given)


GRIDS: dict[str, Callable[[Model, tuple], Grid]] = {
    "eight_schools_centered": partial(_schools, centered=True),
    "eight_schools_noncentered": partial(_schools, centered=False),
    "varying_intercepts": _intercepts,
    **{f"hierarchical_poisson_{dim}": _poisson for dim in (30, 100, 300)},
    "stochastic_volatility": _volatility,
    "gp_regression": partial(_plain, axes=((-2.0, 4.5, 81), (-5.0, 3.0, 61), (-4.0, 1.5, 81))),
    "bioassay_callable": partial(_plain, axes=((-8.0, 12.0, 401), (-30.0, 70.0, 401))),
}

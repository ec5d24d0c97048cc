"""Models of series: stochastic volatility, and Gaussian processes with normal and with Poisson observations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from scipy.special import gammaln, logit

from posteriors.base import Model, columns
from posteriors.laws import beta, half_normal, inverse_gamma, normal

# Stochastic volatility (Kim, Shephard and Chib 1998; Stan User's Guide, not centred): y_t ~ N(0, exp(mu + h_t)),
# h_t = phi h_(t-1) + sigma e_t, h_1 from the stationary law, (phi + 1) / 2 ~ Beta(20, 1.5).
# z = (mu, logit((phi + 1) / 2), log sigma, e).

LENGTH = 60


def volatility_data():
    rng = np.random.default_rng(60)
    phi, sigma = 0.95, 0.35
    h = [rng.normal() * sigma / np.sqrt(1 - phi**2)]
    for _ in range(LENGTH - 1):
        h.append(phi * h[-1] + sigma * rng.normal())
    return (rng.normal(size=LENGTH) * np.exp(0.5 * (-0.5 + np.array(h))),)


def volatility(z, y):
    mu, logit_phi, log_sigma, noise = z[0], z[1], z[2], z[3:]
    prior = normal(mu, 0.0, 3.0) + beta(logit_phi, 20.0, 1.5) + half_normal(log_sigma, 1.0) + normal(noise)
    phi, sigma = jnp.tanh(logit_phi / 2), jnp.exp(log_sigma)
    log_one_minus_phi_squared = jnp.log(4.0) + log_sigmoid(logit_phi) + log_sigmoid(-logit_phi)
    first = sigma * noise[0] * jnp.exp(-0.5 * log_one_minus_phi_squared)

    def advance(h, e):
        h = phi * h + sigma * e
        return h, h

    _, later = jax.lax.scan(advance, first, noise[1:])
    log_variance = mu + jnp.concatenate([first[None], later])  # not its exponential, which over- or underflows to NaN
    return prior - 0.5 * jnp.sum(jnp.log(2 * jnp.pi) + log_variance + y**2 * jnp.exp(-log_variance))


def volatility_pymc():
    import pymc as pm

    lags = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    with pm.Model() as model:
        mu, half_phi, sigma = pm.Normal("mu", 0, 3), pm.Beta("half_phi", 20, 1.5), pm.HalfNormal("sigma", 1)
        noise, phi = pm.Normal("noise", 0, 1, shape=LENGTH), 2 * half_phi - 1
        scales = pm.math.concatenate([[1 / pm.math.sqrt(1 - phi**2)], np.ones(LENGTH - 1)])
        h = pm.math.dot(np.tri(LENGTH) * phi ** np.maximum(lags, 0), sigma * scales * noise)
        pm.Normal("y", 0, pm.math.exp((mu + h) / 2), observed=volatility_data()[0])
    return model


# Gaussian-process regression (Stan User's Guide): y ~ N(0, alpha² R(length) + sigma² I), R squared exponential, the
# function integrated out. z = (log length, log alpha, log sigma).

JITTER = 1e-5
"""Relative to alpha²; part of the model, and enough for a Cholesky factor in single precision."""


def gp_data():
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0.0, 10.0, 40))
    factor = np.linalg.cholesky(np.exp(-0.5 * np.subtract.outer(x, x) ** 2 / 1.5**2) + 1e-8 * np.eye(40))
    return factor @ rng.normal(size=40) + 0.4 * rng.normal(size=40), np.subtract.outer(x, x) ** 2


def gp_regression(z, y, squared_distances):
    log_length, log_alpha, log_sigma = z
    prior = inverse_gamma(log_length, 5.0, 5.0) + half_normal(log_alpha, 1.0) + half_normal(log_sigma, 1.0)
    correlation = jnp.exp(-0.5 * squared_distances * jnp.exp(-2 * log_length))
    noise = JITTER * jnp.exp(2 * log_alpha) + jnp.exp(2 * log_sigma)
    factor = jnp.linalg.cholesky(jnp.exp(2 * log_alpha) * correlation + noise * jnp.eye(y.size))
    white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return prior + normal(white) - jnp.sum(jnp.log(jnp.diagonal(factor)))


def gp_pymc():
    import pymc as pm

    y, squared_distances = gp_data()
    with pm.Model() as model:
        length = pm.InverseGamma("length", 5, 5)
        alpha, sigma = pm.HalfNormal("alpha", 1), pm.HalfNormal("sigma", 1)
        correlation = pm.math.exp(-0.5 * squared_distances / length**2) + JITTER * np.eye(y.size)
        pm.MvNormal("y", 0, alpha**2 * correlation + sigma**2 * np.eye(y.size), observed=y)
    return model


# Counts along a line: y_i ~ Poisson(exp(mu + f(x_i))), f a Gaussian process with a Matern 3/2 kernel, whitened.
# z = (mu, log length, log alpha, white noise).

NUM_SITES = 12


def counts_data():
    rng = np.random.default_rng(12)
    x = np.linspace(0.0, 10.0, NUM_SITES)
    distances = np.abs(np.subtract.outer(x, x))
    counts = rng.poisson(np.exp(1.5 + 1.1 * np.sin(0.9 * x)))
    return counts.astype(float), distances, gammaln(counts + 1).sum()


def gp_counts(z, counts, distances, log_factorials):
    mu, log_length, log_alpha, white = z[0], z[1], z[2], z[3:]
    prior = normal(mu, 0.0, 2.0) + inverse_gamma(log_length, 5.0, 10.0) + half_normal(log_alpha, 1.0) + normal(white)
    scaled = jnp.sqrt(3.0) * distances * jnp.exp(-log_length)
    kernel = (1 + scaled) * jnp.exp(-scaled) + JITTER * jnp.eye(counts.size)
    log_rate = mu + jnp.exp(log_alpha) * (jnp.linalg.cholesky(kernel) @ white)
    return prior + jnp.sum(counts * log_rate - jnp.exp(log_rate)) - log_factorials


PROCESSES = [
    Model(
        "stochastic_volatility", "Stochastic volatility, length 60", LENGTH + 3, volatility, volatility_data,
        pymc=volatility_pymc,
        from_pymc=partial(columns, mu=None, half_phi=logit, sigma=np.log, noise=None),
    ),
    Model(
        "gp_regression", "Gaussian-process regression, hyperparameters", 3, gp_regression, gp_data,
        pymc=gp_pymc,
        from_pymc=partial(columns, length=np.log, alpha=np.log, sigma=np.log),
    ),
    Model("gp_poisson", "Gaussian process with Poisson counts, whitened", NUM_SITES + 3, gp_counts, counts_data),
]  # fmt: skip

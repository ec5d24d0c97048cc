"""Hierarchical models: eight schools, a varying-intercept regression, Poisson counts in groups, item response."""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from scipy.special import gammaln

from posteriors.base import Model, columns
from posteriors.laws import half_cauchy, half_normal, normal

# Eight schools (Rubin 1981; Gelman et al., Bayesian Data Analysis, section 5.5): mu ~ N(0, 5²), tau ~ HalfCauchy(5),
# theta_j ~ N(mu, tau²). z = (mu, log tau, theta), or (mu, log tau, (theta - mu) / tau).

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools_data():
    return EFFECTS, ERRORS


def schools_centered(z, effects, errors):
    mu, log_tau, theta = z[0], z[1], z[2:]
    prior = normal(mu, 0.0, 5.0) + half_cauchy(log_tau, 5.0) + normal(theta, mu, jnp.exp(log_tau))
    return prior + normal(effects, theta, errors)


def schools_noncentered(z, effects, errors):
    mu, log_tau, eta = z[0], z[1], z[2:]
    prior = normal(mu, 0.0, 5.0) + half_cauchy(log_tau, 5.0) + normal(eta)
    return prior + normal(effects, mu + jnp.exp(log_tau) * eta, errors)


def schools_pymc(centered: bool):
    import pymc as pm

    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8) if centered else mu + tau * pm.Normal("eta", 0, 1, shape=8)
        pm.Normal("effect", theta, ERRORS, observed=EFFECTS)
    return model


# A regression with an intercept for each of 85 groups, as in the radon study (Gelman and Hill 2007, chapter 12):
# y_i ~ N(alpha_g + beta x_i, sigma²), alpha_g ~ N(mu + gamma w_g, tau²), centred.
# z = (mu, gamma, beta, log tau, log sigma, alpha).

NUM_GROUPS = 85


def intercepts_data():
    """About 900 rows in groups of very unequal size (1 to 120), a binary x and a group-level w."""
    rng = np.random.default_rng(85)
    sizes = np.clip(np.round(rng.lognormal(1.7, 1.1, NUM_GROUPS)), 1, 120).astype(int)
    group = np.repeat(np.arange(NUM_GROUPS), sizes)
    level = rng.normal(0.0, 0.4, NUM_GROUPS)
    x = (rng.random(group.size) < 0.2).astype(float)
    alpha = rng.normal(1.4 + 0.7 * level, 0.25)
    return rng.normal(alpha[group] - 0.65 * x, 0.75), x, group, level


def intercepts(z, y, x, group, level):
    mu, gamma, beta, log_tau, log_sigma, alpha = *z[:5], z[5:]
    prior = normal(mu, 0.0, 5.0) + normal(gamma, 0.0, 2.0) + normal(beta, 0.0, 2.0)
    prior += half_normal(log_tau, 1.0) + half_normal(log_sigma, 1.0)
    prior += normal(alpha, mu + gamma * level, jnp.exp(log_tau))
    return prior + normal(y, alpha[group] + beta * x, jnp.exp(log_sigma))


def intercepts_pymc():
    import pymc as pm

    y, x, group, level = intercepts_data()
    with pm.Model() as model:
        mu, gamma, beta = pm.Normal("mu", 0, 5), pm.Normal("gamma", 0, 2), pm.Normal("beta", 0, 2)
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
        alpha = pm.Normal("alpha", mu + gamma * level, tau, shape=NUM_GROUPS)
        pm.Normal("y", alpha[group] + beta * x, sigma, observed=y)
    return model


# Counts in groups of ten rows: y_ji ~ Poisson(exp(mu + tau eta_j + beta x_ji)), not centred.
# z = (mu, beta, log tau, eta).

ROWS_PER_GROUP = 10


def poisson_data(dim: int):
    """Counts and x, each (groups, 10), and the constant sum log y!."""
    rng = np.random.default_rng(dim)
    x = rng.normal(size=(dim - 3, ROWS_PER_GROUP))
    counts = rng.poisson(np.exp(0.5 + 0.7 * rng.normal(size=(dim - 3, 1)) + 0.3 * x))
    return counts.astype(float), x, gammaln(counts + 1).sum()


def poisson(z, counts, x, log_factorials):
    mu, beta, log_tau, eta = z[0], z[1], z[2], z[3:]
    prior = normal(mu, 0.0, 2.0) + normal(beta, 0.0, 1.0) + half_normal(log_tau, 1.0) + normal(eta)
    log_rate = mu + jnp.exp(log_tau) * eta[:, None] + beta * x
    return prior + jnp.sum(counts * log_rate - jnp.exp(log_rate)) - log_factorials


def poisson_pymc(dim: int):
    import pymc as pm

    counts, x, _ = poisson_data(dim)
    with pm.Model() as model:
        mu, beta, tau = pm.Normal("mu", 0, 2), pm.Normal("beta", 0, 1), pm.HalfNormal("tau", 1)
        eta = pm.Normal("eta", 0, 1, shape=dim - 3)
        pm.Poisson("y", pm.math.exp(mu + tau * eta[:, None] + beta * x), observed=counts)
    return model


def poisson_from_pymc(draws):
    return columns(draws, mu=None, beta=None, tau=np.log, eta=None)


# Two-parameter item response: P(person p solves item i) = sigmoid(a_i (ability_p - b_i)). z = (ability, b, log a).

NUM_PERSONS, NUM_ITEMS = 40, 15


def items_data():
    """Answers as signs, (persons, items)."""
    rng = np.random.default_rng(70)
    ability, difficulty = rng.normal(size=(NUM_PERSONS, 1)), rng.normal(0.0, 1.0, NUM_ITEMS)
    logits = np.exp(rng.normal(0.2, 0.4, NUM_ITEMS)) * (ability - difficulty)
    return (np.where(rng.random(logits.shape) < 1 / (1 + np.exp(-logits)), 1.0, -1.0),)


def items(z, signs):
    ability, difficulty, log_slope = jnp.split(z, [NUM_PERSONS, NUM_PERSONS + NUM_ITEMS])
    prior = normal(ability) + normal(difficulty, 0.0, 2.0) + normal(log_slope, 0.0, 0.5)
    return prior + jnp.sum(log_sigmoid(signs * jnp.exp(log_slope) * (ability[:, None] - difficulty)))


def _poisson_model(dim: int) -> Model:
    small = dim == 30
    return Model(
        f"hierarchical_poisson_{dim}",
        f"Poisson counts in {dim - 3} groups, not centred",
        dim,
        poisson,
        partial(poisson_data, dim),
        pymc=partial(poisson_pymc, dim) if small else None,
        from_pymc=poisson_from_pymc if small else None,
    )


HIERARCHICAL = [
    Model(
        "eight_schools_centered", "Eight schools, centred", 10, schools_centered, schools_data,
        pymc=partial(schools_pymc, True),
        from_pymc=partial(columns, mu=None, tau=np.log, theta=None),
    ),
    Model(
        "eight_schools_noncentered", "Eight schools, not centred", 10, schools_noncentered, schools_data,
        pymc=partial(schools_pymc, False),
        from_pymc=partial(columns, mu=None, tau=np.log, eta=None),
    ),
    Model(
        "varying_intercepts", "Regression, 85 intercepts, centred", 90, intercepts, intercepts_data,
        pymc=intercepts_pymc,
        from_pymc=partial(columns, mu=None, gamma=None, beta=None, tau=np.log, sigma=np.log, alpha=None),
    ),
    *map(_poisson_model, (30, 100, 300)),
    Model("item_response", "Item response, 40 persons, 15 items", 70, items, items_data),
]  # fmt: skip

"""Regressions: a regularised horseshoe, logistic ones of three sizes, and a bioassay in plain NumPy."""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax.nn import softplus
from scipy.special import comb, expit

from posteriors.base import Model, columns
from posteriors.laws import half_cauchy, half_normal, inverse_gamma, normal

# The regularised horseshoe (Piironen and Vehtari 2017), 20 slopes of which four are not small, 100 rows:
# slope_k = tau l_k r_k / sqrt(1 + tau² l_k² / c²), l_k ~ HalfCauchy(1), tau ~ HalfCauchy(TAU0), c² ~ InvGamma(2, 8).
# z = (intercept, log sigma, log tau, log c², log l, r).

NUM_SLOPES = 20
TAU0 = 4 / 16 / np.sqrt(100)


def horseshoe_data():
    rng = np.random.default_rng(44)
    features = rng.normal(size=(100, NUM_SLOPES)) + 0.5 * rng.normal(size=(100, 1))
    slopes = np.concatenate([[1.5, -1.0, 0.7, 0.4], np.zeros(NUM_SLOPES - 4)])
    return rng.normal(0.3 + features @ slopes, 1.0), features


def horseshoe_scales(log_tau, log_c2, log_local):
    log_plain = log_tau + log_local
    return jnp.exp(log_plain - 0.5 * softplus(2 * log_plain - log_c2))


def horseshoe(z, y, features):
    intercept, log_sigma, log_tau, log_c2, log_local, raw = *z[:4], z[4 : 4 + NUM_SLOPES], z[4 + NUM_SLOPES :]
    prior = normal(intercept, 0.0, 3.0) + half_normal(log_sigma, 2.0) + half_cauchy(log_tau, TAU0)
    prior += inverse_gamma(log_c2, 2.0, 8.0) + jnp.sum(half_cauchy(log_local, 1.0)) + normal(raw)
    slopes = raw * horseshoe_scales(log_tau, log_c2, log_local)
    return prior + normal(y, intercept + features @ slopes, jnp.exp(log_sigma))


def horseshoe_pymc():
    import pymc as pm

    y, features = horseshoe_data()
    with pm.Model() as model:
        intercept, sigma = pm.Normal("intercept", 0, 3), pm.HalfNormal("sigma", 2)
        tau, c2 = pm.HalfCauchy("tau", TAU0), pm.InverseGamma("c2", 2, 8)
        local, raw = pm.HalfCauchy("local", 1, shape=NUM_SLOPES), pm.Normal("raw", 0, 1, shape=NUM_SLOPES)
        slopes = raw * tau * local / pm.math.sqrt(1 + tau**2 * local**2 / c2)
        pm.Normal("y", intercept + pm.math.dot(features, slopes), sigma, observed=y)
    return model


# Logistic regression: an intercept and 19 slopes, N(0, 2.5²) each. z = the weights.

NUM_WEIGHTS = 20


def logistic_data(num_rows: int):
    rng = np.random.default_rng(num_rows)
    features = np.column_stack([np.ones(num_rows), rng.normal(size=(num_rows, NUM_WEIGHTS - 1))])
    weights = rng.normal(0.0, 0.5, NUM_WEIGHTS)
    return features, (rng.random(num_rows) < expit(features @ weights)).astype(float)


def logistic(z, features, labels):
    logits = features @ z
    return normal(z, 0.0, 2.5) + jnp.sum(labels * logits - softplus(logits))


def logistic_pymc(num_rows: int):
    import pymc as pm

    features, labels = logistic_data(num_rows)
    with pm.Model() as model:
        weights = pm.Normal("weights", 0, 2.5, shape=NUM_WEIGHTS)
        pm.Bernoulli("label", logit_p=pm.math.dot(features, weights), observed=labels)
    return model


# The bioassay (Racine et al. 1986; Gelman et al., Bayesian Data Analysis, section 3.7): deaths_i ~ Binomial(5,
# sigmoid(a + b dose_i)), a ~ N(0, 2²), b ~ N(10, 10²). z = (a, b). relbo sees NumPy's value and gradient alone.


def bioassay_data():
    dose, deaths = np.array([-0.86, -0.30, -0.05, 0.73]), np.array([0.0, 1.0, 3.0, 5.0])
    return dose, deaths, np.log(comb(5, deaths)).sum()


def bioassay(z, dose, deaths, log_choices):
    logits = z[0] + z[1] * dose
    prior = normal(z[0], 0.0, 2.0) + normal(z[1], 10.0, 10.0)
    return prior + jnp.sum(deaths * logits - 5 * softplus(logits)) + log_choices


def bioassay_on_host(z, dose, deaths, log_choices):
    """The same in NumPy, with its gradient."""
    logits = z[0] + z[1] * dose
    scales, white = np.array([2.0, 10.0]), (z - np.array([0.0, 10.0])) / np.array([2.0, 10.0])
    prior = -0.5 * white @ white - np.log(scales).sum() - np.log(2 * np.pi)
    value = prior + np.sum(deaths * logits - 5 * np.logaddexp(0.0, logits)) + log_choices
    residuals = deaths - 5 * expit(logits)
    return float(value), np.array([residuals.sum(), residuals @ dose]) - white / scales


def _logistic_model(num_rows: int) -> Model:
    small = num_rows <= 10_000
    return Model(
        f"logistic_{num_rows}",
        f"Logistic regression, {num_rows:,} rows",
        NUM_WEIGHTS,
        logistic,
        partial(logistic_data, num_rows),
        pymc=partial(logistic_pymc, num_rows) if small else None,
        from_pymc=partial(columns, weights=None) if small else None,
    )


REGRESSIONS = [
    Model(
        "horseshoe", "Regularised horseshoe, 20 slopes", 4 + 2 * NUM_SLOPES, horseshoe, horseshoe_data,
        pymc=horseshoe_pymc,
        from_pymc=partial(
            columns, intercept=None, sigma=np.log, tau=np.log, c2=np.log, local=np.log, raw=None
        ),
    ),
    *map(_logistic_model, (1_000, 10_000, 100_000)),
    Model(
        "bioassay_callable", "Bioassay, two parameters, a NumPy function", 2, bioassay, bioassay_data,
        through="callable", host_density=bioassay_on_host,
    ),
]  # fmt: skip

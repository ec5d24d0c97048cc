"""PyMC models for the tests of the PyMC front door."""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=12)
COUNTS = RNG.poisson(3.0, size=12)
GROUP = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 1, 2])


def regression():
    with pm.Model(coords={"feature": ["a", "b", "c"]}) as model:
        x = pm.Data("x", X, dims=("row", "feature"))
        y = pm.Data("y_data", Y, dims="row")
        beta = pm.Normal("beta", dims="feature")
        sigma = pm.HalfNormal("sigma")
        mu = pm.Deterministic("mu", x @ beta, dims="row")
        pm.Normal("y", mu, sigma, observed=y, shape=mu.shape, dims="row")
    return model


def hierarchical():
    with pm.Model(coords={"group": list("abc")}) as model:
        tau = pm.HalfCauchy("tau", 2.0)
        theta = pm.Normal("theta", pm.Normal("mu", 0, 5), tau, dims="group")
        alpha = pm.Exponential("alpha", 1.0)
        pm.NegativeBinomial("y", mu=pt.exp(theta)[GROUP], alpha=alpha, observed=COUNTS)
    return model


def lkj():
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", pm.Normal("mu", shape=3), chol=chol, observed=X)
    return model


def ordered_mixture():
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", [1.0, 2.0])
        means = pm.Normal("means", 0, 3, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
        pm.NormalMixture("y", weights, means, pm.HalfNormal("sigma"), observed=Y)
    return model


def zero_sum():
    with pm.Model() as model:
        effect = pm.ZeroSumNormal("effect", shape=3)
        pm.Normal("y", effect[GROUP], pm.Gamma("sigma", 2, 2), observed=Y)
    return model


def simplex():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.array([1.0, 2.0, 3.0]))
        pm.Multinomial("y", n=10, p=p, observed=[[3, 3, 4], [1, 2, 7]])
    return model


def potential():
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Potential("ring", -10 * (pt.sqrt((x**2).sum() + 1e-6) - 2) ** 2)
    return model


def missing():
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=np.where(Y > 1, np.nan, Y))
    return model


def censored():
    with pm.Model() as model:
        latent = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=np.clip(Y, -1, 1))
    return model


def truncated():
    with pm.Model() as model:
        latent = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        pm.Truncated("y", latent, lower=-1.0, upper=1.0, observed=np.clip(Y, -0.9, 0.9))
    return model


def logistic():
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=X @ pm.Normal("beta", shape=3), observed=Y > 0)
    return model


def bounds_that_are_parameters():
    with pm.Model() as model:
        low = pm.Normal("low")
        pm.Uniform("x", low, low + pm.HalfNormal("width"), shape=2)
    return model


def wishart():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Wishart("w", nu=4, V=scale * np.eye(2), observed=np.array([[2.0, 0.3], [0.3, 1.0]]))
    return model


MODELS = {
    make.__name__: make
    for make in (
        regression, hierarchical, lkj, ordered_mixture, zero_sum, simplex, potential, missing, censored, truncated,
        logistic, bounds_that_are_parameters, wishart,
    )
}  # fmt: skip


def minibatches(total_size=12, batch_size=4):
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y_data", Y)
        x_rows, y_rows = pm.Minibatch(x, y, batch_size=batch_size)
        beta, sigma = pm.Normal("beta", shape=3), pm.HalfNormal("sigma")
        mu = pm.Deterministic("mu", x_rows @ beta)
        pm.Normal("y", mu, sigma, observed=y_rows, total_size=total_size)
    return model


@pytest.fixture(scope="module", autouse=True)
def quiet_pytensor():
    """PyTensor's interpreter: the tests compare numbers, and C takes seconds to compile."""
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield


def as_point(model, target, z):
    return dict(zip([value.name for value in model.value_vars], target._values(z), strict=True))

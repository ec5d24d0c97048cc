"""Through the PyMC door."""

import numpy as np

import relbo
from unseen.base import Case
from unseen.chains import nutpie, on_grid


def zeros():
    """Zero-inflated counts with a covariate."""
    import pymc as pm

    rng = np.random.default_rng(11)
    x = rng.normal(size=120)
    y = rng.poisson(np.exp(0.8 + 0.5 * x)) * (rng.uniform(size=120) < 0.7)
    with pm.Model() as model:
        chance = pm.Beta("chance", 2, 2)
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2)
        pm.ZeroInflatedPoisson("y", chance, pm.math.exp(intercept + slope * x), observed=y)
    return model


def censored():
    """A regression whose largest outcomes are only known to be large."""
    import pymc as pm

    rng = np.random.default_rng(12)
    x = rng.normal(size=80)
    y = np.minimum(1 + 2 * x + 1.5 * rng.normal(size=80), 3.0)
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 5), pm.Normal("slope", 0, 5)
        noise = pm.HalfNormal("noise", 3)
        pm.Censored("y", pm.Normal.dist(intercept + slope * x, noise), lower=None, upper=3.0, observed=y)
    return model


def curve():
    """A latent Gaussian process under Poisson counts."""
    import pymc as pm

    rng = np.random.default_rng(13)
    x = np.linspace(0, 4, 20)
    y = rng.poisson(np.exp(1 + np.sin(1.5 * x)))
    with pm.Model() as model:
        length = pm.InverseGamma("length", 5, 5)
        height = pm.HalfNormal("height", 1)
        level = pm.Normal("level", 1, 1)
        process = pm.gp.Latent(cov_func=height**2 * pm.gp.cov.Matern52(1, length))
        f = process.prior("f", X=x[:, None], jitter=1e-4)
        pm.Poisson("y", pm.math.exp(level + f), observed=y)
    return model


def smooth():
    """A marginal Gaussian process: only its hyperparameters are sampled."""
    import pymc as pm

    rng = np.random.default_rng(14)
    x = np.linspace(0, 5, 40)
    y = np.sin(2 * x) + 0.3 * rng.normal(size=40)
    with pm.Model() as model:
        length, height = pm.Gamma("length", 2, 2), pm.HalfNormal("height", 2)
        noise = pm.HalfNormal("noise", 1)
        process = pm.gp.Marginal(cov_func=height**2 * pm.gp.cov.ExpQuad(1, length))
        process.marginal_likelihood("y", X=x[:, None], y=y, sigma=noise)
    return model


EDGE = np.random.default_rng(15).uniform(0, 4, size=12)


def edge():
    """A likelihood that ends where the largest observation lies."""
    import pymc as pm

    with pm.Model() as model:
        top = pm.HalfNormal("top", 10)
        pm.Uniform("y", 0, top, observed=EDGE)
    return model


def _edge_density(values):
    top = values["top"]
    return np.where(top > EDGE.max(), -len(EDGE) * np.log(top) - 0.5 * (top / 10) ** 2, -np.inf)


def _named(values):
    """Without the transformed variables that nutpie has beside the model's own."""
    return {name: value for name, value in values.items() if not name.endswith("__")}


def _case(name, model, reference=None) -> Case:
    return Case(name, "PyMC", lambda: relbo.from_pymc(model()), reference or nutpie(model), _named)


CASES = (
    _case("zeros", zeros),
    _case("censored", censored),
    _case("curve", curve),
    _case("smooth", smooth),
    _case("edge", edge, on_grid(_edge_density, top=np.linspace(EDGE.max(), 40, 1_000_001))),
)

"""Three models, each through four doors: what `benchmarks/door_cost.py` and `tests/targets/test_doors.py` compare.

Every door is a function of the data that returns a target; `to_params` turns the values that the models share into what
the door's `unconstrain` takes, and `chart` reads from the door's draws the free numbers in which all densities are
compared: densities on different unconstrained spaces differ by the Jacobians of their bijections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import relbo

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TRIL = np.tril_indices(3)


def same(values):
    return values


@dataclass(frozen=True)
class Door:
    target: Callable[[], Any]
    to_params: Callable[[dict[str, Any]], Any] = same
    chart: Callable[[dict[str, Any]], Any] | None = None
    """None where the model's own is right."""


@dataclass(frozen=True)
class Model:
    doors: dict[str, Door]
    draw: Callable[[np.random.Generator], dict[str, np.ndarray]]
    """A random point, as the values that the models share."""
    chart: Callable[[dict[str, Any]], Any]


# Eight schools, centred


def schools_numpyro():
    import numpyro
    import numpyro.distributions as dist

    def model(errors, effects):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)

    return relbo.from_numpyro(model, ERRORS, EFFECTS)


def schools_pymc():
    import pymc as pm

    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("effect", theta, ERRORS, observed=EFFECTS)
    return relbo.from_pymc(model)


# The text of examples/eight_schools.py, so that the tests compile it once.
SCHOOLS_STAN = """
data {
  int<lower=0> J;
  vector[J] effect;
  vector<lower=0>[J] error;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] theta;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta ~ normal(mu, tau);
  effect ~ normal(theta, error);
}
generated quantities {
  vector[J] log_lik;
  for (j in 1:J) log_lik[j] = normal_lpdf(effect[j] | theta[j], error[j]);
}
"""


def schools_stan():
    return relbo.from_stan(SCHOOLS_STAN, {"J": 8, "effect": EFFECTS, "error": ERRORS})


def schools_density(params, errors, effects):
    mu, tau, theta = params["mu"], params["tau"], params["theta"]
    prior = norm.logpdf(mu, 0, 5) + jnp.log(2 / (jnp.pi * 5)) - jnp.log1p((tau / 5) ** 2)
    return prior + norm.logpdf(theta, mu, tau).sum() + norm.logpdf(effects, theta, errors).sum()


def schools_jax():
    example = {"mu": 0.0, "tau": 1.0, "theta": np.zeros(8)}
    return relbo.from_log_density(schools_density, example, args=(ERRORS, EFFECTS), supports={"tau": "positive"})


SCHOOLS = Model(
    {
        "NumPyro": Door(schools_numpyro),
        "PyMC": Door(schools_pymc),
        "Stan": Door(schools_stan),
        "JAX": Door(schools_jax),
    },
    lambda rng: {"mu": rng.normal(0, 5), "tau": np.exp(rng.normal(1, 1)), "theta": rng.normal(0, 8, 8)},
    lambda values: jnp.concatenate([values["mu"][None], values["tau"][None], values["theta"]]),
)


# Logistic regression, 5,000 x 20

NUM_ROWS, NUM_FEATURES = 5000, 20


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_ROWS, NUM_FEATURES))
    slopes = rng.normal(size=NUM_FEATURES) / np.sqrt(NUM_FEATURES)
    return features, (rng.random(NUM_ROWS) < 1 / (1 + np.exp(-features @ slopes))).astype(int)


def logistic_numpyro():
    import numpyro
    import numpyro.distributions as dist

    def model(features, labels):
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([NUM_FEATURES]).to_event(1))
        with numpyro.plate("row", NUM_ROWS):
            numpyro.sample("label", dist.Bernoulli(logits=features @ beta), obs=labels)

    return relbo.from_numpyro(model, *logistic_data())


def logistic_pymc():
    import pymc as pm

    features, labels = logistic_data()
    with pm.Model() as model:
        design = pm.Data("features", features)
        beta = pm.Normal("beta", 0, 2, shape=NUM_FEATURES)
        pm.Bernoulli("label", logit_p=design @ beta, observed=labels)
    return relbo.from_pymc(model)


LOGISTIC_STAN = """
data { int N; int D; matrix[N, D] features; array[N] int<lower=0, upper=1> label; }
parameters { vector[D] beta; }
model {
  beta ~ normal(0, 2);
  label ~ bernoulli_logit_glm(features, 0, beta);
}
"""


def logistic_stan():
    features, labels = logistic_data()
    data = {"N": NUM_ROWS, "D": NUM_FEATURES, "features": features, "label": labels}
    return relbo.from_stan(LOGISTIC_STAN, data, name="logistic")


def logistic_density(params, features, labels):
    logits = features @ params["beta"]
    return norm.logpdf(params["beta"], 0, 2).sum() + jnp.sum(labels * logits - jax.nn.softplus(logits))


def logistic_jax():
    return relbo.from_log_density(logistic_density, {"beta": np.zeros(NUM_FEATURES)}, args=logistic_data())


LOGISTIC = Model(
    {
        "NumPyro": Door(logistic_numpyro),
        "PyMC": Door(logistic_pymc),
        "Stan": Door(logistic_stan),
        "JAX": Door(logistic_jax),
    },
    lambda rng: {"beta": rng.normal(size=NUM_FEATURES) / 3},
    lambda values: values["beta"],
)


# A simplex, and a Cholesky factor of a covariance whose correlations are LKJ


def covariance_data() -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.normal(size=(30, 3)) @ np.array([[1.0, 0.4, 0.2], [0.0, 0.8, -0.3], [0.0, 0.0, 0.6]]) + 0.3


def covariance_numpyro():
    import numpyro
    import numpyro.distributions as dist

    def model(points):
        share = numpyro.sample("share", dist.Dirichlet(jnp.array([1.5, 2.0, 2.5])))
        sd = numpyro.sample("sd", dist.Exponential(1.0).expand([3]).to_event(1))
        corr = numpyro.sample("corr", dist.LKJCholesky(3, 2.0))
        chol = numpyro.deterministic("chol", sd[:, None] * corr)
        with numpyro.plate("point", points.shape[0]):
            numpyro.sample("x", dist.MultivariateNormal(share, scale_tril=chol), obs=points)

    return relbo.from_numpyro(model, covariance_data())


def covariance_pymc():
    import pymc as pm

    with pm.Model() as model:
        share = pm.Dirichlet("share", np.array([1.5, 2.0, 2.5]))
        chol, _, _ = pm.LKJCholeskyCov("packed", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3))
        pm.MvNormal("x", share, chol=chol, observed=covariance_data())
    return relbo.from_pymc(model)


COVARIANCE_STAN = """
data { int N; array[N] vector[3] x; }
parameters { simplex[3] share; vector<lower=0>[3] sd; cholesky_factor_corr[3] corr; }
transformed parameters { matrix[3, 3] chol = diag_pre_multiply(sd, corr); }
model {
  share ~ dirichlet([1.5, 2.0, 2.5]');
  sd ~ exponential(1);
  corr ~ lkj_corr_cholesky(2);
  x ~ multi_normal_cholesky(share, chol);
}
"""


def covariance_stan():
    return relbo.from_stan(COVARIANCE_STAN, {"N": 30, "x": covariance_data()}, name="covariance")


def covariance_density(params, points):
    """log p(share, chol): that of (sd, corr), and the Jacobian from them to chol's entries, prod_i sd_i^i."""
    share, chol = params["share"], params["chol"]
    sd = jnp.linalg.norm(chol, axis=1)
    corr_diagonal = jnp.diagonal(chol) / sd
    log_share = jnp.sum(jnp.array([0.5, 1.0, 1.5]) * jnp.log(share))
    log_corr = jnp.sum((3 - jnp.arange(1, 4) + 2.0 * (2.0 - 1.0)) * jnp.log(corr_diagonal))  # Stan's lkj_corr_cholesky
    log_jacobian = jnp.sum(jnp.arange(3) * jnp.log(sd)) - jnp.sum(jnp.log(corr_diagonal))
    noise = jax.scipy.linalg.solve_triangular(chol, (points - share).T, lower=True)
    log_likelihood = -0.5 * jnp.sum(noise**2) - points.shape[0] * jnp.sum(jnp.log(jnp.diagonal(chol)))
    return log_share - sd.sum() + log_corr - log_jacobian + log_likelihood


def covariance_jax():
    example = {"share": np.ones(3) / 3, "chol": np.eye(3)}
    supports = {"share": "simplex", "chol": "lower_cholesky"}
    return relbo.from_log_density(covariance_density, example, args=(covariance_data(),), supports=supports)


def draw_covariance(rng: np.random.Generator) -> dict[str, np.ndarray]:
    chol = np.tril(rng.normal(0, 0.5, (3, 3)), -1) + np.diag(np.exp(rng.normal(0, 0.3, 3)))
    sd = np.linalg.norm(chol, axis=1)
    return {"share": rng.dirichlet(np.ones(3) * 3), "sd": sd, "corr": chol / sd[:, None], "chol": chol}


def covariance_chart(values):
    return jnp.concatenate([values["share"][:2], values["chol"][TRIL]])


COVARIANCE = Model(
    {
        "NumPyro": Door(covariance_numpyro),
        "PyMC": Door(
            covariance_pymc,
            lambda values: {"share": values["share"], "packed": values["chol"][TRIL]},
            lambda values: jnp.concatenate([values["share"][:2], values["packed"]]),
        ),
        "Stan": Door(covariance_stan),
        "JAX": Door(covariance_jax, lambda values: {"share": values["share"], "chol": values["chol"]}),
    },
    draw_covariance,
    covariance_chart,
)

MODELS = {"eight schools": SCHOOLS, "logistic 5,000 x 20": LOGISTIC, "simplex and Cholesky": COVARIANCE}


def log_densities_in_chart(target, chart, points: list[Any]) -> np.ndarray:
    """The density over the chart's numbers: log p(z) - log |det d chart / d z|, the determinant by finite differences.

    Stan's map has no derivative in JAX. A central difference with a Richardson step is good to about 1e-10 in float64.
    """
    z = np.stack([np.asarray(target.unconstrain(point)) for point in points])
    free = jax.jit(jax.vmap(lambda at: chart(target.constrain(at))))

    def slopes(step):
        moves = step * np.eye(target.dim)
        ahead, behind = ((z[:, None] + sign * moves).reshape(-1, target.dim) for sign in (1, -1))
        return ((np.asarray(free(ahead)) - np.asarray(free(behind))) / (2 * step)).reshape(*z.shape, -1)

    jacobians = (4 * slopes(5e-4) - slopes(1e-3)) / 3
    return np.asarray(jax.jit(jax.vmap(target.log_density))(z)) - np.linalg.slogdet(jacobians)[1]

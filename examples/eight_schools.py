"""One model, four doors: eight schools in NumPyro, PyMC, Stan and plain JAX, side by side.

    python examples/eight_schools.py [--quick]

The model is the centred one, whose posterior is a funnel: one normal is a poor fit. Needs the extras numpyro, pymc and
stan.
"""

import sys

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import relbo

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def with_numpyro():
    import numpyro
    import numpyro.distributions as dist

    def model(errors, effects=None):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)

    return relbo.from_numpyro(model, ERRORS, effects=EFFECTS)


def with_pymc():
    import pymc as pm

    with pm.Model(coords={"school": np.arange(8)}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("effect", theta, ERRORS, observed=EFFECTS, dims="school")
    return relbo.from_pymc(model)


STAN = """
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


def with_stan():
    return relbo.from_stan(STAN, {"J": 8, "effect": EFFECTS, "error": ERRORS})


def log_density(params, errors, effects):
    mu, tau, theta = params["mu"], params["tau"], params["theta"]
    prior = norm.logpdf(mu, 0, 5) + jnp.log(2 / (jnp.pi * 5)) - jnp.log1p((tau / 5) ** 2)
    return prior + norm.logpdf(theta, mu, tau).sum() + norm.logpdf(effects, theta, errors).sum()


def with_jax():
    example = {"mu": 0.0, "tau": 1.0, "theta": jnp.zeros(8)}
    return relbo.from_log_density(log_density, example, args=(ERRORS, EFFECTS), supports={"tau": "positive"})


DOORS = {"NumPyro": with_numpyro, "PyMC": with_pymc, "Stan": with_stan, "JAX": with_jax}


def main(quick: bool = False) -> dict[str, relbo.Posterior]:
    posteriors = {}
    print(f"{'':8} {'ELBO':>20}  {'mu':>12}  {'tau':>12}  {'theta[0]':>12}")
    for name, door in DOORS.items():
        posterior = relbo.fit(door(), seed=0, max_components=1 if quick else 32, progress_bar=False)
        draws = posterior.sample(4000, seed=1)
        columns = [draws["mu"], draws["tau"], draws["theta"][:, 0]]
        text = "  ".join(f"{column.mean():5.2f} ({column.std():4.2f})" for column in columns)
        print(f"{name:8} {posterior.elbo!s:>20}  {text}", flush=True)
        posteriors[name] = posterior
    # Stan drops nothing, but its cauchy(0, 5) is not halved: its log Z is lower by log 2 than the others'.
    return posteriors


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)

"""Through the Stan door. The references are NUTS on the same models, written again in NumPyro."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo
from unseen.base import Case
from unseen.chains import nuts
from unseen.numpyro_cases import ordinal, ordinal_data

ORDERED = """
data {
  int<lower=1> N;
  int<lower=1> D;
  matrix[N, D] x;
  array[N] int<lower=1, upper=5> y;
}
parameters {
  vector[D] beta;
  ordered[4] cuts;
}
model {
  beta ~ normal(0, 2);
  cuts ~ normal(0, 3);
  y ~ ordered_logistic(x * beta, cuts);
}
"""

SIMPLEX = """
data {
  int<lower=1> N;
  vector[N] y;
  vector[4] centers;
}
parameters {
  simplex[4] shares;
  real<lower=0> noise;
}
model {
  vector[4] log_shares = log(shares);
  shares ~ dirichlet(rep_vector(2, 4));
  noise ~ normal(0, 1);
  for (n in 1:N) {
    vector[4] parts = log_shares;
    for (k in 1:4) parts[k] += normal_lpdf(y[n] | centers[k], noise);
    target += log_sum_exp(parts);
  }
}
generated quantities {
  real entropy = -sum(shares .* log(shares));
}
"""

CORRELATION = """
data {
  int<lower=1> N;
  array[N] vector[3] y;
}
parameters {
  vector[3] center;
  vector<lower=0>[3] scale;
  cholesky_factor_corr[3] L;
}
model {
  center ~ normal(0, 5);
  scale ~ normal(0, 2);
  L ~ lkj_corr_cholesky(2);
  y ~ multi_normal_cholesky(center, diag_pre_multiply(scale, L));
}
generated quantities {
  matrix[3, 3] R = multiply_lower_tri_self_transpose(L);
}
"""

CENTERS = np.array([-2.0, 0.0, 1.0, 4.0])


def blend_data():
    rng = np.random.default_rng(21)
    return rng.normal(CENTERS[rng.choice(4, size=100, p=[0.4, 0.3, 0.2, 0.1])], 0.8)


def blend(y):
    shares = numpyro.sample("shares", dist.Dirichlet(2 * jnp.ones(4)))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    parts = dist.Normal(CENTERS, noise).log_prob(y[:, None]) + jnp.log(shares)
    numpyro.factor("y", jax.nn.logsumexp(parts, axis=1).sum())
    numpyro.deterministic("entropy", -jnp.sum(shares * jnp.log(shares)))


def vectors_data():
    mixing = np.array([[1.0, 0.0, 0.0], [0.9, 0.6, 0.0], [-0.3, 0.5, 0.7]])
    return np.random.default_rng(22).normal(size=(25, 3)) @ mixing.T + [0.0, 1.0, -1.0]


def vectors(y):
    center = numpyro.sample("center", dist.Normal(0, 5).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2).expand([3]).to_event(1))
    factor = numpyro.sample("L", dist.LKJCholesky(3, 2.0))
    numpyro.deterministic("R", factor @ factor.T)
    numpyro.sample("y", dist.MultivariateNormal(center, scale_tril=scale[:, None] * factor), obs=y)


def _ordered():
    x, y = ordinal_data()
    return relbo.from_stan(ORDERED, {"N": len(y), "D": 3, "x": x, "y": y + 1})


def _blend():
    y = blend_data()
    return relbo.from_stan(SIMPLEX, {"N": len(y), "y": y, "centers": CENTERS})


def _vectors():
    return relbo.from_stan(CORRELATION, {"N": 25, "y": vectors_data()})


CASES = (
    Case("stan ordered", "Stan", _ordered, nuts(ordinal, *ordinal_data())),
    Case("stan simplex", "Stan", _blend, nuts(blend, blend_data())),
    Case("stan correlation", "Stan", _vectors, nuts(vectors, vectors_data())),
)

"""Two Stan programs and their data, for the tests of the Stan front door."""

import numpy as np

EIGHT_SCHOOLS = """
data {
  int<lower=0> J;
  vector[J] y;
  vector<lower=0>[J] sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] theta_tilde;
}
transformed parameters {
  vector[J] theta = mu + tau * theta_tilde;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta_tilde ~ std_normal();
  y ~ normal(theta, sigma);
}
generated quantities {
  vector[J] log_lik;
  array[J] real y_rep = normal_rng(theta, sigma);
  for (j in 1:J) log_lik[j] = normal_lpdf(y[j] | theta[j], sigma[j]);
}
"""
SCHOOLS = {
    "J": 8,
    "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    "sigma": [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
}

CONSTRAINED = """
data {
  int<lower=2> K;
  vector<lower=0>[K] alpha;
  array[K] int<lower=0> counts;
  real ceiling;
}
parameters {
  simplex[K] p;
  cholesky_factor_corr[2] L;
  array[2] tuple(real, vector[3]) pairs;
  array[2] complex c;
  array[2, 3] matrix[1, 2] m;
  array[0] real nothing;
}
model {
  if (p[1] > ceiling) reject("p[1] is above the ceiling ", ceiling);
  if (p[2] > 0.99) target += alpha[K + 1];
  p ~ dirichlet(alpha);
  counts ~ multinomial(p);
  L ~ lkj_corr_cholesky(2);
  for (i in 1:2) {
    pairs[i].1 ~ std_normal();
    pairs[i].2 ~ std_normal();
    get_real(c[i]) ~ std_normal();
    get_imag(c[i]) ~ std_normal();
    for (j in 1:3) to_vector(m[i, j]) ~ std_normal();
  }
}
generated quantities {
  real p_first = p[1];
  vector[4] picked = [pairs[2].1, pairs[2].2[3], get_imag(c[1]), m[2, 1][1, 2]]';
  if (p[1] > 0.95) reject("no generated quantities here");
  real after = 1;
}
"""
COUNTS = {"K": 3, "alpha": [2.0, 3.0, 1.5], "counts": [3, 1, 4], "ceiling": 0.9}

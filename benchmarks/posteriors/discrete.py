"""Models with labels summed out: a mixture whose components are exchangeable, and a hidden Markov model."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from posteriors.base import Model
from posteriors.laws import dirichlet, half_normal, log_simplex, normal

# A mixture of three normals with exchangeable priors: every posterior has six copies of one mode.
# y_i ~ sum_k w_k N(m_k, s_k²), m_k ~ N(0, 5²), log s_k ~ N(0, 0.5²), w ~ Dirichlet(2, 2, 2).
# z = (m, log s, log(w_1 / w_3), log(w_2 / w_3)).

ORDERS = list(permutations(range(3)))


def mixture_data():
    rng = np.random.default_rng(6)
    labels = rng.choice(3, 120, p=[0.3, 0.5, 0.2])
    return (rng.normal(np.array([-4.0, 0.0, 4.0])[labels], np.array([1.0, 0.7, 1.2])[labels]),)


def mixture(z, y):
    means, log_scales, log_weights = z[:3], z[3:6], log_simplex(z[6:])
    prior = normal(means, 0.0, 5.0) + normal(log_scales, 0.0, 0.5) + dirichlet(log_weights, 2 * np.ones(3))
    return prior + jnp.sum(logsumexp(log_weights + norm.logpdf(y[:, None], means, jnp.exp(log_scales)), axis=1))


def order_of_means(draws: np.ndarray) -> np.ndarray:
    ranks = np.argsort(draws[:, :3], axis=1)
    return np.argmax((ranks[:, None, :] == np.array(ORDERS)).all(axis=2), axis=1)


def relabelled(draws: np.ndarray, order) -> np.ndarray:
    """The same mixtures with component `order[k]` called k."""
    order = list(order)
    full = np.column_stack([draws[:, 6:], np.zeros(len(draws))])[:, order]
    return np.column_stack([draws[:, :3][:, order], draws[:, 3:6][:, order], full[:, :2] - full[:, 2:]])


# A hidden Markov model with three states: y_t ~ N(mean of the state, sigma²), means in increasing order, rows of the
# transition matrix ~ Dirichlet, first state uniform. z = (first mean, log gaps, log sigma, log ratios of the rows).

STAYING = np.array([[4.0, 1.0, 1.0], [1.0, 4.0, 1.0], [1.0, 1.0, 4.0]])


def hmm_data():
    rng = np.random.default_rng(200)
    moves = np.array([[0.9, 0.07, 0.03], [0.1, 0.8, 0.1], [0.05, 0.1, 0.85]])
    states = [0]
    for _ in range(199):
        states.append(rng.choice(3, p=moves[states[-1]]))
    return (rng.normal(np.array([-1.5, 0.5, 3.0])[states], 0.8),)


def hmm(z, y):
    first, log_gaps, log_sigma, rows = z[0], z[1:3], z[3], log_simplex(z[4:].reshape(3, 2))
    prior = normal(first, 0.0, 3.0) + normal(log_gaps, 0.5, 0.75) + half_normal(log_sigma, 1.0)
    prior += dirichlet(rows[0], STAYING[0]) + dirichlet(rows[1], STAYING[1]) + dirichlet(rows[2], STAYING[2])
    means = first + jnp.concatenate([jnp.zeros(1, z.dtype), jnp.cumsum(jnp.exp(log_gaps))])
    emissions = norm.logpdf(y[:, None], means, jnp.exp(log_sigma))

    def forward(log_alpha, emission):
        return logsumexp(log_alpha[:, None] + rows, axis=0) + emission, None

    log_alpha, _ = jax.lax.scan(forward, emissions[0] - jnp.log(3.0), emissions[1:])
    return prior + logsumexp(log_alpha)


DISCRETE = [
    Model(
        "label_switching", "Mixture of three normals, labels exchangeable", 8, mixture, mixture_data,
        num_modes=6, mode_of=order_of_means,
    ),
    Model("hmm", "Hidden Markov model, three states summed out", 10, hmm, hmm_data),
]  # fmt: skip

"""Bayesian logistic regression with a N(0, 1) prior: the model of the paper's Tables 1 and 2, and what is measured."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import roc_auc_score

import relbo
from experiments.data import Classification

_DRAWS_AT_ONCE = 250


@jax.custom_jvp
def _log_sigmoid(z):
    """JAX's own, but the derivative needs neither exponential nor logarithm again: half of the time of a gradient."""
    return jnp.minimum(z, 0) - jnp.log1p(jnp.exp(-jnp.abs(z)))


@_log_sigmoid.defjvp
def _log_sigmoid_jvp(primals, tangents):
    (z,), (tangent,) = primals, tangents
    return _log_sigmoid(z), tangent * 0.5 * (1 - jnp.tanh(0.5 * z))


def log_joint(weights, signed_rows):
    """log p(y, w) = sum_n log sigmoid(s_n x_n'w) + log N(w; 0, 1); row n of `signed_rows` is s_n x_n, s_n = +-1."""
    log_prior = -0.5 * jnp.sum(weights**2) - 0.5 * weights.shape[0] * jnp.log(2 * jnp.pi)
    return jnp.sum(_log_sigmoid(signed_rows @ weights)) + log_prior


def make_target(data: Classification):
    """The posterior of the weights. One function for all data, so that equal shapes share compiled programs."""
    return relbo.from_log_density(log_joint, np.zeros(data.x_train.shape[1], np.float32), args=(signed(data),))


def elbo(posterior, num_draws: int, seed: int) -> relbo.Estimate:
    """The ELBO, with its standard error, on fresh draws: the same for every system that can tell its density."""
    draws = posterior.sample_unconstrained(num_draws, seed=seed)
    log_p = np.asarray(_log_densities(posterior.target, draws), np.float64)
    values = log_p - np.asarray(posterior.log_prob(draws), np.float64)
    return relbo.Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(num_draws)), num_draws)


def train_score(posterior, data: Classification, num_draws: int, seed: int) -> float:
    """E_q of the train log-likelihood per row, by which the paper chooses the best iterate."""
    draws = np.asarray(posterior.sample_unconstrained(num_draws, seed=seed))
    rows = signed(data)
    parts = np.array_split(draws, _parts(num_draws))
    return float(np.mean([_mean_likelihoods(part, rows)[0] for part in parts])) / len(rows)


def scores(draws: np.ndarray, data: Classification) -> dict[str, float]:
    """What the paper's tables hold, from draws of the weights (any system's).

    `train_ll` is E_q[log p(y | x, w)] per row; `train_lpd` and `test_lpd` are the log predictive densities
    log E_q[p(y | x, w)] per row; the AUROC is that of the predictive probability.
    """
    parts = np.array_split(np.asarray(draws, np.float32), _parts(len(draws)))
    train = [_mean_likelihoods(part, signed(data)) for part in parts]
    test = [_mean_likelihoods(part, data.x_test) for part in parts]
    log_likelihood = np.mean([np.asarray(value[0]) for value in train])
    predictive = np.mean([np.asarray(value[1], np.float64) for value in train], axis=0)
    chance = np.mean([np.asarray(value[1], np.float64) for value in test], axis=0)
    chance_of_label = np.where(data.y_test == 1, chance, 1 - chance)
    return {
        "train_ll": float(log_likelihood) / len(predictive),
        "train_lpd": float(np.log(np.maximum(predictive, 1e-12)).mean()),
        "test_lpd": float(np.log(np.maximum(chance_of_label, 1e-12)).mean()),
        "test_auroc": float(roc_auc_score(data.y_test, chance)),
    }


def signed(data: Classification) -> np.ndarray:
    """Train rows times +1 or -1 by their label."""
    return data.x_train * (2.0 * data.y_train[:, None] - 1).astype(data.x_train.dtype)


def _parts(num_draws: int) -> int:
    return max(1, num_draws // _DRAWS_AT_ONCE)


@eqx.filter_jit
def _log_densities(target, draws):
    return jax.lax.map(target.log_density, draws, batch_size=256)


@jax.jit
def _mean_likelihoods(draws, rows):
    values = _log_sigmoid(draws @ rows.T)
    return jnp.mean(jnp.sum(values, axis=1)), jnp.mean(jnp.exp(values), axis=0)

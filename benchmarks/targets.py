"""Targets with known log Z: the anchors against which relbo is measured.

Each function returns a `Problem`: the target, its log Z, and what else is known of it. Data go through `args`, so that
the density functions are plain and nothing recompiles for other numbers.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import relbo

GERMAN_VARIABLE = "RELBO_GERMAN_CREDIT"
_PRIOR_SCALE = 10.0


class Problem(NamedTuple):
    """A target, its log Z, and further facts by name."""

    target: Any
    log_z: float
    extras: dict[str, Any]


class MissingData(Exception):
    """The data of a target are not here; the message says how to give them."""


def two_modes() -> Problem:
    """The paper's example, 0.4 N(-1, .5^2) + 0.6 N(1, .5^2). One normal: KL 0.233."""
    weights, means, scales = np.array([0.4, 0.6]), np.array([[-1.0], [1.0]]), np.array([0.5, 0.5])
    return _normals(weights, means, scales[:, None, None] ** 2)


def banana() -> Problem:
    """x ~ N(0, 10^2), y given x ~ N(3 - 0.03 x^2, 1). One normal: KL 0.727."""
    return Problem(relbo.from_log_density(banana_log_density, jnp.zeros(2)), 0.0, {})


def banana_log_density(z):
    x, y = z
    return norm.logpdf(x, 0.0, 10.0) + norm.logpdf(y, 3.0 - 0.03 * x**2, 1.0)


def funnel() -> Problem:
    """Neal's: v ~ N(0, 3^2), nine x_i given v ~ N(0, e^v). One normal: KL 1.87."""
    return Problem(relbo.from_log_density(funnel_log_density, jnp.zeros(10)), 0.0, {})


def funnel_log_density(z):
    v, x = z[0], z[1:]
    return norm.logpdf(v, 0.0, 3.0) + jnp.sum(norm.logpdf(x, 0.0, jnp.exp(v / 2)))


def ten_normals(num: int = 10, dim: int = 20) -> Problem:
    """Normals of equal weight, means uniform in [-5, 5]^dim, covariances A A^T / dim + 0.1 I. One mode: KL log(num)."""
    rng = np.random.default_rng(0)
    means = rng.uniform(-5, 5, (num, dim))
    factors = rng.standard_normal((num, dim, dim))
    covariances = factors @ factors.transpose(0, 2, 1) / dim + 0.1 * np.eye(dim)
    return _normals(np.full(num, 1 / num), means, covariances)


def _normals(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> Problem:
    whiten = np.linalg.inv(np.linalg.cholesky(covariances))
    args = (np.log(weights), means, whiten)
    target = relbo.from_log_density(normals_log_density, jnp.zeros(means.shape[1]), args=args)
    return Problem(target, 0.0, {"weights": weights, "means": means, "covariances": covariances})


def normals_log_density(z, log_weights, means, whiten):
    r"""$\log \sum_k w_k N(z; m_k, C_k)$ with `whiten` the inverse Cholesky factors of the covariances."""
    distances = jnp.sum(jnp.einsum("kij,kj->ki", whiten, z - means) ** 2, axis=1)
    log_scales = jnp.sum(jnp.log(jnp.diagonal(whiten, axis1=1, axis2=2)), axis=1)
    log_norm = log_scales - 0.5 * z.size * jnp.log(2 * jnp.pi)
    return logsumexp(log_weights + log_norm - 0.5 * distances)


def german_credit(path: str | Path | None = None) -> Problem:
    """Logistic regression, 25 weights. One full normal: KL 0.026. `path` is an npz with X (1000 x 24) and y in {0, 1}.

    Without a path the environment variable RELBO_GERMAN_CREDIT is read.
    """
    path = path or os.environ.get(GERMAN_VARIABLE)
    if not path:
        raise MissingData(f"give the German credit data with --german PATH or {GERMAN_VARIABLE}")
    if not Path(path).is_file():
        raise MissingData(f"there is no file {path}")
    with np.load(path) as data:
        return _logistic(data["X"], data["y"], -585.099)


def breast_cancer() -> Problem:
    """Logistic regression, 31 weights, log Z known to +- 0.01. One full normal: KL 1.34; best published 0.43."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    return _logistic(data.data, data.target, -77.57)


def _logistic(features: np.ndarray, labels: np.ndarray, log_z: float) -> Problem:
    """Columns divided by their population standard deviation, not centred; an intercept first; labels 0 and 1."""
    features = features.astype(np.float64)
    design = np.column_stack([np.ones(len(features)), features / features.std(axis=0)])
    signs = np.where(labels == 1, 1.0, -1.0)
    target = relbo.from_log_density(logistic_log_density, jnp.zeros(design.shape[1]), args=(design, signs))
    return Problem(target, log_z, {"features": design, "signs": signs})


def logistic_log_density(weights, features, signs):
    """Labels -1 and 1; a N(0, 10^2) prior on every weight."""
    return jnp.sum(log_sigmoid(signs * (features @ weights))) + jnp.sum(norm.logpdf(weights, 0.0, _PRIOR_SCALE))

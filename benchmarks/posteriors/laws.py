"""Log densities of priors in unconstrained coordinates: normalised, and with the Jacobian of the coordinate."""

import jax.numpy as jnp
from jax.nn import log_sigmoid, log_softmax, softplus
from jax.scipy.special import betaln, gammaln
from jax.scipy.stats import norm


def normal(x, mean=0.0, scale=1.0):
    """Summed over whatever is given."""
    return jnp.sum(norm.logpdf(x, mean, scale))


def half_normal(log_x, scale):
    return 0.5 * jnp.log(2 / jnp.pi) + (log_x - jnp.log(scale)) - 0.5 * jnp.exp(2 * (log_x - jnp.log(scale)))


def half_cauchy(log_x, scale):
    shifted = log_x - jnp.log(scale)
    return jnp.log(2 / jnp.pi) + shifted - softplus(2 * shifted)


def inverse_gamma(log_x, shape, scale):
    return shape * jnp.log(scale) - gammaln(shape) - shape * log_x - scale * jnp.exp(-log_x)


def beta(logit_x, a, b):
    return a * log_sigmoid(logit_x) + b * log_sigmoid(-logit_x) - betaln(a, b)


def log_simplex(free):
    """Log probabilities of K classes from K - 1 log ratios to the last class, along the last axis."""
    zero = jnp.zeros((*free.shape[:-1], 1), free.dtype)
    return log_softmax(jnp.concatenate([free, zero], axis=-1), axis=-1)


def dirichlet(log_probs, concentration):
    """In log ratios to the last class, whose Jacobian is the product of the probabilities. Summed over rows."""
    log_norm = gammaln(jnp.sum(concentration)) - jnp.sum(gammaln(concentration))
    return jnp.sum(log_norm + jnp.sum(concentration * log_probs, axis=-1))

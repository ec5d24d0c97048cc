r"""Bayesian matrix factorisation with half of the entries held out: the model of the faces experiment, and its scores.

$R_{ij} \sim N((U^\top V)_{ij}, \sigma^2)$ on the observed entries, $U$ and $V$ standard normal; $\sigma$ is 1, or
learned: $\log \sigma \sim N(\log s, 1)$ with $s$ the standard deviation of the observed entries.
"""

import dataclasses
import functools
import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

import relbo

NOISES = ("sd = 1", "learned sd")
_WIDTH = 0.1  # of log sd, for a unit of its coordinate: a unit normal, where ascents begin, is no wild guess then
_NUM_DRAWS = 64


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix, pixels by images, under a name."""

    name: str
    entries: np.ndarray

    @property
    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.entries).tobytes()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Task:
    """A matrix with its mask (1 where observed), a rank and a noise model: one posterior."""

    matrix: Matrix
    rank: int
    noise: str
    seed: int
    small_start: bool = False
    """Whether ascents begin near zero, as in the authors' code (Glorot's uniform law), and not at a draw of "
    "the prior."""

    @functools.cached_property
    def observed(self) -> np.ndarray:
        chance = np.random.default_rng(self.seed).random(self.matrix.entries.shape)
        return (chance < 0.5).astype(np.float32)

    @functools.cached_property
    def target(self):
        """The posterior; its first starting point is a draw of the prior."""
        rng = np.random.default_rng([self.seed, self.rank])
        num_pixels, num_images = self.matrix.entries.shape
        example = {
            "U": rng.normal(size=(self.rank, num_pixels)).astype(np.float32),
            "V": rng.normal(size=(self.rank, num_images)).astype(np.float32),
        }
        if self.small_start:
            sizes = {name: math.sqrt(6 / sum(value.shape)) for name, value in example.items()}
            example = {k: rng.uniform(-sizes[k], sizes[k], v.shape).astype(np.float32) for k, v in example.items()}
        seen = self.matrix.entries[self.observed == 1]
        args = (self.matrix.entries, self.observed, np.float32(seen.size), np.log(seen.std()))
        if self.noise == NOISES[0]:
            return relbo.from_log_density(_fixed_noise, example, args=args)
        return relbo.from_log_density(_learned_noise, example | {"log_sd": np.float32(0.0)}, args=args)


def _fixed_noise(params, entries, observed, num_seen, log_spread):
    return _log_density(params["U"], params["V"], jnp.zeros(()), entries, observed, num_seen)


def _learned_noise(params, entries, observed, num_seen, log_spread):
    offset = _WIDTH * params["log_sd"]
    prior = -0.5 * offset**2
    return prior + _log_density(params["U"], params["V"], log_spread + offset, entries, observed, num_seen)


def _log_density(u, v, log_sd, entries, observed, num_seen):
    residual = observed * (entries - u.T @ v)
    log_lik = -0.5 * jnp.sum(residual**2) * jnp.exp(-2 * log_sd) - num_seen * (log_sd + 0.5 * math.log(2 * math.pi))
    log_prior = -0.5 * (jnp.sum(u**2) + jnp.sum(v**2) + (u.size + v.size) * math.log(2 * math.pi))
    return log_lik + log_prior


def scores(task: Task, posterior: relbo.Posterior) -> dict[str, float]:
    """Mean squared errors of the posterior mean of U'V, and log predictive densities per entry, on both halves.

    The predictive density is a mixture over draws.
    """
    entries, observed = jnp.asarray(task.matrix.entries), jnp.asarray(task.observed)
    mean = jnp.asarray(_means(task, posterior)[0])
    draws = posterior.sample(_NUM_DRAWS, seed=1)
    log_sd = _log_sd(task, draws)
    log_prob = _log_predictive(entries, jnp.asarray(draws["U"]), jnp.asarray(draws["V"]), log_sd)
    found = {}
    for part, mask in (("train", observed), ("test", 1 - observed)):
        found[f"{part}_mse"] = float(jnp.sum(mask * (entries - mean) ** 2) / jnp.sum(mask))
        found[f"{part}_log_lik"] = float(jnp.sum(mask * log_prob) / jnp.sum(mask))
    return found | {"sd": float(jnp.exp(log_sd).mean())}


def drawn_mse(task: Task, posterior: relbo.Posterior, num_draws: int = 500) -> float:
    """The held-out error as the authors' code measures it, by Edward's `evaluate`.

    A prediction there is the mean of 500 draws of U'V with the noise of the model, which adds 1/500 of their variance.
    """
    draws = posterior.sample(num_draws, seed=2)
    mean = np.asarray(_mean_product(jnp.asarray(draws["U"]), jnp.asarray(draws["V"])))
    held = task.observed == 0
    return float(np.mean((task.matrix.entries - mean)[held] ** 2)) + 1 / num_draws


@jax.jit
def _mean_product(u, v):
    total, _ = jax.lax.scan(
        lambda sum_, uv: (sum_ + uv[0].T @ uv[1], None), jnp.zeros((u.shape[2], v.shape[2])), (u, v)
    )
    return total / u.shape[0]


def train_log_lik(task: Task, posterior: relbo.Posterior) -> float:
    """The log-likelihood per observed entry at the posterior means of U'V and of log sd: no draws, no noise."""
    mean, log_sd = _means(task, posterior)
    error = float(np.sum(task.observed * (task.matrix.entries - mean) ** 2) / task.observed.sum())
    return -0.5 * error * math.exp(-2 * log_sd) - log_sd - 0.5 * math.log(2 * math.pi)


def _means(task: Task, posterior: relbo.Posterior) -> tuple[np.ndarray, float]:
    """Of U'V and of log sd. U and V of one component are (nearly) independent: the mean of U'V is that of products."""
    weights = jnp.asarray(posterior.weights)
    at = posterior.constrain(jnp.asarray(posterior.locations))
    product = jnp.einsum("k,kri,krj->ij", weights, at["U"], at["V"])
    return np.asarray(product), float(weights @ _log_sd(task, at))


def _log_sd(task: Task, values):
    """Of the noise, at each of a stack of parameters."""
    if task.noise == NOISES[0]:
        return jnp.zeros(len(values["U"]))
    return jnp.log(task.matrix.entries[task.observed == 1].std()) + _WIDTH * jnp.asarray(values["log_sd"])


@jax.jit
def _log_predictive(entries, u, v, log_sd):
    """log of the mean over draws of the normal density, entry by entry; draw after draw, to save memory."""

    def add(total, draw):
        u, v, log_sd = draw
        residual = entries - u.T @ v
        log_prob = -0.5 * residual**2 * jnp.exp(-2 * log_sd) - log_sd - 0.5 * math.log(2 * math.pi)
        return jnp.logaddexp(total, log_prob), None

    nothing = jnp.full(entries.shape, -jnp.inf, entries.dtype)
    return jax.lax.scan(add, nothing, (u, v, log_sd))[0] - math.log(u.shape[0])

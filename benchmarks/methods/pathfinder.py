"""BlackJAX's Pathfinder from several starts, its draws importance-resampled over all paths (Zhang et al. 2022).

The ELBO is that of the mixture of the paths' normals, moments are those of the resampled draws: what a user keeps.
Paths run one after the other, because all of them side by side would take gigabytes where data are many.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import psis_weights
from blackjax.vi import pathfinder

from methods.base import NUM_DRAWS, Density, Outcome, Task


def run(task: Task) -> Outcome:
    settings, num_paths = task.settings, task.settings["num_paths"]
    start_key, path_key, resample_key = jax.random.split(jax.random.key(task.seed), 3)
    starts = jax.random.uniform(start_key, (num_paths, task.model.dim), minval=-2.0, maxval=2.0)
    keys = jax.random.split(path_key, num_paths)
    follow = jax.jit(partial(_follow_paths, task.model.log_density, settings, NUM_DRAWS // num_paths))
    states, draws, log_p, log_q = jax.block_until_ready(follow(keys, starts, task.data))
    sound = np.isfinite(np.asarray(log_p - log_q)).all(axis=1)
    if not sound.any():
        raise FloatingPointError("no path gave finite densities")
    states, draws, ratios = jax.tree.map(lambda x: x[sound], (states, draws, log_p - log_q))
    pool = np.asarray(draws).reshape(-1, task.model.dim)
    log_weights, _ = psis_weights(ratios.ravel())
    chosen = jax.random.choice(resample_key, len(pool), (NUM_DRAWS,), p=jnp.exp(log_weights))
    facts = {"num_sound_paths": int(sound.sum())}
    return Outcome(pool[np.asarray(chosen)], None, lambda: Density(pool, mixture_log_prob(states, pool)), facts)


def _follow_paths(log_density, settings: dict, num_draws: int, keys, starts, data: tuple):
    """Path by path: its best normal, draws of it, and log p and log q there."""

    def log_p(z):
        return log_density(z, *data)

    def follow(inputs):
        key, start = inputs
        path_key, draw_key = jax.random.split(key)
        options = {"maxiter": settings["max_iterations"]}
        state, _ = pathfinder.approximate(path_key, log_p, start, settings["num_elbo_draws"], **options)
        draws, log_q = pathfinder.sample(draw_key, state, num_draws)
        return state, draws, jax.vmap(log_p)(draws), log_q

    return jax.lax.map(follow, (keys, starts))


def mixture_log_prob(states: pathfinder.PathfinderState, points: np.ndarray) -> np.ndarray:
    """log of the equal mixture of the paths' normals N(x + S g, S), S = diag(alpha) + beta gamma beta', in float64."""
    fields = (states.position, states.grad_position, states.alpha, states.beta, states.gamma)
    arrays = [np.asarray(part, np.float64) for part in fields]
    by_path = [_normal_log_prob(points.astype(np.float64), *path) for path in zip(*arrays, strict=True)]
    return np.logaddexp.reduce(by_path, axis=0) - np.log(len(by_path))


def _normal_log_prob(points, position, gradient, alpha, beta, gamma) -> np.ndarray:
    covariance = np.diag(alpha) + beta @ gamma @ beta.T
    factor = np.linalg.cholesky((covariance + covariance.T) / 2)
    noise = np.linalg.solve(factor, (points - position - covariance @ gradient).T)
    log_volume = np.log(np.diag(factor)).sum() + 0.5 * len(position) * np.log(2 * np.pi)
    return -0.5 * (noise**2).sum(axis=0) - log_volume

"""Exact numbers in one and two dimensions: the KL of a mixture by quadrature, iterate by iterate of a fit."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import relbo

_HALF_WIDTH = 8.5  # deviations; a normal has 2e-17 outside
_PLACES = {1: 1201, 2: 61}


def normal_mixture(weights: Sequence[float], locations: Sequence, scales: Sequence):
    """A mixture of normals, axis by axis independent, as a target. Those of the same shape share compiled programs."""
    locations = np.asarray(locations, np.float32).reshape(len(weights), -1)
    scales = np.asarray(scales, np.float32).reshape(len(weights), -1)
    args = (np.log(np.asarray(weights, np.float32)), locations, scales)
    return relbo.from_log_density(_log_mixture, jnp.zeros(locations.shape[1]), args=args)


def paper_booster(target, variant: str) -> relbo.Booster:
    """A booster with the paper's settings, to drive by hand."""
    settings = relbo.paper(variant)
    return relbo.make_booster(target, **{k: v for k, v in settings.items() if k not in ("stop", "max_components")})


def iterates(
    booster: relbo.Booster, seed: int, num_iterations: int, stop: Sequence[Any] = ()
) -> Iterator[tuple[relbo.State, relbo.Record]]:
    """The states of the fit that `relbo.fit` makes with this seed, the first component's first, and their records.

    It ends after `num_iterations`, or when a rule of `stop` has a reason; then it is polished if the booster refines.
    """
    key = jax.random.key(seed)
    state, record = booster.init(jax.random.fold_in(key, 0))
    records = [record]
    yield state, record
    for iteration in range(1, num_iterations + 1):
        if any(rule.reason(records) is not None for rule in stop):
            break
        state, record = booster.step(jax.random.fold_in(key, iteration), state)
        records.append(record)
        yield state, record
    if booster.refinement is not None and record.num_components > 1:
        yield booster.polish(jax.random.fold_in(key, 2**31 - 1), state)


def kl(state: relbo.State, log_z: float = 0.0) -> float:
    r"""$\mathrm{KL}(q \| p) = \sum_k w_k E_{s_k}[\log q - \log p]$ for normal components.

    Each expectation is a trapezoid rule on that component's own scale, which for smooth integrands is exact to
    rounding, here of single precision. So it holds for a mixture of wide and narrow components, too.
    """
    noise, weights = _rule(state.mixture.dim)
    log_weights = np.asarray(state.mixture.log_weights)
    differences = np.asarray(_differences(state.mixture, state.target, noise), np.float64)
    active = log_weights > -np.inf
    return float(np.exp(log_weights[active].astype(np.float64)) @ (differences[active] @ weights)) + log_z


def log_density(state: relbo.State, points: np.ndarray) -> np.ndarray:
    """log q at points in the target's own coordinates."""
    return np.asarray(_log_density(state.mixture, state.target, points.astype(np.float32)), np.float64)


def _log_mixture(z, log_weights, locations, scales):
    norm = jnp.sum(jnp.log(scales), axis=1) + 0.5 * z.size * math.log(2 * math.pi)
    return logsumexp(log_weights - 0.5 * jnp.sum(((z - locations) / scales) ** 2, axis=1) - norm)


def _rule(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a standard normal and their weights."""
    axis = np.linspace(-_HALF_WIDTH, _HALF_WIDTH, _PLACES[dim])
    points = np.array(list(itertools.product(axis, repeat=dim)))
    weights = np.exp(-0.5 * np.sum(points**2, axis=1)) * ((axis[1] - axis[0]) / math.sqrt(2 * math.pi)) ** dim
    return points.astype(np.float32), weights


@eqx.filter_jit
def _differences(mixture, target, noise):
    def one(params):
        def difference(one_noise):
            point = mixture.family.transport(params, one_noise)
            return mixture.log_prob(point) - target.log_density(point)

        return jax.vmap(difference)(noise)

    return jax.lax.map(one, mixture.params)


@eqx.filter_jit
def _log_density(mixture, target, points):
    return jax.vmap(lambda z: mixture.log_prob(target.whiten(z)) - target.log_det(target.whiten(z)))(points)

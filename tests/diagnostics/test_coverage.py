"""Error bars are honest: 95 % intervals cover the truth in 95 % of many replications, by a binomial test."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from handmade import full_normals
from helpers import CORRELATED, TWO_MODES, door_of
from relbo.diagnostics import defensive, estimates
from relbo.families.triangular import to_tril
from relbo.objectives.measuring import measure
from relbo.targets import from_log_density

FEW, MANY = 800, 2000
"""Replications, in `make test` and in `make test-all`: error bars that are too short by a sixth are found by the few,
by a tenth by the many."""
FEW_MEASURED, MANY_MEASURED = 250, 500
"""Of what is driven from the host, and dearer: by a quarter, and by a fifth."""
FALSE_ALARM = 1e-3
NUM_OWN, NUM_HEAVY = 1000, 250


class Setting(NamedTuple):
    """A target, two mixtures and a component, and the points of a quadrature rule."""

    target: object
    log_z: float
    old: object
    new: object
    params: object
    grid: np.ndarray


def banana(z, bend):
    x, y = z
    return jax.scipy.stats.norm.logpdf(x, 0.0, 2.0) + jax.scipy.stats.norm.logpdf(y, bend * x**2 - 1, 1.0) + 0.7


def two_modes():
    target = TWO_MODES.target()
    factors = np.array([[[0.6]], [[1.1]], [[1.2]]])
    old = full_normals([[-1.8], [1.3]], factors[:2], [0.4, 0.6], capacity=4)
    new = full_normals([[-1.9], [1.4], [2.0]], factors, [0.35, 0.4, 0.25], capacity=4)
    grid = np.linspace(-15, 15, 20001)[:, None]
    return Setting(target, TWO_MODES.log_z, old, new, new.component(2), grid)


def bent():
    target = from_log_density(banana, jnp.zeros(2), args=(np.float32(0.3),))
    x = np.linspace(-4.8, 4.8, 9)
    means = np.stack([x, 0.3 * x**2 - 1], axis=1)
    factors = np.array([[[0.7, 0.0], [0.6 * 0.7 * at, 1.08]] for at in x])
    weights = np.exp(-(x**2) / 8)
    old = full_normals(means, factors, weights / weights.sum(), capacity=16)
    weights = np.exp(-(x**2) / 7.5)
    new = full_normals(means, 0.97 * factors, weights / weights.sum(), capacity=16)
    axes = np.linspace(-10, 10, 201), np.linspace(-12, 28, 401)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    return Setting(target, 0.7, old, new, new.component(3), grid)


def correlated():
    """One normal, two overlapping components that are both too wide."""
    target = CORRELATED.target()
    mean, factor = CORRELATED.means[0], CORRELATED.factors[0]
    old = full_normals([mean + 0.3, mean - 0.2], [1.25 * factor, 1.1 * factor], [0.5, 0.5], capacity=4)
    new = full_normals([mean + 0.1, mean - 0.1], [1.1 * factor, 1.05 * factor], [0.4, 0.6], capacity=4)
    axes = np.linspace(-10, 12, 301), np.linspace(-12, 9, 301)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    return Setting(target, CORRELATED.log_z, old, new, new.component(0), grid)


SETTINGS = {"two modes": two_modes, "banana": bent, "correlated": correlated}


def few_or(many: int, few: int):
    """Every setting with few replications, and with many where there is time."""
    slow = [pytest.param(name, many, marks=pytest.mark.slow) for name in SETTINGS]
    return pytest.mark.parametrize(("name", "num"), [*((name, few) for name in SETTINGS), *slow])


def truth_of(setting: Setting) -> dict[str, float]:
    """ELBOs and the gap by quadrature."""
    points = jnp.asarray(setting.grid, jnp.float32)
    log_p, log_old, log_new, log_s = (
        np.asarray(jax.jit(jax.vmap(function))(points), np.float64)
        for function in (
            setting.target.log_density,
            setting.old.log_prob,
            setting.new.log_prob,
            partial(setting.old.family.log_prob, setting.params),
        )
    )

    def mean(log_density, values):
        mass = np.exp(log_density)
        return np.sum(mass * values) / np.sum(mass)

    old, new = mean(log_old, log_p - log_old), mean(log_new, log_p - log_new)
    return {
        "elbo": old, "gap": mean(log_s, log_p - log_old) - old, "improvement": new - old, "elbo after": new,
        "log z": setting.log_z,
    }  # fmt: skip


def covers(values: np.ndarray, std_errs: np.ndarray, truth: float) -> bool:
    """Whether the number of 95 % intervals that hold the truth is one that 95 % coverage would give."""
    inside = int(np.sum(np.abs(values - truth) <= stats.norm.isf(0.025) * std_errs))
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(values), 0.95)
    print(f"coverage {inside / len(values):.4f}")  # shown if it fails
    return bool(low <= inside <= high)


@few_or(MANY, FEW)
def test_intervals_of_a_diagnosis(name, num):
    setting = SETTINGS[name]()
    truth = truth_of(setting)
    heavy = eqx.tree_at(lambda m: m.family.noise, setting.old, defensive.Heavy())
    rng = np.random.default_rng(3)
    own = evaluate(setting, heavy, draws(rng, setting.old, num * NUM_OWN, False), num)
    others = evaluate(setting, heavy, draws(rng, setting.old, num * NUM_HEAVY, True), num)
    log_ratio, log_heavy = (np.concatenate(parts, axis=1) for parts in zip(own, others, strict=True))
    found = [estimates.worth(*pair, NUM_OWN) for pair in zip(log_ratio, log_heavy, strict=True)]
    k_hats = [estimates.weigh(ratios[:NUM_OWN]).k_hat for ratios in log_ratio[:50]]
    assert np.median(k_hats) < 0.5, "the bar is for fits whose k-hat is below a half"
    for field, expected in (("elbo", "elbo"), ("log_z", "log z")):
        parts = [getattr(one, field) for one in found]
        values, errors = (np.array([getattr(part, what) for part in parts]) for what in ("value", "std_err"))
        assert covers(values, errors, truth[expected]), field


def draws(rng, mixture, num: int, heavy: bool) -> np.ndarray:
    """Draws of a mixture of normals, or of its heavy companion, in NumPy: a second opinion on how they are made."""
    weights = np.exp(np.asarray(mixture.log_weights, np.float64))
    slots = rng.choice(len(weights), num, p=weights / weights.sum())
    noise = rng.standard_normal((num, mixture.dim))
    if heavy:
        stretched = noise / np.sqrt(rng.chisquare(2, (num, 1)) / 2)
        axis = np.arange(mixture.dim) == rng.integers(0, mixture.dim, (num, 1))
        noise = np.where(axis | (rng.random((num, 1)) < 0.5), stretched, noise)
    factors = np.asarray(jax.vmap(to_tril)(mixture.params.scale))
    return np.asarray(mixture.params.loc)[slots] + np.einsum("nij,nj->ni", factors[slots], noise)


def evaluate(setting: Setting, heavy, points: np.ndarray, num: int):
    """log p - log q and log t - log q, one row a replication."""

    @jax.jit
    def at(points):
        log_q = jax.vmap(setting.old.log_prob)(points)
        log_p, log_t = jax.vmap(setting.target.log_density)(points), jax.vmap(heavy.log_prob)(points)
        return log_p - log_q, log_t - log_q

    parts = [at(jnp.asarray(part, jnp.float32)) for part in np.split(points, 20)]
    return [np.concatenate(column).astype(np.float64).reshape(num, -1) for column in zip(*parts, strict=True)]


@few_or(MANY_MEASURED, FEW_MEASURED)
def test_intervals_of_an_iteration(name, num):
    """ELBO, gap and improvement as a fit measures them, and `diagnose` the gap."""
    setting = SETTINGS[name]()
    truth = truth_of(setting)

    door, keys = door_of(setting.target), jax.random.split(jax.random.key(4), num)
    seen = [measure(key, door, setting.old, setting.new, setting.params, most=512, least=0.0) for key in keys]
    estimates = [(one.gap.estimate, one.improvement, one.elbo.estimate) for one in seen]
    found = np.array([[(each.value, each.std_err) for each in three] for three in estimates]).transpose(1, 2, 0)
    for (values, errors), expected in zip(found, ("gap", "improvement", "elbo after"), strict=True):
        assert covers(values, errors, truth[expected]), expected


def test_an_interval_that_is_too_short_is_found_out():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(MANY)
    assert covers(values, np.ones(MANY), 0.0)
    assert not covers(values, np.full(MANY, 0.9), 0.0)
    assert not covers(values, np.full(MANY, 1.15), 0.0)

"""Shared by the tests: limits from stated false-alarm rates, and targets whose answers are known exactly."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from scipy import stats

import relbo
from relbo.families import (
    Cholesky,
    Diagonal,
    FlowFamily,
    Laplace,
    LocationScale,
    LowRank,
    Normal,
    StudentT,
    TruncatedNormal,
    from_numpyro,
)
from relbo.mixture import Mixture
from relbo.model.door import Door, Seen
from relbo.model.whitening import identity_map
from relbo.oracles import NaturalOracle, Starts
from relbo.targets import from_log_density

FALSE_ALARM = 1e-4
"""The chance that a correct program fails one statistical check, were the seed drawn anew."""


# Statistics


def within(value, std_err, truth, false_alarm=FALSE_ALARM, rounding=0.0) -> bool:
    """Whether every estimate lies within its error of the truth, at this false-alarm rate for all of them together.

    `rounding` is for the arithmetic alone: what the answer may be off without any randomness.
    """
    value, std_err, truth = (np.asarray(x, np.float64) for x in (value, std_err, truth))
    limit = stats.norm.isf(false_alarm / 2 / max(value.size, 1))
    return bool(np.all(np.abs(value - truth) <= limit * std_err + rounding))


def mean_and_error(samples):
    """The mean over the first axis and its measured standard error, in float64."""
    samples = np.asarray(samples, np.float64)
    return samples.mean(0), samples.std(0, ddof=1) / np.sqrt(samples.shape[0])


def mean_is(samples, truth, false_alarm=FALSE_ALARM, rounding=0.0) -> bool:
    """Whether independent replications (first axis) have the mean `truth`."""
    return within(*mean_and_error(samples), truth, false_alarm, rounding)


def unit_spread(values, std_errs, truth, false_alarm=FALSE_ALARM) -> bool:
    """Whether replications of (value - truth) / std_err have mean 0 and mean square 1: the error bars are honest."""
    scores = (np.asarray(values, np.float64) - truth) / np.asarray(std_errs, np.float64)
    num = scores.size
    low, high = stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], num) / num
    return bool(low <= np.mean(scores**2) <= high) and within(scores.mean(), num**-0.5, 0.0, false_alarm)


# Targets with known answers. Functions are at module level, so that equal targets share compiled programs.


class Known(eqx.Module):
    """A mixture of normals times Z, as arrays: what the target is, and everything about it."""

    weights: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    log_z: float

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    @property
    def mean(self):
        return self.weights @ self.means

    @property
    def covariance(self):
        second = self.factors @ self.factors.transpose(0, 2, 1) + self.means[:, :, None] * self.means[:, None, :]
        return np.tensordot(self.weights, second, 1) - np.outer(self.mean, self.mean)

    def log_density(self, z):
        """In NumPy and float64, for any number of points (num, dim)."""
        return sum_of_normals(np.asarray(z, np.float64), self.weights, self.means, self.factors) + self.log_z

    def target(self, shift=0.0, dtype=np.float32):
        args = tuple(np.asarray(x, dtype) for x in (self.weights, self.means, self.factors, self.log_z + shift))
        return from_log_density(log_density, np.zeros(self.dim, dtype), args=args)

    def mixture(self, family, capacity=None, dtype=np.float32) -> Mixture:
        """The target itself, normalised, as a mixture of the family; further slots are empty."""
        num = len(self.weights)
        params = jax.vmap(family.init)(jnp.asarray(self.means, dtype), jnp.asarray(self.factors, dtype))
        mixture = Mixture(family, params, jnp.log(jnp.asarray(self.weights, dtype)))
        return mixture if capacity in (None, num) else mixture.grow(capacity)


def sum_of_normals(z, weights, means, factors):
    parts = [
        np.log(weight) + stats.multivariate_normal(mean, factor @ factor.T).logpdf(z)
        for weight, mean, factor in zip(weights, means, factors, strict=True)
    ]
    return np.logaddexp.reduce(parts, axis=0)


def log_density(z, weights, means, factors, log_z):
    def part(mean, factor):
        noise = jax.scipy.linalg.solve_triangular(factor, z - mean, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
        return -0.5 * noise @ noise - log_det - 0.5 * z.shape[0] * jnp.log(2 * jnp.pi)

    return logsumexp(jax.vmap(part)(means, factors) + jnp.log(weights)) + log_z


TWO_MODES = Known(np.array([0.3, 0.7]), np.array([[-2.0], [1.5]]), np.array([[[0.5]], [[1.0]]]), 1.7)
CORRELATED = Known(np.array([1.0]), np.array([[0.8, -1.5]]), np.array([[[1.2, 0.0], [-0.9, 0.4]]]), -2.3)
TWO_BLOBS = Known(
    np.array([0.35, 0.65]),
    np.array([[-1.6, 0.9], [1.2, -0.4]]),
    np.array([[[0.6, 0.0], [0.3, 0.5]], [[1.0, 0.0], [-0.5, 0.7]]]),
    0.8,
)


@functools.cache
def target_of(name: str):
    """One target object per name and session."""
    return {"two_modes": TWO_MODES, "correlated": CORRELATED, "two_blobs": TWO_BLOBS}[name].target()


@functools.cache
def two_modes_posterior() -> relbo.Posterior:
    """The default fit of the two modes, once per process."""
    return relbo.fit(target_of("two_modes"), seed=0, progress_bar=False)


# The registry of families: every noise law with every scale, the truncated normal, and NumPyro's classes.

NOISES = {"normal": Normal(), "laplace": Laplace(), "student_t": StudentT()}
SCALES = {"mean_field": Diagonal(), "low_rank": LowRank(rank=1), "full": Cholesky()}
FAMILIES = {
    **{f"{s} {n}": LocationScale(NOISES[n], SCALES[s]) for n, s in itertools.product(NOISES, SCALES)},
    "learned df": LocationScale(StudentT(df=5.0, learn_df=True), Diagonal()),
    "truncated normal": TruncatedNormal(bound=3.0),
    "flow": FlowFamily(num_layers=2, num_units=4),
    "numpyro laplace": from_numpyro(dist.Laplace),
    "numpyro student-t": from_numpyro(dist.StudentT, df=4.0),
    "numpyro multivariate": from_numpyro(dist.MultivariateNormal),
    "numpyro gumbel": from_numpyro(dist.Gumbel),
}


# One-dimensional quadrature

GRID = np.linspace(-14.0, 14.0, 5601)
GRID_STEP = GRID[1] - GRID[0]


def integrate(values):
    return float(np.sum(values) * GRID_STEP)


@jax.jit
def _on_grid(mixture):
    return jax.vmap(mixture.log_prob)(jnp.asarray(GRID, mixture.dtype)[:, None])


def log_prob_on_grid(mixture: Mixture):
    return np.asarray(_on_grid(mixture), np.float64)


def kl_to(known: Known, mixture: Mixture) -> float:
    """KL(q || p / Z) in one dimension, by quadrature."""
    log_q = log_prob_on_grid(mixture)
    log_p = known.log_density(GRID[:, None]) - known.log_z
    return integrate(np.exp(log_q) * (log_q - log_p))


def normals(locs, scales, weights, family=None, dtype=np.float32) -> Mixture:
    """A one-dimensional mixture of normals; weight zero is an empty slot."""
    family = family or LocationScale()
    params = jax.vmap(family.init)(jnp.asarray(locs, dtype)[:, None], jnp.asarray(scales, dtype)[:, None])
    return Mixture(family, params, jnp.log(jnp.asarray(weights, dtype)))


def stack_of_one(params):
    return jax.tree.map(lambda leaf: leaf[None], params)


def door_of(target, at_once=None) -> Door:
    """The door to a target in its own coordinates, shifted to its starting point."""
    return Door(identity_map(target, "none"), at_once)


def seen_at(target, points) -> Seen:
    """What a door would say of a target, inside a program."""
    return Seen(*jax.vmap(jax.value_and_grad(target.log_density))(points))


def quick_settings():
    """For `relbo.fit`, where a test needs some posterior and not a good one: no walks, no race, no refinement.

    What such a fit spends its time on is compiling, and the programs left out here are most of that.
    """
    oracle = NaturalOracle(num_steps=20, starts=Starts(num_modes=0))
    return {"oracle": oracle, "precondition": "none", "refine": False, "progress_bar": False}

"""Is the verdict right? Fits whose state is known by how they were made, and the verdicts of `relbo.diagnose` on them.

A case is labelled before its verdict is computed, by the truth: which target, which settings, and where log Z is known
the actual KL.

- *good*: the target is within the reach of the settings, and KL < 0.1 nats with sound tails.
- *tails*: a light-tailed family with few components on a heavier-tailed target, KL <= 0.2. Right is "usable after
  importance resampling" where the weighted log Z is truly right (within 0.05 nats), else "do not trust the tails".
- *mode missing*: separated modes, fewer components, or an oracle that does not look for modes.
- *not converged*: stopped by a budget more than 0.2 nats from the truth.
- *model*: NaN densities where the mass is, a random or an improper density. (What is zero beyond an edge is within
  reach: draws there are rejected.)

Run `python benchmarks/verdicts.py` for all, `--only NAME` for those whose name begins so, `--held-out` for the cases
that were set aside while the rules were made.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jax.scipy.stats import t as student

import relbo

LABELS = ("good", "tails", "mode missing", "not converged", "model")
STATUSES = ("good", "resample", "tails", "not converged", "model")
_FINE = 0.05


@dataclass(frozen=True)
class Case:
    name: str
    label: str
    target: Callable[[], Any]
    settings: dict[str, Any] = field(default_factory=dict)
    log_z: float | None = 0.0
    held_out: bool = False


# Densities. Everything that varies is an argument, so that cases share compiled programs.


def normals(z, weights, means, factors):
    def part(mean, factor):
        noise = jnp.linalg.solve(factor, z - mean)
        return -0.5 * noise @ noise - jnp.sum(jnp.log(jnp.diagonal(factor))) - 0.5 * z.size * jnp.log(2 * jnp.pi)

    parts = jnp.stack([part(mean, factor) for mean, factor in zip(means, factors, strict=True)])
    return logsumexp(parts + jnp.log(weights))


def banana(z, bend):
    return norm.logpdf(z[0], 0.0, 10.0) + norm.logpdf(z[1], 3.0 - bend * z[0] ** 2, 1.0)


def students(z, df):
    return jnp.sum(student.logpdf(z, df))


def multivariate_student(z, df):
    dim = z.size
    log_norm = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * jnp.log(df * jnp.pi)
    return log_norm - 0.5 * (df + dim) * jnp.log1p(jnp.sum(z**2) / df)


def log_gamma(z, shape):
    """The logarithm of gamma variables: an exponential tail on the left, a double exponential one on the right."""
    return jnp.sum(shape * z - jnp.exp(z) - gammaln(shape))


def laplace(z):
    return -jnp.sum(jnp.abs(z)) - z.size * jnp.log(2.0)


def funnel(z, spread):
    return norm.logpdf(z[0], 0.0, spread) + jnp.sum(norm.logpdf(z[1:], 0.0, jnp.exp(z[0] / 2)))


def logistic(z, features, signs):
    return jnp.sum(log_sigmoid(signs * (features @ z))) + jnp.sum(norm.logpdf(z, 0.0, 3.0))


def schools(params, effects, errors):
    mu, log_tau, noise = params["mu"], params["log_tau"], params["noise"]
    theta = mu + jnp.exp(log_tau) * noise
    prior = norm.logpdf(mu, 0.0, 5.0) + norm.logpdf(log_tau, 1.0, 1.0) + jnp.sum(norm.logpdf(noise))
    return prior + jnp.sum(norm.logpdf(effects, theta, errors))


def nan_beyond(z, edge):
    """A model that takes the root of a negative number."""
    return jnp.sum(norm.logpdf(z)) + 0.0 * jnp.sqrt(edge - z[0])


def zero_beyond(z, edge):
    """A support that nobody declared."""
    return jnp.where(jnp.all(z > edge), jnp.sum(norm.logpdf(z)), -jnp.inf)


def _log_mass(dim, edge):
    """What is left of a normal law that is zero below the edge in every coordinate."""
    return dim * float(norm.logsf(edge))


def power(z, exponent):
    """Improper for an exponent of at most one half."""
    return -exponent * jnp.sum(jnp.log1p(z**2))


class Noisy:
    """A log likelihood estimated by simulation: another number at every call, once it is no longer tried."""

    def __init__(self, noise: float):
        self.random, self.noise, self.num_calls = np.random.default_rng(0), noise, 0

    def __call__(self, z):
        self.num_calls += 1
        noise = self.noise if self.num_calls > 200 else 0.0
        value = -0.5 * float(np.sum(z**2)) + noise * float(np.sum(z**2)) * self.random.standard_normal()
        return value, -np.asarray(z)


# Targets


def blobs(weights, means, scales):
    weights, means = np.asarray(weights, float), np.asarray(means, float)
    factors = np.asarray(scales, float)[:, None, None] * np.eye(means.shape[1])
    return relbo.from_log_density(normals, jnp.zeros(means.shape[1]), args=(weights, means, factors))


def correlated(dim: int, correlation: float):
    covariance = np.full((dim, dim), correlation) + (1 - correlation) * np.eye(dim)
    args = (np.ones(1), np.full((1, dim), 0.5), np.linalg.cholesky(covariance)[None])
    return relbo.from_log_density(normals, jnp.zeros(dim), args=args)


def density(function, dim: int, *args: float, start: float = 0.0):
    return relbo.from_log_density(function, jnp.full(dim, start), args=tuple(map(np.float32, args)))


def regression(num: int, dim: int, seed: int):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((num, dim))
    signs = np.where(rng.random(num) < 1 / (1 + np.exp(-features @ rng.standard_normal(dim))), 1.0, -1.0)
    return relbo.from_log_density(logistic, jnp.zeros(dim), args=(features, signs))


def eight_schools():
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    example = {"mu": jnp.zeros(()), "log_tau": jnp.zeros(()), "noise": jnp.zeros(8)}
    return relbo.from_log_density(schools, example, args=(effects, errors))


def two(weight: float, distance: float, dim: int = 1):
    means = np.zeros((2, dim))
    means[1, 0] = distance
    return blobs([1 - weight, weight], means, [0.5, 1.0])


def three(distance: float):
    means = np.zeros((3, 4))
    means[1, 0] = means[2, 1] = distance
    return blobs([0.5, 0.3, 0.2], means, [1.0, 0.7, 1.3])


def _without_search():
    starts = relbo.Starts(num_modes=0, num_initial=0)
    return {"oracle": relbo.NaturalOracle(starts=starts)}


def _cases() -> list[Case]:
    one = {"max_components": 1}
    few = {"max_components": 2}
    tiled = few | {"precondition": "affine"}  # in learned coordinates a funnel would not be far
    return [
        Case("good: one normal", "good", lambda: two(0.5, 0.0), {}),
        Case("good: two modes", "good", lambda: two(0.6, 3.0)),
        Case("good: two far modes", "good", lambda: two(0.3, 12.0)),
        Case("good: a small far mode", "good", lambda: two(0.05, 8.0)),
        Case("good: banana", "good", lambda: density(banana, 2, 0.03)),
        Case("good: student-t 5, normals", "good", lambda: density(students, 2, 5.0)),
        Case("good: student-t 4, own family", "good", lambda: density(multivariate_student, 3, 4.0),
             {"family": "student_t"}),
        Case("good: correlated, one component", "good", lambda: correlated(5, 0.9), one),
        Case("good: three modes in 4-d", "good", lambda: three(6.0)),
        Case("good: logistic regression", "good", lambda: regression(200, 8, 0), log_z=None),
        Case("good: eight schools, non-centred", "good", eight_schools, log_z=None),
        Case("good: mild funnel", "good", lambda: density(funnel, 2, 1.0)),
        Case("tails: student-t 3", "tails", lambda: density(students, 2, 3.0), one),
        Case("tails: student-t 2", "tails", lambda: density(students, 2, 2.0), one),
        Case("tails: student-t 3, elliptical", "tails", lambda: density(multivariate_student, 3, 3.0), one),
        Case("tails: Cauchy", "tails", lambda: density(students, 1, 1.0), one),
        Case("tails: log-gamma 0.5", "tails", lambda: density(log_gamma, 1, 0.5), one),
        Case("tails: Laplace", "tails", lambda: density(laplace, 2), one),
        Case("tails: mild funnel", "tails", lambda: density(funnel, 2, 1.0), few),
        Case("mode: two far modes", "mode missing", lambda: two(0.3, 12.0), one),
        Case("mode: two modes, no search", "mode missing", lambda: two(0.5, 25.0), _without_search()),
        Case("mode: a small far mode", "mode missing", lambda: two(0.1, 10.0), one),
        Case("mode: three modes in 4-d, one found", "mode missing", lambda: three(8.0), one),
        Case("mode: three modes in 4-d, two found", "mode missing", lambda: three(8.0), few),
        Case("not: banana, one", "not converged", lambda: density(banana, 2, 0.03), one),
        Case("not: banana, two", "not converged", lambda: density(banana, 2, 0.03), few),
        Case("not: strong banana, four", "not converged", lambda: density(banana, 2, 0.1), {"max_components": 4}),
        Case("not: two near modes, one", "not converged", lambda: two(0.6, 3.0), one),
        Case("not: funnel 10-d, two", "not converged", lambda: density(funnel, 10, 3.0), tiled),
        Case("not: mean field, one", "not converged", lambda: correlated(5, 0.9),
             one | {"family": "mean_field_normal", "precondition": "none"}),
        Case("model: NaN on the right", "model", lambda: density(nan_beyond, 1, 1.0, start=-1.0), log_z=None),
        Case("model: NaN in a corner", "model", lambda: density(nan_beyond, 3, 1.5, start=-1.0), log_z=None),
        Case("cut: half of the line", "good", lambda: density(zero_beyond, 1, 0.0, start=0.5), log_z=_log_mass(1, 0.0)),
        Case("cut: a quadrant", "good", lambda: density(zero_beyond, 2, -0.5, start=0.5), log_z=_log_mass(2, -0.5)),
        Case("model: improper", "model", lambda: density(power, 1, 0.4), log_z=None),
        Case("model: random density", "model", lambda: relbo.from_callable(Noisy(0.3), 2), one, log_z=None),
    ]  # fmt: skip


def _held_out() -> list[Case]:
    one, tiled = {"max_components": 1}, {"max_components": 2, "precondition": "affine"}
    cases = [
        Case("good: student-t 30, one", "good", lambda: density(students, 1, 30.0), one),
        Case("good: three near modes", "good", lambda: three(4.0)),
        Case("good: regression, 15-d", "good", lambda: regression(300, 15, 1), log_z=None),
        Case("good: log-gamma 3", "good", lambda: density(log_gamma, 1, 3.0)),
        Case("tails: student-t 4 in 4-d", "tails", lambda: density(students, 4, 4.0), one),
        Case("tails: log-gamma 1", "tails", lambda: density(log_gamma, 2, 1.0), one),
        Case("mode: two modes in 3-d", "mode missing", lambda: two(0.4, 15.0, dim=3), one),
        Case("mode: a quarter, no search", "mode missing", lambda: two(0.25, 30.0), _without_search()),
        Case("not: bent banana, one", "not converged", lambda: density(banana, 2, 0.06), one),
        Case("not: funnel 5-d, two", "not converged", lambda: density(funnel, 5, 3.0), tiled),
        Case("model: NaN on one side", "model", lambda: density(nan_beyond, 2, 1.2, start=-1.0), log_z=None),
        Case("cut: box", "good", lambda: density(zero_beyond, 3, -1.0, start=0.5), log_z=_log_mass(3, -1.0)),
        Case("model: random, little", "model", lambda: relbo.from_callable(Noisy(0.05), 1), one, log_z=None),
    ]
    return [Case(c.name, c.label, c.target, c.settings, c.log_z, True) for c in cases]


def expected(case: Case, diagnosis: relbo.Diagnosis) -> str:
    """The right status, by the truth."""
    if case.label == "tails":
        fine = case.log_z is None or abs(diagnosis.log_z.value - case.log_z) < _FINE
        return "resample" if fine else "tails"
    return {"mode missing": "not converged"}.get(case.label, case.label)


@dataclass(frozen=True)
class Outcome:
    case: Case
    status: str
    right: bool
    line: str


def run(case: Case, seed: int) -> Outcome:
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = relbo.fit(case.target(), seed=seed, progress_bar=False, **case.settings)
    found = relbo.diagnose(posterior, seed=seed + 1)
    right = found.status == expected(case, found)
    true_kl = "" if case.log_z is None else f"{case.log_z - found.elbo.value:.3f}"
    weights = found.defensive
    line = (
        f"{'ok   ' if right else 'WRONG'} {case.name:36s} {found.status:14s} KL {true_kl:>6s} est {found.kl}, "
        f"gap {found.gap}, k {found.k_hat:.2f} / {weights.k_hat:.2f} stake {weights.stake:.3f} ess {weights.ess:.0f} "
        f"missed {found.missed_mass.value:.3f} decay {found.decay:.1f} nan {found.num_nan} "
        f"zero {found.num_zero} ({posterior.num_components} components, {time.perf_counter() - begun:.0f} s)"
    )
    return Outcome(case, found.status, right, line)


def confusion(outcomes: list[Outcome]) -> str:
    """Rows: labels; columns: statuses."""
    counts = Counter((outcome.case.label, outcome.status) for outcome in outcomes)
    lines = ["| made to be | " + " | ".join(STATUSES) + " |", "|---" * (len(STATUSES) + 1) + "|"]
    for label in LABELS:
        lines.append(f"| {label} | " + " | ".join(str(counts[label, status] or "") for status in STATUSES) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--held-out", action="store_true", help="the cases set aside")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cases = _held_out() if arguments.held_out else _cases()
    outcomes = []
    for case in cases:
        if case.name.startswith(arguments.only):
            outcomes.append(run(case, arguments.seed))
            print(outcomes[-1].line, flush=True)
    print(f"\n{confusion(outcomes)}\n\n{sum(outcome.right for outcome in outcomes)} of {len(outcomes)} are right.")
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

r"""Theorem 1 and the duality gap, where everything is known: mixtures over the hull of finitely many normals.

The theorem: with an oracle of accuracy $\delta$ and any of the paper's step rules the primal error is at most
$h_t \le 2 (C_f/\delta + h_0) / (\delta t + 2)$. The proof needs less than $C_f$: only the curvature $C_t$ met between
$q_t$ and $s_t$. From the steps really made follows a sharper bound, $b_{t+1} = (1 - \delta\gamma) b_t +
\gamma^2 C_t / 2$ from $b_0 = h_0$, with the fixed step's $\gamma$, or the best $\gamma$ for rules that search.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import relbo
from experiments.hull import FAMILY, Hull, Problem

FLOOR = 1e-6
"""Nats. Smaller primal errors are rounding, in single precision, and play no part in fitted slopes."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A step rule and the accuracy of its oracle; whether the theorem speaks of it."""

    label: str
    rule: relbo.steps.AbstractStep
    delta: float = 1.0
    covered: bool = True


def variants(num_draws: int) -> dict[str, Variant]:
    return {
        "fixed": Variant("fixed step", relbo.Fixed()),
        "fixed_half": Variant("fixed step, worst oracle of accuracy 1/2", relbo.Fixed(delta=0.5), delta=0.5),
        "line_search": Variant("line search", relbo.LineSearch(num_draws=num_draws)),
        "fully_corrective": Variant("fully corrective", relbo.FullyCorrective(num_draws=num_draws)),
        "adaptive": Variant("adaptive", relbo.Adaptive(num_draws=num_draws), covered=False),
        "away": Variant("away", relbo.Away(num_draws=num_draws), covered=False),
        "pairwise": Variant("pairwise", relbo.Pairwise(num_draws=num_draws), covered=False),
    }


@dataclasses.dataclass(frozen=True)
class Setting:
    """A target and a hull. The first mixture is the hull's last component, a corner."""

    description: str
    log_density: Callable
    hull: Hull

    def problem(self) -> Problem:
        log_p = np.asarray(jax.vmap(self.log_density)(self.hull.points.astype(np.float32)), np.float64)
        log_z = math.log(self.hull.volume * np.sum(np.exp(log_p)))
        return Problem(self.hull, log_p - log_z)


def skewed(z):
    """The logarithm of an exponential variable."""
    return jnp.sum(z - jnp.exp(z))


def curved(z):
    """A short banana."""
    return -0.5 * (z[0] / 1.2) ** 2 - 0.5 * (z[1] - 0.4 * (z[0] ** 2 - 1.44)) ** 2


def settings() -> dict[str, Setting]:
    return {
        "1-d": Setting(
            "log p = z - exp(z); normals at -1, -0.9, ..., 1 with sd 0.9 or 1",
            skewed,
            Hull.of(np.linspace(-1, 1, 21), np.array([0.9, 1.0]), 1, 401),
        ),
        "2-d": Setting(
            "x ~ N(0, 1.2^2), y given x ~ N(0.4 (x^2 - 1.44), 1); normals on 7 x 7 places in [-1, 1]^2 "
            "with sd 0.95 or 1",
            curved,
            Hull.of(np.linspace(-1, 1, 7), np.array([0.95, 1.0]), 2, 61),
        ),
        "1-d, wide": Setting(
            "log p = z - exp(z); normals at -1, -0.9, ..., 1 with sd 1.2 or 0.6: variances of ratio 4, C_f infinite",
            skewed,
            Hull.of(np.linspace(-1, 1, 21), np.array([1.2, 0.6]), 1, 401),
        ),
    }


def facts(setting: Setting) -> dict:
    """What is known before any step: the best mixture's KL with its certificate, and the curvature constant."""
    weights, gap = setting.problem().best()
    return {
        "target": setting.description,
        "components": len(setting.hull.locations),
        "best_kl": setting.problem().value(weights),
        "best_gap": gap,
        "best_components": int(np.sum(weights > 1e-3)),
        "curvature": setting.hull.curvature(),
    }


def curve(setting: Setting, variant: Variant, num_iterations: int, best_kl: float) -> dict:
    """Boost with relbo's own loop and step rule, and the hull's exact oracle; then look at every iterate exactly."""
    problem, hull = setting.problem(), setting.hull
    target = relbo.from_log_density(setting.log_density, jnp.zeros(hull.dim))
    booster = relbo.make_booster(
        target, family=FAMILY, objective=relbo.RELBO(0.0), oracle=hull.oracle(variant.delta), step=variant.rule,
        refine=False, precondition="none", min_improvement=-math.inf,
    )  # fmt: skip
    state, _ = booster.init(jax.random.key(0))
    corner = state.mixture.place(0, hull.member(len(hull.locations) - 1), 0.0)
    state = eqx.tree_at(lambda s: s.mixture, state, corner)
    weights, recorded = [hull.weights(state.mixture)], []
    for iteration in range(1, num_iterations + 1):
        state, record = booster.step(jax.random.fold_in(jax.random.key(0), iteration), state)
        weights.append(hull.weights(state.mixture))
        recorded.append(record.gap)
    errors = [problem.value(one) - best_kl for one in weights]
    curvatures = _curvatures(problem, variant, weights)
    return {
        "error": errors,
        "gap": [problem.gap(one) for one in weights],
        "recorded_gap": [gap.value for gap in recorded],
        "recorded_std_err": [gap.std_err for gap in recorded],
        "curvature": curvatures,
        "own_bound": _own_bound(variant, errors[0], curvatures) if variant.covered else None,
        "components": [int(np.sum(one > 0)) for one in weights],
    }


def theorem_bound(variant: Variant, first_error: float, curvature: float, num_iterations: int) -> np.ndarray:
    steps = np.arange(num_iterations + 1)
    return 2 * (curvature / variant.delta + first_error) / (variant.delta * steps + 2)


def slope(errors: list[float], first: int) -> relbo.Estimate:
    """The exponent of a power law fitted to the errors from iteration `first` on, as far as they are above rounding."""
    steps = np.arange(len(errors))
    used = (steps >= first) & (np.asarray(errors) > FLOOR)
    if used.sum() < 3:
        return relbo.Estimate(math.nan, math.nan, 0)
    x, y = np.log(steps[used]), np.log(np.asarray(errors)[used])
    x = x - x.mean()
    exponent = x @ y / (x @ x)
    rest = y - y.mean() - exponent * x
    return relbo.Estimate(float(exponent), float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x))), len(x))


def _curvatures(problem: Problem, variant: Variant, weights: list[np.ndarray]) -> list[float]:
    """C_t of every step, towards the component that the oracle chose."""
    found = []
    for iteration, (old, new) in enumerate(itertools.pairwise(weights), start=1):
        if isinstance(variant.rule, relbo.Fixed):
            gamma = _fixed_step(variant, iteration)
            towards = np.maximum((new - (1 - gamma) * old) / gamma, 0.0)
        else:
            towards = np.eye(len(old))[np.argmin(problem.gradient(old))]
        found.append(problem.path_curvature(old, towards / towards.sum()))
    return found


def _own_bound(variant: Variant, first_error: float, curvatures: list[float]) -> list[float]:
    bounds, delta = [first_error], variant.delta
    for iteration, curvature in enumerate(curvatures, start=1):
        gamma = min(1.0, delta * bounds[-1] / curvature)
        if isinstance(variant.rule, relbo.Fixed):
            gamma = _fixed_step(variant, iteration)
        bounds.append((1 - delta * gamma) * bounds[-1] + 0.5 * gamma**2 * curvature)
    return bounds


def _fixed_step(variant: Variant, iteration: int) -> float:
    return 2 / (variant.delta * iteration + 2)

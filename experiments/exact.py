"""Whole fits in one and two dimensions, where the KL of every iterate is known by quadrature."""

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import relbo
from experiments import edward
from experiments.correcting import ByQuadrature, ShortSearch, corrected

PAPER = ("fixed", "line_search", "fully_corrective")
"""The paper's three variants, as `relbo.paper` has them."""
QUADRATURE, KEPT, FINITE = "by quadrature", "none dropped", "finite step"
SCRIPT, GROWING = "the authors' script", "lambda = t"
"""What may be changed of a variant: weights without draws; components without a weight are kept; the objective; draws,
steps and line search of the authors' two-mode script; and lambda as the README of their code has it for this figure."""
_HALF_WIDTH = 8.5  # deviations; a normal has 2e-17 outside
_PLACES = {1: 1201, 2: 61}


def normal_mixture(weights: Sequence[float], locations: Sequence, scales: Sequence):
    """A mixture of normals, axis by axis independent, as a target. Those of the same shape share compiled programs."""
    locations = np.asarray(locations, np.float32).reshape(len(weights), -1)
    scales = np.asarray(scales, np.float32).reshape(len(weights), -1)
    args = (np.log(np.asarray(weights, np.float32)), locations, scales)
    return relbo.from_log_density(_log_mixture, jnp.zeros(locations.shape[1]), args=args)


def fitted(
    spec: tuple, system: str, seed: int, num_iterations: int, axis: np.ndarray | None = None, change: str = ""
) -> dict[str, Any]:
    """One whole fit of a mixture of normals: the exact KL of every iterate, and what the fit itself recorded of it.

    `system` is a variant of the paper, which takes `num_iterations` after the first component, or "default", which
    stops by itself. With an `axis` the first and the last density there are handed over, too, and in one dimension of a
    variant the least KL that other weights of the last iterate's components have. `change` is what differs.
    """
    target, iterates = normal_mixture(*spec), []
    settings = {"max_components": num_iterations + 1}
    if system != "default":
        settings |= changed(spec, system, change) | {"stop": relbo.MaxIterations(num_iterations)} | settings
    begun, cpu_begun = time.perf_counter(), time.process_time()
    relbo.fit(target, seed=seed, callback=iterates.append, progress_bar=False, **settings)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    records = [one.trace[-1] for one in iterates]
    found = {
        "system": system,
        "change": change,
        "seed": seed,
        "kl": [kl(one.mixture, one.whitened) for one in iterates],
        "kind": [record.kind for record in records],
        "own_kl": [-record.elbo.value for record in records],
        "own_std_err": [record.elbo.std_err for record in records],
        "gap": [None if record.gap is None else record.gap.value for record in records],
        "gap_std_err": [None if record.gap is None else record.gap.std_err for record in records],
        "components": [record.num_components for record in records],
        "seconds": [record.seconds for record in records],
        "evaluations": [record.evaluations for record in records],
        "total_seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }
    if axis is not None:
        points = axis[:, None]
        found |= {
            "first_density": np.exp(iterates[0].log_prob(points)),
            "density": np.exp(iterates[-1].log_prob(points)),
        }
        if system != "default":
            found["corrected_kl"], found["corrected_gap"] = corrected(spec, iterates[-1].mixture)
    return found


def changed(spec: tuple, system: str, change: str) -> dict[str, Any]:
    """A variant of the paper with one thing changed."""
    settings = relbo.paper(system)
    if change == QUADRATURE and system != "fixed":
        return settings | {"step": ByQuadrature(_hashable(spec), system == "fully_corrective")}
    if change == KEPT:
        return settings | {"step": dataclasses.replace(settings["step"], drop=0.0)}
    if change == SCRIPT:
        oracle = relbo.GradientOracle(
            edward.ADAM, 1000, num_draws=500, num_restarts=1, starts=settings["oracle"].starts
        )
        step = ShortSearch() if system == "line_search" else settings["step"]
        return settings | {"oracle": oracle, "step": step}
    objectives = {FINITE: "finite_step", GROWING: relbo.RELBO(growing)}
    return settings | ({"objective": objectives[change]} if change in objectives else {})


def growing(iteration):
    """lambda = t."""
    return 1.0 * iteration


def _hashable(spec) -> tuple:
    return tuple(_hashable(one) for one in spec) if isinstance(spec, list | tuple) else spec


def paced(spec: tuple, variants: Sequence[str], num_iterations: int, num_rounds: int) -> dict[str, Any]:
    """Seconds of one iteration from the last mixture of the fixed step, by each variant in turn, again and again."""
    target, iterates = normal_mixture(*spec), []
    settings = relbo.paper("fixed") | {"max_components": num_iterations + 1}
    relbo.fit(target, seed=0, callback=iterates.append, progress_bar=False, **settings)
    state = iterates[-1].state
    boosters = {
        name: relbo.make_booster(
            target, **{k: v for k, v in relbo.paper(name).items() if k not in ("stop", "max_components")}
        )
        for name in variants
    }
    rounds = [
        {name: booster.step(jax.random.key(index), state)[1].seconds for name, booster in boosters.items()}
        for index in range(num_rounds + 1)
    ]
    seconds = {variant: [one[variant] for one in rounds[1:]] for variant in variants}  # the first round may compile
    return {"components": iterates[-1].num_components, **seconds}


def kl(mixture, whitened, log_z: float = 0.0) -> float:
    r"""$\mathrm{KL}(q \| p) = \sum_k w_k E_{s_k}[\log q - \log p]$ for normal components.

    Each expectation is a trapezoid rule on that component's own scale, which for smooth integrands is exact to
    rounding, here of single precision. So it holds for a mixture of wide and narrow components, too.
    """
    noise, weights = _rule(mixture.dim)
    log_weights = np.asarray(mixture.log_weights)
    differences = np.asarray(_differences(mixture, whitened, noise), np.float64)
    active = log_weights > -np.inf
    return float(np.exp(log_weights[active].astype(np.float64)) @ (differences[active] @ weights)) + log_z


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

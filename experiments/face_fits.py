"""The fits behind Table 3 of the paper: completion of face images by matrix factorisation."""

import dataclasses
import functools
import gc
import resource
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import relbo
from experiments.coordinate_ascent import coordinate_ascent
from experiments.edward import ADAM
from experiments.factorization import Task, drawn_mse, scores, train_log_lik
from experiments.runs import timed_fit

BBVI, BOOSTED, RUNAWAY = "BBVI", "boosted", "boosted, RELBO, last iterate"
DEFAULT = "relbo's default"
_MEASURED = 64  # draws that measure an iteration: one costs as much as an evaluation of the whole matrix
FEW_BBVI, FEW_BOOSTED = "BBVI, the authors' 100 steps", "boosted, RELBO, 100 steps a component"


@dataclasses.dataclass(frozen=True)
class Budget:
    """Steps of a converged component and components in all; the same of the authors' protocol; the default's limit."""

    num_steps: int = 600
    components: int = 3
    few_steps: int = 100
    few_components: int = 8
    default_components: int = 1


QUICK = Budget(300, 2, 100, 3, 1)


@functools.cache
def _oracle(num_steps: int, edward: bool = False):
    """The paper's, with one draw a step; one object for all fits, since another optimiser would be compiled anew.

    A component that converges has a shorter memory of Adam's, because the first gradients are huge; the authors'
    program begins near zero.
    """
    if edward:
        optimizer = ADAM
        starts = relbo.Starts(num_residual=0, num_modes=0, num_initial=1)
    else:
        optimizer = optax.adam(optax.cosine_decay_schedule(0.1, num_steps, alpha=0.01), b2=0.99)
        starts = relbo.paper("fixed")["oracle"].starts
    return relbo.GradientOracle(optimizer, num_steps, num_draws=1, num_restarts=1, starts=starts)


def converged(task: Task, systems: tuple[str, ...], budget: Budget) -> dict[str, Any]:
    """BBVI, and systems that go on from that one fit with the fixed step; the best iterate by train log-likelihood."""
    settings = relbo.paper("fixed") | {"oracle": _oracle(budget.num_steps), "num_measure": _MEASURED}
    first, seconds = timed_fit(task.target, seed=task.seed, **settings | {"max_components": 1})
    rows = [_row(task, BBVI, first, seconds)]
    objectives = {BOOSTED: "finite_step", RUNAWAY: "relbo"}
    for system in systems:
        how = settings | {"objective": objectives[system], "max_components": budget.components}
        score = (lambda one: one.num_components) if system == RUNAWAY else functools.partial(train_log_lik, task)
        found, further = timed_fit(task.target, start=first, seed=task.seed, best_by=score, **how)
        rows.append(_row(task, system, found, seconds + further))
    gc.collect()
    return {"rows": rows, "factors": _factors(first)}


def authors(task: Task, budget: Budget) -> dict[str, Any]:
    """The authors' protocol: the paper's RELBO, 100 steps for every component; their BBVI is the first of them."""
    settings = relbo.paper("fixed") | {"oracle": _oracle(budget.few_steps, edward=True), "num_measure": _MEASURED}
    iterates: list[relbo.Posterior] = []
    how = settings | {"max_components": budget.few_components, "callback": iterates.append}
    _, seconds = timed_fit(task.target, seed=task.seed, best_by=lambda one: one.num_components, **how)
    rows = []
    for system, one in ((FEW_BBVI, iterates[0]), (FEW_BOOSTED, iterates[-1])):
        rows.append(_row(task, system, one, seconds) | {"drawn_mse": drawn_mse(task, one)})
    rows[-1]["mse_by_iteration"] = [scores(task, one)["test_mse"] for one in iterates]
    gc.collect()
    return {"rows": rows}


def default(task: Task, budget: Budget) -> dict[str, Any]:
    """relbo's default, with few components: in these dimensions each takes minutes."""
    found, seconds = timed_fit(task.target, seed=task.seed, max_components=budget.default_components)
    gc.collect()
    return {"rows": [_row(task, DEFAULT, found, seconds)]}


def ascended(task: Task, budget: Budget) -> dict[str, Any]:
    """Coordinate ascent, which has no budget."""
    del budget
    return coordinate_ascent(task)


def _row(task: Task, system: str, posterior: relbo.Posterior, seconds: float) -> dict[str, Any]:
    about = {"data": task.matrix.name, "rank": task.rank, "noise": task.noise, "seed": task.seed, "system": system}
    return about | scores(task, posterior) | {
        "dim": task.target.dim,
        "elbo": posterior.elbo,
        "num_components": posterior.num_components,
        "stop_reason": posterior.stop_reason,
        "evaluations": posterior.num_evaluations,
        "cpu_seconds": seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9,
    }  # fmt: skip


def _factors(posterior: relbo.Posterior) -> dict[str, Any]:
    """The factors of the first component, strongest first, with how much of the picture each makes.

    The strength of factor r is the root mean square over images and pixels of U_r V_r.
    """
    at = posterior.constrain(jnp.asarray(posterior.locations))
    u, v = np.asarray(at["U"])[0], np.asarray(at["V"])[0]
    strength = np.sqrt(np.mean(u**2, axis=1) * np.mean(v**2, axis=1))
    order = np.argsort(-strength)
    signs = np.sign(v.mean(axis=1))  # so that a factor is added, not taken away, in the average picture
    return {
        "images": np.round((signs[:, None] * u)[order], 3),
        "strength": np.round(strength[order], 4),
    }

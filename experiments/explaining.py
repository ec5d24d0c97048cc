r"""Why the paper saw gains and we do not: the paper's fit with one thing changed at a time, every iterate measured.

A step of boosting with a density $\tilde q$ in place of the mixture's is plain variational inference on another target,

$$E_s[\log p - \lambda \log s - \log \tilde q] = \lambda\, \mathrm{ELBO}(s) \quad\text{for the log density}\quad
(\log p - \log \tilde q) / \lambda,$$

which is how the authors' own density, a product of one-dimensional mixtures, goes through the public interface.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from sklearn.metrics import roc_auc_score

import relbo
from experiments import logistic
from experiments.data import Classification
from experiments.edward import ADAM
from experiments.runs import timed_fit
from relbo.families import Box, Diagonal, Laplace, LocationScale

FAMILY = "mean_field_laplace"
_UNIT = 0.25
"""The unit of the weights inside the box, so that one box serves locations and scales."""
_NOTHING = -1e30  # a log weight of zero whose gradient is a number


@dataclasses.dataclass(frozen=True)
class Change:
    """What differs from the paper's settings on top of a converged first component."""

    label: str
    schedule: str | float = "1/sqrt(t+1)"
    first_steps: int = 3000
    steps: int = 600
    edward: bool = False
    """Whether by Edward's optimiser, which the authors' code uses."""
    boxed: bool = False
    product: bool = False
    """The product of one-dimensional mixtures in place of the mixture's density."""


CHANGES = {
    "base": Change("the paper's RELBO after a converged BBVI"),
    "lambda one": Change("lambda = 1", schedule=1.0),
    "lambda inverse": Change("lambda = 1/(t+1)", schedule="1/(t+1)"),
    "lambda log": Change("lambda = 1/log(t+2)", schedule="1/log(t+2)"),
    "box": Change("a bounded set: |w| <= 2, scales in [0.062, 1.01]", boxed=True),
    "product": Change("the authors' density: a product of 1-d mixtures", product=True),
    "authors' steps": Change("the authors' steps: 600 for every component, BBVI too", first_steps=600, edward=True),
    "few steps": Change("100 steps for every component, BBVI too", first_steps=100, steps=100, edward=True),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much: iterations, and draws for choosing and for measuring an iterate."""

    iterations: int = 10
    selection_draws: int = 250
    score_draws: int = 1000
    authors_draws: int = 50


QUICK = Size(2, 50, 200)


def explained(data: Classification, change: Change, size: Size, seed: int) -> dict[str, Any]:
    """Every iterate, the first component's first: what may choose it, and what it is worth."""
    iterates = _product_iterates if change.product else _iterates
    return {
        "data": data.name,
        "change": change.label,
        "seed": seed,
        "iterates": [_measured(draw, data, size, seed) for draw in iterates(data, change, size, seed)],
    }


Draw = Callable[[int, int], np.ndarray]
"""So many draws of the weights, from a seed."""


def _measured(draw: Draw, data: Classification, size: Size, seed: int) -> dict[str, float]:
    """`train_ll` and `train_lpd` on selection draws, `few_ll` on as few as the authors'; AUROC on draws of its own, and
    as the authors compute it: from the mean logits of 50 draws."""
    some = logistic.scores(draw(size.selection_draws, seed), data)
    few = draw(size.authors_draws, 500 + seed)
    logits = (data.x_test @ np.asarray(few, np.float32).T).mean(axis=1)
    return {
        "train_ll": some["train_ll"],
        "train_lpd": some["train_lpd"],
        "few_ll": logistic.scores(few, data)["train_ll"],
        "auroc": logistic.scores(draw(size.score_draws, 1000 + seed), data)["test_auroc"],
        "authors_auroc": float(roc_auc_score(data.y_test, np.nan_to_num(logits))),
    }


@functools.cache
def _oracle(num_steps: int, edward: bool):
    """One object for all fits: another optimiser would be compiled anew."""
    starts = relbo.paper("fixed")["oracle"].starts
    return relbo.GradientOracle(
        ADAM if edward else None, num_steps=num_steps, num_draws=1, num_restarts=1, starts=starts
    )


def _settings(change: Change, num_steps: int) -> dict[str, Any]:
    family = LocationScale(Laplace(), Diagonal(), Box(2 / _UNIT, 1.4)) if change.boxed else FAMILY
    more = {"oracle": _oracle(num_steps, change.edward), "objective": relbo.RELBO(change.schedule), "num_measure": 128}
    return relbo.paper("fixed", family=family) | more


def _in_units(weights, signed_rows):
    return logistic.log_joint(_UNIT * weights, signed_rows)


def _iterates(data: Classification, change: Change, size: Size, seed: int) -> list[Draw]:
    unit = _UNIT if change.boxed else 1.0
    example = np.zeros(data.x_train.shape[1], np.float32)
    density = _in_units if change.boxed else logistic.log_joint
    target = relbo.from_log_density(density, example, args=(logistic.signed(data),))
    first, _ = timed_fit(target, seed=seed, **_settings(change, change.first_steps) | {"max_components": 1})
    found = [first]
    more = _settings(change, change.steps) | {"max_components": size.iterations + 1}
    timed_fit(target, seed=seed, start=first, callback=found.append, **more)

    def drawing(posterior) -> Draw:
        return lambda num, seed: unit * np.asarray(posterior.sample_unconstrained(num, seed=seed))

    return [drawing(one) for one in found]


def _residual(weights, signed_rows, loc, log_scale, log_weights, temperature):
    """(log p - log q) / lambda with the product over coordinates of one-dimensional mixtures of Laplace laws."""
    each = -jnp.abs(weights - loc) * jnp.exp(-log_scale) - log_scale - jnp.log(2.0)
    log_q = jnp.sum(logsumexp(log_weights[:, None] + each, axis=0))
    return (logistic.log_joint(weights, signed_rows) - log_q) / temperature


def _product_iterates(data: Classification, change: Change, size: Size, seed: int) -> list[Draw]:
    """The same loop by hand: the fixed step's weights, and every component a fit of its own."""
    dim, rows = data.x_train.shape[1], logistic.signed(data)
    loc, log_scale = np.zeros((2, size.iterations + 1, dim), np.float32)
    weights = np.zeros(size.iterations + 1)
    draws = []
    for t in range(size.iterations + 1):
        example = np.zeros(dim, np.float32)
        if t == 0:
            target = relbo.from_log_density(logistic.log_joint, example, args=(rows,))
        else:
            log_weights = np.where(weights > 0, np.log(np.maximum(weights, 1e-300)), _NOTHING).astype(np.float32)
            args = (rows, loc.copy(), log_scale.copy(), log_weights, np.float32(1 / np.sqrt(t + 1)))
            target = relbo.from_log_density(_residual, example, args=args)
        steps = change.steps if t else change.first_steps
        fitted, _ = timed_fit(target, seed=1000 * t + seed, **_settings(change, steps) | {"max_components": 1})
        params = fitted.mixture.params
        loc[t], log_scale[t] = np.asarray(params.loc)[0], np.asarray(params.scale)[0]
        gamma = 2 / (t + 2)
        weights = (1 - gamma) * weights
        weights[t] = gamma
        draws.append(functools.partial(_draw_mixture, weights.copy(), loc[: t + 1].copy(), log_scale[: t + 1].copy()))
    return draws


def _draw_mixture(weights: np.ndarray, loc: np.ndarray, log_scale: np.ndarray, num: int, seed: int) -> np.ndarray:
    """Draws of the mixture itself, which is what is sampled."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(loc), num, p=weights[: len(loc)] / weights[: len(loc)].sum())
    return loc[chosen] + np.exp(log_scale[chosen]) * rng.laplace(size=(num, loc.shape[1]))

"""Measuring an iteration on fresh draws: ELBO, duality gap, improvement; as many draws as it takes to tell."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from relbo.mixture import Mixture, draw_each, locations_of, log_densities, log_mixture, num_active, stack, weights_of
from relbo.model.door import Door
from relbo.objectives.evaluate import Evaluation, Influence, duality_gap, improvement, influence, paired_improvement
from relbo.records.estimate import Estimate

_FIRST_DRAWS = 512
"""Of a mixture, in the first look; the next ones have twice as many each."""
_FEWEST_EACH = 8
"""Of every component: fewer give no error bar to speak of."""
_CLEAR = 3.0
"""Standard errors that tell an improvement from none."""
_FINE = 1.5e-3
"""Nats: a standard error below which no decision of a fit depends on more draws."""
_ROUGH = 0.03
"""Of the spread: enough for the first component, of which nothing is decided but whether its spread is small."""


@dataclass(frozen=True)
class Measured:
    """A mixture before and after an iteration, measured on one set of fresh draws."""

    gap: Evaluation
    """Of the old mixture, towards the proposal; NaN where there is none."""
    improvement: Estimate
    """ELBO(new) - ELBO(old), on common random numbers slot by slot."""
    elbo: Evaluation
    """Of the new mixture."""
    nan_before: float
    """The share of draws of the old mixture whose log density was NaN."""


def measure_one(key: Key[Array, ""], door: Door, mixture: Mixture, most: int) -> Evaluation:
    """The ELBO of a mixture, on `most` draws at the most."""
    looks = _Looks(key, door, mixture)
    for num_draws in _rounds(most):
        seen = looks.influence(num_draws)
        if seen.std_err() < max(_FINE, _ROUGH * seen.spread):
            break
    return seen.evaluation()


def measure(
    key: Key[Array, ""], door: Door, old: Mixture, new: Mixture, params: PyTree | None, *, most: int, least: float
) -> Measured:
    """ELBO of `new`, improvement over `old`, and the gap of `old` at the component `params`, with their errors.

    Each has as many draws as the other, by common random numbers slot by slot; they are doubled until the improvement
    is clearly above or below `least`, or known as well as matters; to `most`, over all slots.
    """
    looks_old = _Looks(key, door, old)
    looks_new = looks_old if new is old else _Looks(key, door, new)
    for num_draws in _rounds(most):
        before = looks_old.influence(num_draws)
        after = before if new is old else looks_new.influence(num_draws)
        gained = paired_improvement(before, after)
        std_err = after.std_err() if new is old else float(gained.std_err)
        if std_err < _FINE or (new is not old and abs(float(gained.value) - least) > _CLEAR * std_err):
            break
    gap = Evaluation(Estimate(float("nan"), float("inf"), 0), 0, 0)
    if params is not None:
        gap = duality_gap(before, _ratios_of_one(key, door, old, params, num_draws // 2))
    gained = gained if new is old else improvement(before, after)
    return Measured(gap, gained, after.evaluation(), before.num_nan / before.num_used)


def _rounds(most: int) -> Iterator[int]:
    """Numbers of draws, each twice the one before."""
    num = min(_FIRST_DRAWS, most)
    while num < most:
        yield num
        num *= 2
    yield most


class _Looks:
    """log p - log q at more and more draws of a mixture, the same number from every component."""

    def __init__(self, key, door: Door, mixture: Mixture):
        self.key, self.door, self.mixture = key, door, mixture
        self.weights, self.num_components = weights_of(mixture), num_active(mixture)
        self.ratios, self.rounding = np.zeros((mixture.capacity, 0)), 0.0

    def influence(self, num_draws: int) -> Influence:
        """Of so many draws in all, those known already among them."""
        have, want = self.ratios.shape[1], 2 * (max(_FEWEST_EACH, num_draws // self.num_components) // 2)
        if want > have:
            self.ratios = np.concatenate([self.ratios, self._more(have, want)], axis=1)
        return influence(self.ratios, self.weights, self.mixture.family.symmetric, self.rounding)

    def _more(self, have: int, want: int) -> np.ndarray:
        mixture, num = self.mixture, self.num_components
        points = self._draws(have, want)
        flat = points.reshape(-1, points.shape[-1])
        log_p, rounding = self.door.values(flat, "measuring")
        self.rounding = max(self.rounding, rounding)
        log_q = log_mixture(log_densities(mixture.family, mixture.params, flat, num), self.weights[:num])
        ratios = np.zeros((mixture.capacity, want - have))  # of empty slots: zeros, which count for nothing
        ratios[:num] = (log_p - log_q).reshape(num, -1)
        return ratios

    def _draws(self, have: int, want: int) -> np.ndarray:
        """(components, want - have, dim). Of symmetric components each draw is followed by its mirror image: what is
        odd about log p - log q, and near a normal posterior that is most of it, then costs no accuracy."""
        mixture, num = self.mixture, self.num_components
        if not mixture.family.symmetric:
            return draw_each(self.key, mixture, want, num, have)
        draws = draw_each(self.key, mixture, want // 2, num, have // 2)[:, :, None]
        centers = np.asarray(locations_of(mixture.family, mixture.params))[:num, None, None]
        return np.concatenate([draws, 2 * centers - draws], axis=2).reshape(num, want - have, -1)


def _ratios_of_one(key, door: Door, mixture: Mixture, params: PyTree, num_draws: int) -> np.ndarray:
    """log p - log q at draws of one component, drawn as if it filled all slots."""
    alone = stack(jax.tree.map(lambda leaf: np.asarray(leaf)[None], params), mixture.capacity)
    repeated = Mixture(mixture.family, alone, mixture.log_weights)
    each = max(2, -(-num_draws // mixture.capacity))
    points = draw_each(jax.random.fold_in(key, 2**16), repeated, each, mixture.capacity).reshape(-1, door.dim)
    log_p, _ = door.values(points, "measuring")
    num, weights = num_active(mixture), weights_of(mixture)
    return log_p - log_mixture(log_densities(mixture.family, mixture.params, points, num), weights[:num])

"""Measuring an iteration on fresh draws: ELBO, duality gap, improvement; as many draws as it takes to tell."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from relbo.door import Door
from relbo.estimate import Estimate
from relbo.mixture import Mixture, draw_each, log_densities, log_mixture, num_active, stack, weights_of
from relbo.objectives.evaluate import Evaluation, Influence, duality_gap, improvement, influence

_FIRST_DRAWS = 64
"""Of every component, in the first look."""
_CLEAR = 4.0
"""Standard errors that tell an improvement from none."""
_FINE = 1e-3
"""Nats: a standard error below which no decision of a fit depends on more draws."""


@dataclass(frozen=True)
class Comparison:
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
    """The ELBO of a mixture. `most` is the number of draws, over all slots, at the most."""
    looks = _Looks(door, [mixture], most)
    while True:
        looks.look(key)
        seen = looks.influence(0)
        if looks.is_last or seen.std_err() < _FINE:
            return seen.evaluation()


def measure(
    key: Key[Array, ""], door: Door, old: Mixture, new: Mixture, params: PyTree | None, most: int, least: float
) -> Comparison:
    """ELBO of `new`, improvement over `old`, and the gap of `old` at the component `params`, with their errors.

    Draws are doubled until the improvement is clearly above or below `least`, or known to a thousandth of a nat.
    """
    same = old is new
    looks = _Looks(door, [old] if same else [old, new], most)
    while True:
        looks.look(key)
        before, after = looks.influence(0), looks.influence(0 if same else 1)
        gained = improvement(before, after)
        clear = abs(gained.value - least) > _CLEAR * gained.std_err or gained.std_err < _FINE
        if looks.is_last or (not same and clear) or (same and after.std_err() < _FINE):
            break
    gap = Evaluation(Estimate(float("nan"), float("inf"), 0), 0, 0)
    if params is not None:
        gap = duality_gap(before, _ratios_of_one(key, door, old, params, before.valid.size))
    used = max(1.0, before.valid[weights_of(old) > 0].size)
    return Comparison(gap, gained, after.evaluation(), before.num_nan / used)


class _Looks:
    """Draws of some mixtures, by common random numbers, made in rounds that double their number."""

    def __init__(self, door: Door, mixtures: list[Mixture], most: int):
        self.door, self.mixtures = door, mixtures
        self.most = max(2, most // mixtures[0].capacity)
        self.ratios: list[list[np.ndarray]] = [[] for _ in mixtures]
        self.num_rounds = 0

    @property
    def num_each(self) -> int:
        return min(_FIRST_DRAWS, self.most) * self.num_rounds

    @property
    def is_last(self) -> bool:
        return self.num_each >= self.most

    def look(self, key) -> None:
        """The first round, or as many rounds as there were."""
        for _ in range(max(1, self.num_rounds)):
            round_key = jax.random.fold_in(key, self.num_rounds)
            for mixture, ratios in zip(self.mixtures, self.ratios, strict=True):
                ratios.append(_ratios(round_key, self.door, mixture, min(_FIRST_DRAWS, self.most)))
            self.num_rounds += 1
            if self.is_last:
                return

    def influence(self, which: int) -> Influence:
        return influence(np.concatenate(self.ratios[which], axis=1), weights_of(self.mixtures[which]))


def _ratios(key, door: Door, mixture: Mixture, num_each: int) -> np.ndarray:
    """log p - log q at draws of every slot; zeros for empty ones, of which the first slots have none."""
    used = num_active(mixture) * num_each
    points = np.asarray(draw_each(key, mixture, num_each))[:used]
    log_p, _ = door.numbers(points, "measuring")
    log_q = log_mixture(log_densities(mixture.family, mixture.params, points), weights_of(mixture))
    ratios = np.zeros(mixture.capacity * num_each)
    ratios[:used] = log_p - log_q
    return ratios.reshape(mixture.capacity, num_each)


def _ratios_of_one(key, door: Door, mixture: Mixture, params: PyTree, most: int) -> np.ndarray:
    """log p - log q at draws of one component: as many as of half the slots, at the most those of the mixture."""
    num_slots = max(1, min(mixture.capacity, 4))
    alone = stack(jax.tree.map(lambda leaf: np.asarray(leaf)[None], params), mixture.capacity)
    repeated = Mixture(mixture.family, alone, mixture.log_weights)
    num_each = min(_FIRST_DRAWS, most)
    points = np.asarray(draw_each(jax.random.fold_in(key, 2**16), repeated, num_each))[: num_slots * num_each]
    log_p, _ = door.numbers(points, "measuring")
    return log_p - log_mixture(log_densities(mixture.family, mixture.params, points), weights_of(mixture))

"""Draws of a mixture with all that is known there, made once and used by all who ask: starts, scores and weights."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Array, Key

from relbo.mixture import Mixture, draw_each, log_densities, log_mixture, num_active, weights_of
from relbo.model.door import Door


@dataclass(frozen=True)
class Cloud:
    """The same number of draws from every component; `log_p` is NaN where the model is broken."""

    mixture: Mixture
    points: np.ndarray
    """(components, num, dim)."""
    log_p: np.ndarray
    """(components, num)."""
    log_each: np.ndarray
    """(components, num, capacity): the log density of every slot."""

    @cached_property
    def weights(self) -> np.ndarray:
        """Of all slots."""
        return weights_of(self.mixture)

    @cached_property
    def log_q(self) -> np.ndarray:
        return log_mixture(self.log_each, self.weights)

    @property
    def num_components(self) -> int:
        return self.points.shape[0]

    @property
    def num_each(self) -> int:
        return self.points.shape[1]

    @cached_property
    def shares(self) -> np.ndarray:
        """The weight of every draw, (components, num), zero for those that are not finite; they add up to one."""
        finite = np.isfinite(self.log_p) & np.isfinite(self.log_q)
        shares = np.where(finite, self.weights[: self.num_components, None], 0.0)
        return shares / max(shares.sum(), np.finfo(float).tiny)


def make_cloud(key: Key[Array, ""], door: Door, mixture: Mixture, num_each: int, purpose: str) -> Cloud:
    num = num_active(mixture)
    points = draw_each(key, mixture, num_each, num)
    flat, shape = points.reshape(-1, door.dim), (num, num_each)
    log_p, _ = door.values(flat, purpose)
    log_each = log_densities(mixture.family, mixture.params, flat)
    return Cloud(mixture, points, log_p.reshape(shape), log_each.reshape(*shape, -1))

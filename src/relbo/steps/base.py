r"""The protocol of a step rule: weights in, weights out, and the cached problem that most of them solve.

All rules but the fixed one work on draws made once: some from every component, with $\log p$ and every component's log
density there. Then $f(w) = \mathrm{KL}(q_w \| p)$ (up to $\log Z$) and its gradient $g_i(w) = E_{s_i}[\log q_w - \log
p]$ cost no further evaluation of the target, and all points of a search share common random numbers. What is left is
arithmetic on small arrays, on the host and in double precision: nothing to compile.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from relbo.families import AbstractFamily
from relbo.mixture import Mixture

_BISECTIONS = 50  # to the last bit of float64
_BROKEN = 1e3  # nats, against a component of which no draw could be used


@dataclass(frozen=True)
class WeightUpdate:
    """The new weights, the step size taken, and the kind of step as an index into the rule's `kinds`."""

    weights: np.ndarray
    step_size: float
    kind: int = 0


class AbstractStep(eqx.Module):
    """A step rule. `monotone` says that a step never makes the mixture worse, up to Monte Carlo error."""

    kinds: eqx.AbstractClassVar[tuple[str, ...]]
    monotone: eqx.AbstractClassVar[bool]
    at_once: eqx.AbstractClassVar[int]
    """How many new components a step may weigh together."""
    num_draws: eqx.AbstractVar[int]
    """From every component; 0 for a rule that looks at none."""

    def init(self) -> PyTree:
        """What the rule remembers between iterations: nothing, for most."""
        return ()

    def check(self, family: AbstractFamily) -> None:
        """Raise a ValueError if the rule cannot weigh components of `family`; most can weigh any."""
        del family

    @abstractmethod
    def update(
        self, problem: "WeightProblem", mixture: Mixture, slots: np.ndarray, iteration: int, memory: PyTree
    ) -> tuple[WeightUpdate, PyTree]:
        """New weights for a mixture whose `slots` hold the proposals, at weight zero. `iteration` is at least 1."""


@dataclass(frozen=True)
class WeightProblem:
    """Cached draws: `log_p[i, n]` and `log_s[i, n, k]` at draw n of component i; draws not finite are masked."""

    weights: np.ndarray
    """Of the mixture so far, zero for the proposals."""
    log_p: np.ndarray
    log_s: np.ndarray
    valid: np.ndarray
    usable: np.ndarray
    """The slots that hold a component or a proposal."""
    share: np.ndarray
    """Of each component, inside the support. Rules work with weights of components restricted to it."""
    num_nan: int
    relative: np.ndarray
    """Densities relative to the largest at each draw, which is `exp(peak)`: a gradient is a matrix product."""
    peak: np.ndarray

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        """g_i = E_i[log q_w - log p]; zero for slots that hold nothing, large for those without a single good draw."""
        log_q = self.peak + np.log(np.maximum(self.relative @ weights, np.finfo(float).tiny))
        count = self.valid.sum(1)
        total = np.sum(np.where(self.valid > 0, log_q - self.log_p, 0.0), axis=1)
        solid = self.usable & (count > 0)
        means = total / np.where(solid, count, 1.0)
        worst = np.max(means[solid], initial=-np.inf)
        return np.where(solid, means, np.where(self.usable, worst + _BROKEN, 0.0))

    @property
    def inside(self) -> np.ndarray:
        """The weights of the restricted components."""
        return self.weights * self.share / np.sum(self.weights * self.share)

    def whole(self, weights: np.ndarray) -> np.ndarray:
        """Weights of whole components from those of restricted ones; rounding below zero is zero."""
        weights = np.maximum(weights, 0.0) / self.share
        return weights / weights.sum()

    def value(self, weights: np.ndarray) -> float:
        """f(w), up to log Z."""
        return float(np.sum(weights * self.gradient(weights)))


def weight_problem(weights: np.ndarray, slots: np.ndarray, log_p: np.ndarray, log_s: np.ndarray) -> WeightProblem:
    """From log p (capacity, num) and all log densities (capacity, num, capacity) at draws of every slot."""
    usable = weights > 0
    usable[slots] = True
    valid = (np.isfinite(log_p) & usable[:, None]).astype(float)
    zero = np.sum((log_p == -np.inf) & usable[:, None], axis=1)
    count = valid.sum(1)
    share = np.where(count > 0, count / np.maximum(count + zero, 1), 1.0)
    # Empty slots never enter: their log densities are irrelevant at weight zero, and must only be finite.
    # Nor does a proposal without a density: it gets no weight, and the others keep theirs.
    log_s = np.where(usable & ~np.isnan(log_s), log_s - np.log(share), -np.inf)
    peak = np.max(log_s, axis=-1)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    relative = np.exp(log_s - peak[..., None])
    num_nan = int(np.sum((valid == 0) & usable[:, None]) - zero.sum())
    known = np.where(valid > 0, log_p, 0.0)
    return WeightProblem(weights, known, log_s, valid, usable, share, num_nan, relative, peak)


def search(problem: WeightProblem, weights: np.ndarray, direction: np.ndarray, largest: float) -> float:
    """The minimum of the convex f(w + gamma d) over 0 <= gamma <= largest, by bisection on its derivative."""

    def slope(gamma: float) -> float:
        return float(direction @ problem.gradient(np.maximum(weights + gamma * direction, 0.0)))

    if slope(largest) <= 0:
        return float(largest)
    if slope(0.0) >= 0:
        return 0.0
    low, high = 0.0, float(largest)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 0.5 * (low + high)


def unit(size: int, slot: Any) -> np.ndarray:
    """All weight in one slot."""
    return (np.arange(size) == slot).astype(float)

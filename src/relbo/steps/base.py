r"""The protocol of a step rule: weights in, weights out, and the cached problem that most of them solve.

All rules but the fixed one work on draws made once: `num_draws` from every component, with $\log p$ and every
component's log density there. Then $f(w) = \mathrm{KL}(q_w \| p)$ (up to $\log Z$) and its gradient
$g_i(w) = E_{s_i}[\log q_w - \log p]$ cost no further evaluation of the target, and all points of a search share
common random numbers.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from relbo.families import AbstractFamily
from relbo.mixture import Mixture, map_chunks
from relbo.targets import AbstractTarget

_BISECTIONS = 40
_BROKEN = 1e3  # nats, against a component of which no draw could be used


class WeightUpdate(eqx.Module):
    """The new log weights, the step size taken, and the kind of step as an index into the rule's `kinds`."""

    log_weights: Float[Array, " capacity"]
    step_size: Float[Array, ""]
    kind: Int[Array, ""]
    num_nan: Int[Array, ""]


class AbstractStep(eqx.Module):
    """A step rule. `monotone` says that a step never makes the mixture worse, up to Monte Carlo error."""

    kinds: eqx.AbstractClassVar[tuple[str, ...]]
    monotone: eqx.AbstractClassVar[bool]
    num_draws: eqx.AbstractVar[int]

    @abstractmethod
    def init(self, dtype) -> PyTree:
        """What the rule remembers between iterations (nothing, for most)."""

    def check(self, family: AbstractFamily) -> None:
        """Raise a ValueError if the rule cannot weigh components of `family`; most can weigh any."""
        del family

    @abstractmethod
    def update(
        self,
        key: Key[Array, ""],
        target: AbstractTarget,
        mixture: Mixture,
        slot: Int[Array, ""],
        iteration: Int[Array, ""],
        memory: PyTree,
    ) -> tuple[WeightUpdate, PyTree]:
        """New weights for a mixture whose `slot` holds the proposal, at weight zero. `iteration` is at least 1."""


class WeightProblem(eqx.Module):
    """Cached draws: `log_p[i, n]` and `log_s[i, n, k]` at draw n of component i; draws not finite are masked."""

    log_p: Float[Array, "capacity num"]
    log_s: Float[Array, "capacity num capacity"]
    valid: Float[Array, "capacity num"]
    usable: Array
    share: Array = eqx.field(default_factory=lambda: jnp.ones(()))
    """Of each component, inside the support. `weights` are those of components restricted to it, and so is `log_s`."""
    num_nan: Array = eqx.field(default_factory=lambda: jnp.asarray(0))

    def gradient(self, weights: Float[Array, " capacity"]) -> Float[Array, " capacity"]:
        """g_i = E_i[log q_w - log p]; zero for slots that hold nothing, large for those without a single good draw."""
        # Densities relative to the largest at each draw do not depend on the weights, so that XLA computes them once
        # for all steps of a descent, and what is left of a step is a matrix product.
        peak = jnp.max(jnp.where(self.usable, self.log_s, -jnp.inf), axis=-1)
        relative = jnp.where(self.usable, jnp.exp(self.log_s - peak[..., None]), 0.0)
        log_q = peak + jnp.log(jnp.maximum(relative @ weights, jnp.finfo(weights.dtype).tiny))
        total = jnp.sum(self.valid * jnp.where(self.valid > 0, log_q - self.log_p, 0.0), axis=1)
        solid = self.usable & (self.valid.sum(1) > 0)
        means = total / jnp.where(solid, self.valid.sum(1), 1.0)
        worst = jnp.max(jnp.where(solid, means, -jnp.inf))
        return jnp.where(solid, means, jnp.where(self.usable, worst + _BROKEN, 0.0))

    def inside(self, weights):
        """Weights of the restricted components, from those of the whole ones."""
        return weights * self.share / jnp.sum(weights * self.share)

    def whole(self, weights):
        """And back."""
        return weights / self.share

    def value(self, weights: Float[Array, " capacity"]) -> Float[Array, ""]:
        """f(w), up to log Z."""
        return jnp.sum(weights * self.gradient(weights))


def weight_problem(key, target: AbstractTarget, mixture: Mixture, slot, num_draws: int) -> WeightProblem:
    """Draw from every component that has weight, and from the proposal in `slot`."""
    points = mixture.sample_stratified(key, num_draws)
    flat = points.reshape(-1, target.dim)
    usable = mixture.active.at[slot].set(True)
    evaluate = lambda z: (target.log_density(z), mixture.component_log_probs(z))  # noqa: E731
    log_p, log_s = map_chunks(evaluate, flat, target.points_at_once, used=jnp.repeat(usable, num_draws))
    log_p, log_s = log_p.reshape(points.shape[:2]), log_s.reshape(*points.shape[:2], -1)
    valid = (jnp.isfinite(log_p) & usable[:, None]).astype(mixture.dtype)
    zero = jnp.sum((log_p == -jnp.inf) & usable[:, None], axis=1)
    share = jnp.where(valid.sum(1) > 0, valid.sum(1) / jnp.maximum(valid.sum(1) + zero, 1), 1.0)
    # Empty slots never enter: their log densities are irrelevant at weight zero, and must only be finite.
    log_s = jnp.where(usable, log_s - jnp.log(share), 0.0)
    num_nan = jnp.sum((valid == 0) & usable[:, None]) - zero.sum()
    return WeightProblem(jnp.where(valid > 0, log_p, 0.0), log_s, valid, usable, share, num_nan)


def search(problem: WeightProblem, weights, direction, largest) -> Float[Array, ""]:
    """The minimum of the convex f(w + gamma d) over 0 <= gamma <= largest, by bisection on its derivative."""

    def slope(gamma):
        moved = jnp.maximum(weights + gamma * direction, 0.0)
        return jnp.sum(direction * problem.gradient(moved))

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        return jnp.where(rising, low, middle), jnp.where(rising, middle, high)

    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (jnp.zeros_like(largest), largest))
    return jnp.where(slope(largest) <= 0, largest, jnp.where(slope(jnp.zeros_like(low)) >= 0, 0.0, 0.5 * (low + high)))


def to_log_weights(weights: Float[Array, " capacity"]) -> Float[Array, " capacity"]:
    """Log weights, renormalised; exact zeros become empty slots."""
    return jnp.log(jnp.maximum(weights, 0.0) / jnp.sum(jnp.maximum(weights, 0.0)))

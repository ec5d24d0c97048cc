r"""The joint oracle of Miller, Foti and Adams (2016): the new component and its weight, found together.

It ascends $F(s, \gamma) = \mathrm{ELBO}((1-\gamma) q + \gamma s)$ in the parameters of $s$ and the logit of $\gamma$.
With $r = \log p - \log((1-\gamma) q + \gamma s)$, and because scores have mean zero,

$$ \nabla_s F = \gamma\, \nabla_s E_s[r] \ (\text{$r$ held fixed}), \qquad
   \partial_\gamma F = E_s[r] - E_q[r]. $$

Draws of $s$ are fresh at every step; those of $q$, which does not move, are made once. At the optimum $\gamma$ is where
a line search towards $s$ ends, too: use `step="line_search"` with this oracle, which takes that last step once more on
draws of its own, and is right also where the ascent has not quite arrived.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.ascent import Aim, GradientAscent
from relbo.ascent.base import Drawn, Improved, Tally, empty_tally, first_settled, masked_mean, masked_std_err
from relbo.ascent.gradient import default_optimizer, draws_of, guarded_update, own_densities, solid, surrogates
from relbo.mixture import Numbers
from relbo.objectives.estimators import combine
from relbo.objectives.residual import after_step
from relbo.oracles.ascending import chosen_of
from relbo.oracles.base import AbstractOracle
from relbo.oracles.cloud import Cloud
from relbo.oracles.starts import Starts
from relbo.runtime.compiling import compiled, host_split

_LARGEST_LOGIT = 12.0  # weights below 1e-5, or that near to one, are of no use


class JointOracle(AbstractOracle):
    """Adam on the component and the logit of its weight together, from the best starts, for every family.

    The objective of the booster is not looked at: this oracle has its own, the ELBO of the mixture after the step.
    """

    num_steps: int = eqx.field(static=True, default=GradientAscent.num_steps)
    num_draws: int = eqx.field(static=True, default=GradientAscent.num_draws)
    learning_rate: float = eqx.field(static=True, default=GradientAscent.learning_rate)
    num_restarts: int = eqx.field(static=True, default=2)
    starts: Starts = Starts()

    def __check_init__(self):
        if self.num_restarts < 1:
            raise ValueError(f"num_restarts must be at least 1, got {self.num_restarts}.")

    def check(self, family):
        del family  # every family will do

    def first_ascent(self):
        return GradientAscent(self.num_steps, self.num_draws, self.learning_rate)

    def with_draws(self, least):
        return dataclasses.replace(self, num_draws=max(self.num_draws, least))

    def propose(self, key, door, aim, cloud, modes, most):
        start_key, ascent_key = host_split(key, 2)
        params = self.starts.best(start_key, door, cloud, modes, self.num_restarts, aim.iteration)
        improved, _ = self.ascend(ascent_key, door, aim, cloud, params)
        return chosen_of(cloud, improved, 1)

    def ascend(self, key, door, aim: Aim, cloud: Cloud, params: PyTree) -> tuple[Improved, np.ndarray]:
        """Each of a stack of components with its ELBO, and the weights that were found with them."""
        family, there = aim.mixture.family, _there(cloud, door.dtype)
        state = _begin(self, params, np.asarray(-np.log(aim.iteration + 1), door.dtype))  # gamma = 1 / (t + 2)
        points = _draw(self, family, key, state.moving[0], np.asarray(0, np.int32))
        last = first_settled(self.num_steps)
        for step in range(self.num_steps):
            drawn = Drawn(key, door(points, "proposals", batch=(key, step)), points)
            when = (np.asarray(step, np.int32), np.asarray(step <= last))
            state, points = _step(self, aim.lasting, drawn, there, state, when)
        value, std_err = state.tally.means()
        num_draws, moved = self.num_draws * (self.num_steps - last), state.moving
        improved = Improved(moved[0], value, std_err, num_draws, int(state.tally.num_nan))
        return improved, np.asarray(jax.nn.sigmoid(moved[1]))


class _There(eqx.Module):
    """Draws of the mixture, which does not move."""

    points: Numbers
    shares: Numbers
    log_p: Numbers
    log_q: Numbers


def _there(cloud, dtype) -> _There:
    shares = cloud.shares.reshape(-1)
    used = shares > 0
    parts = (shares, cloud.log_p.reshape(-1), cloud.log_q.reshape(-1))
    shares, log_p, log_q = (np.where(used, part, 0.0).astype(dtype) for part in parts)
    return _There(cloud.points.reshape(-1, cloud.points.shape[-1]), shares, log_p, log_q)


class _State(eqx.Module):
    moving: PyTree
    """Components and the logits of their weights, stacked."""
    optimizer: PyTree
    tally: Tally


@compiled
def _begin(oracle, params, logit) -> _State:
    leaf = jax.tree.leaves(params)[0]
    moving = (params, jnp.full(leaf.shape[0], logit))
    optimizer = default_optimizer(oracle.learning_rate, oracle.num_steps)
    return _State(moving, jax.vmap(optimizer.init)(moving), empty_tally(leaf.shape[0], leaf.dtype))


@compiled
def _draw(oracle, family, key, params, step):
    draws = draws_of(family, key, step, params, oracle.num_draws)
    return draws.reshape(-1, draws.shape[-1])


@compiled
def _step(oracle, aim, drawn, there, state, when):
    """Follow the gradient of F, that by the component divided by gamma, which Adam does not see."""
    (mixture, _, estimator), (key, seen, points), (step, fresh) = aim, drawn, when
    family, (params, logits) = mixture.family, state.moving
    shape = (-1, oracle.num_draws)
    gamma, q = jax.nn.sigmoid(logits), mixture.at(points)
    log_s, slope_s = own_densities(family, params, points.reshape(*shape, points.shape[1]))
    each_logit = jnp.repeat(logits, oracle.num_draws)
    by_s = jax.nn.sigmoid(each_logit + log_s - q.log_q)[:, None]  # the share of s in the mixture after the step
    values = _log_ratio(seen.values, q.log_q, log_s, each_logit)
    values, slopes = solid(values, seen.slopes - (1 - by_s) * q.slope - by_s * slope_s)
    values = values.reshape(shape)
    log_there = family.log_probs(params, there.points).T
    ratios = _log_ratio(there.log_p, there.log_q, log_there, logits[:, None])
    elsewhere, here = ratios @ there.shares, masked_mean(values)
    pull = jnp.where(jnp.isfinite(here), here - elsewhere, 0.0)

    def loss(moving):
        draws = draws_of(family, key, step, moving[0], oracle.num_draws)
        scalars = surrogates(estimator, family, moving[0], draws, slopes, 1.0)
        parts = jax.vmap(lambda s, v: combine(estimator, s, v))(scalars, values)
        return -jnp.sum(parts + jax.nn.sigmoid(moving[1]) * pull)

    grads = jax.grad(loss)(state.moving)
    optimizer = default_optimizer(oracle.learning_rate, oracle.num_steps)
    update = jax.vmap(lambda g, s, p: guarded_update(optimizer, g, s, p))
    (moved, logits), inner = update(grads, state.optimizer, state.moving)
    moved = jax.vmap(family.project)(moved)
    logits = jnp.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)
    elbo, num_nan = (1 - gamma) * elsewhere + gamma * here, jnp.sum(jnp.isnan(values))
    tally = state.tally.add(elbo, gamma * masked_std_err(values), num_nan, fresh)
    draws = draws_of(family, key, step + 1, moved, oracle.num_draws)
    return _State((moved, logits), inner, tally), draws.reshape(-1, draws.shape[-1])


def _log_ratio(log_p, log_q, log_s, logit) -> Float[Array, "..."]:
    """log p - log((1 - gamma) q + gamma s), from the logit of gamma."""
    return after_step(log_p, log_q, log_s, jax.nn.log_sigmoid(-logit), jax.nn.log_sigmoid(logit))

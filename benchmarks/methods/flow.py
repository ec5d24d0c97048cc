"""A flowjax coupling flow with rational-quadratic splines, then an affine map, fitted to the ELBO with Adam.

Without "sticking the landing": that needs the inverse of the flow, whose error in float32 the optimiser learns to
exploit (eight schools, centred: a loss that promises more than log Z, and draws far away). Gradients are clipped and
steps that are not finite are left out, without which the larger learning rate seldom survives.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import paramax
from flowjax.bijections import Affine, RationalQuadraticSpline
from flowjax.distributions import Normal, Transformed
from flowjax.flows import coupling_flow
from flowjax.train.losses import ElboLoss

from methods.base import NUM_DRAWS, Density, NotApplicable, Outcome, Task

NUM_CHOICE_DRAWS = 1000
"""Draws on which the two learning rates are compared."""


def run(task: Task) -> Outcome:
    settings, rates = task.settings, task.settings["learning_rates"]
    if task.model.dim == 1:
        raise NotApplicable("a coupling flow needs two dimensions or more")
    make_key, fit_key, draw_key = jax.random.split(jax.random.key(task.seed), 3)
    flow = _make_flow(make_key, task.model.dim, settings)
    params, static = eqx.partition(
        flow, eqx.is_inexact_array, is_leaf=lambda leaf: isinstance(leaf, paramax.NonTrainable)
    )
    fit = jax.jit(partial(_fit, task.model.log_density, static, settings))
    fits = [fit(fit_key, params, rate, task.data) for rate in rates]
    elbos = np.array([float(elbo) for _, elbo in fits])
    best = int(np.argmax(np.where(np.isnan(elbos), -np.inf, elbos)))
    draws, log_q = map(np.asarray, jax.jit(partial(_draw, static))(draw_key, fits[best][0]))
    num_gradients = len(rates) * settings["num_steps"] * settings["num_particles"]
    return Outcome(draws, num_gradients, lambda: Density(draws, log_q), {"learning_rate": rates[best]})


def _make_flow(key, dim: int, settings: dict) -> Transformed:
    spline = RationalQuadraticSpline(knots=settings["num_knots"], interval=settings["interval"])
    flow = coupling_flow(
        key,
        base_dist=Normal(jnp.zeros(dim)),
        transformer=spline,
        flow_layers=settings["num_layers"],
        nn_width=settings["width"],
        invert=False,
    )
    return Transformed(flow, Affine(jnp.zeros(dim), jnp.ones(dim)))


def _fit(log_density, static, settings: dict, key, params, rate, data: tuple):
    """Parameters after `num_steps`, and their ELBO on fresh draws. One program serves all learning rates."""

    def target(z):
        return log_density(z, *data)

    adam = optax.adam(optax.cosine_decay_schedule(rate, settings["num_steps"]))
    clipped = optax.chain(optax.clip_by_global_norm(settings["max_gradient_norm"]), adam)
    optimiser = optax.apply_if_finite(clipped, settings["num_steps"])
    loss = ElboLoss(target, settings["num_particles"])

    def step(carry, step_key):
        params, state = carry
        gradient = jax.grad(lambda params: loss(params, static, step_key))(params)
        updates, state = optimiser.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    fit_key, choice_key = jax.random.split(key)
    keys = jax.random.split(fit_key, settings["num_steps"])
    (params, _), _ = jax.lax.scan(step, (params, optimiser.init(params)), keys)
    return params, -ElboLoss(target, NUM_CHOICE_DRAWS)(params, static, choice_key)


def _draw(static, key, params):
    return eqx.combine(params, static).sample_and_log_prob(key, (NUM_DRAWS,))

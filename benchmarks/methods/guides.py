"""NumPyro's automatic guides, fitted by stochastic variational inference with Adam."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value
from numpyro.optim import optax_to_numpyro

from methods.base import NUM_DRAWS, Density, NotApplicable, Outcome, Task

NUM_CHOICE_DRAWS = 1000
"""Draws on which the two learning rates are compared."""


def run(task: Task) -> Outcome:
    settings, rates = task.settings, task.settings["learning_rates"]
    if settings["guide"] == "AutoIAFNormal" and task.model.dim == 1:
        raise NotApplicable("AutoIAFNormal needs two dimensions or more")
    start = init_to_value(values={"z": jnp.zeros(task.model.dim)})
    guide = getattr(autoguide, settings["guide"])(make_model(task.model), init_loc_fn=start)
    fit_key, draw_key = jax.random.split(jax.random.key(task.seed))
    guide_setup(guide, fit_key, task.data)
    fit = jax.jit(partial(_fit, guide, settings["num_steps"], settings["num_particles"]))
    fits = [fit(fit_key, rate, task.data) for rate in rates]
    elbos = np.array([float(elbo) for _, elbo in fits])
    best = int(np.argmax(np.where(np.isnan(elbos), -np.inf, elbos)))
    draws, log_q = map(np.asarray, jax.jit(partial(_draw, guide))(draw_key, fits[best][0]))
    num_gradients = len(rates) * settings["num_steps"] * settings["num_particles"]
    return Outcome(draws, num_gradients, lambda: Density(draws, log_q), {"learning_rate": rates[best]})


def make_model(model: Any):
    """The log density as a NumPyro model of one vector; data come as arguments."""

    def numpyro_model(*data):
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (model.dim,)))
        numpyro.factor("log_density", model.log_density(z, *data))

    return numpyro_model


def guide_setup(guide, key, data: tuple) -> None:
    """The guide learns the model's shapes before it is traced."""
    with numpyro.handlers.block(), numpyro.handlers.seed(rng_seed=key):
        guide(*data)


def _fit(guide, num_steps: int, num_particles: int, key, rate, data: tuple):
    """Parameters after `num_steps`, and their ELBO on fresh draws. One program serves all learning rates."""
    optimiser = optax_to_numpyro(optax.adam(optax.cosine_decay_schedule(rate, num_steps)))
    svi = SVI(guide.model, guide, optimiser, Trace_ELBO(num_particles=num_particles))
    init_key, choice_key = jax.random.split(key)
    state = svi.init(init_key, *data)
    state, _ = jax.lax.scan(lambda state, _: (svi.update(state, *data)[0], None), state, length=num_steps)
    params = svi.get_params(state)
    loss = Trace_ELBO(num_particles=NUM_CHOICE_DRAWS).loss(choice_key, params, guide.model, guide, *data)
    return params, -loss


def _draw(guide, key, params: dict):
    """Draws and their log densities; a flow gives the density along the way, without being inverted."""
    q = _distribution(guide, params)
    draws, intermediates = q.sample_with_intermediates(key, (NUM_DRAWS,))
    return draws, q.log_prob(draws, intermediates) if intermediates else q.log_prob(draws)


def _distribution(guide, params: dict) -> dist.Distribution:
    if isinstance(guide, autoguide.AutoNormal):
        return dist.Normal(params["z_auto_loc"], params["z_auto_scale"]).to_event(1)
    if isinstance(guide, autoguide.AutoIAFNormal):
        return numpyro.handlers.substitute(guide._get_posterior, params)()
    return guide.get_posterior(params)

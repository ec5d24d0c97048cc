"""Posteriors made by hand: a mixture chosen by the test in place of a fit."""

import jax
import jax.numpy as jnp
import numpy as np

import relbo
from relbo.boosting.state import State
from relbo.families import Cholesky, LocationScale, Normal
from relbo.mixture import Mixture, empty_mixture
from relbo.model.whitening import identity_map
from relbo.posterior.posterior import Posterior
from relbo.records.outcome import Stop


def posterior_of(mixture: Mixture, target, **settings) -> Posterior:
    """The mixture, in coordinates shifted to the target's example, as if a fit of `target` had found it."""
    booster = relbo.make_booster(target, family=mixture.family, **settings)
    whitened = identity_map(target, "none")
    elbo = relbo.Estimate(0.0, 0.0, 0)
    modes = booster.find_modes(jax.random.key(0), booster.door(whitened))
    state = State(whitened, mixture, modes, booster.step_rule.init(), elbo, 0, False)
    return Posterior(mixture, whitened, elbo, [], Stop("converged", "it was made by hand"), booster, state)


def full_normals(means, factors, weights, capacity=16) -> Mixture:
    """A mixture of normals from means (num, dim), lower factors (num, dim, dim) and weights; other slots are empty."""
    family = LocationScale(Normal(), Cholesky())
    mixture = empty_mixture(family, np.shape(means)[1], capacity, np.float32)
    for slot, (mean, factor, weight) in enumerate(zip(means, factors, weights, strict=True)):
        params = family.init(jnp.asarray(mean, np.float32), jnp.asarray(factor, np.float32))
        mixture = mixture.place(slot, params, np.float32(np.log(weight)))
    return mixture

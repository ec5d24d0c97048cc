"""A fitted mixture as a NumPyro guide. Imported only when one is asked for."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from relbo.mixture import Mixture
from relbo.model.whitening import Whitened
from relbo.targets.numpyro.target import NumPyroTarget


def make_guide(target: Any, whitened: Whitened, mixture: Mixture) -> Callable[..., dict[str, Any]]:
    """A guide that draws from the mixture, for `Predictive(model, guide=...)` or an ELBO of NumPyro's.

    It samples the auxiliary site `_relbo_z` in unconstrained space, and every latent site of the model as a point mass
    that carries the log Jacobian, as NumPyro's own continuous autoguides do. Its arguments are ignored.
    """
    if not isinstance(target, NumPyroTarget):
        raise ValueError(
            f"as_guide needs a target made by relbo.from_numpyro, and this posterior's is a {type(target).__name__}. "
            "Use posterior.sample for draws."
        )

    def guide(*args: Any, **kwargs: Any) -> dict[str, Any]:
        del args, kwargs
        z = numpyro.sample("_relbo_z", MixtureDistribution(whitened, mixture), infer={"is_auxiliary": True})
        with handlers.block():  # the model runs to find its bijections; its sites are not the guide's
            latents = target.latents_with_log_det(z)
        values = {}
        for name, (value, log_det) in latents.items():
            delta = dist.Delta(value, log_density=-log_det, event_dim=jnp.ndim(value) - jnp.ndim(log_det))
            values[name] = numpyro.sample(name, delta)
        return values

    return guide


class MixtureDistribution(dist.Distribution):
    """The mixture in the target's own unconstrained coordinates."""

    support = dist.constraints.real_vector

    def __init__(self, whitened: Whitened, mixture: Mixture):
        self.whitened, self.mixture = whitened, mixture
        super().__init__(batch_shape=(), event_shape=(whitened.dim,))

    def sample(self, key, sample_shape=()):
        if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)  # NumPyro's handlers split raw keys
        draws = jax.vmap(self.whitened.unwhiten)(self.mixture.sample(key, math.prod(sample_shape)))
        return draws.reshape(*sample_shape, self.whitened.dim)

    def log_prob(self, value):
        points = value.reshape(-1, self.whitened.dim)
        whitened = jax.vmap(self.whitened.whiten)(points)
        log_probs = jax.vmap(lambda u: self.mixture.log_prob(u) - self.whitened.log_det(u))(whitened)
        return log_probs.reshape(value.shape[:-1])

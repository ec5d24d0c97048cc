"""Points and gradients between the whitened coordinates and the target's own: small programs without the model."""

import jax
import jax.numpy as jnp

from relbo.runtime.compiling import compiled


@compiled
def unwhiten(family, params, points):
    return jax.vmap(lambda u: family.transport(params, u))(points)


@compiled
def pulled(family, params, slopes):
    """Gradients by u from gradients by z."""
    _, pull = jax.vjp(lambda u: family.transport(params, u), jnp.zeros(slopes.shape[1], slopes.dtype))
    return jax.vmap(lambda slope: pull(slope)[0])(slopes)


@compiled
def log_det_of(family, params):
    """Of the map to the target's own coordinates. On the host: a loop that is run eagerly is compiled at every call."""
    return family.scale.log_det(params.scale)


@compiled
def solved(family, params, slope):
    """The gradient by z from that by u: the transposed inverse."""
    _, pull = jax.vjp(lambda z: family.scale.solve(params.scale, z), jnp.zeros_like(slope))
    return pull(slope)[0]

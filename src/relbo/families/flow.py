r"""Components with a map of their own: $z = m + A\, (T(\varepsilon) - T(0))$ with a flow $T$ and normal noise.

For curved modes that lie far apart, where no one map of coordinates makes all of them round. The expensive option: the
density of a component, which every step of every other one needs, is an inverse, coordinate after coordinate, and there
are no natural gradients.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.families.autoregressive import Flow, identity_flow
from relbo.families.base import AbstractFamily, Box
from relbo.families.scale import Cholesky

_WIDEST = 2.0
"""Of the numbers in a flow, for a bounded set, within which the inverse is exact in float32."""
_SCALE = Cholesky()


class FlowMember(eqx.Module):
    """One component (or a stack of them)."""

    loc: Float[Array, "*stack dim"]
    """$m$, where the middle of the noise goes."""
    scale: Float[Array, "*stack dim dim"]
    """The parameters of $A$."""
    flow: Flow


class FlowFamily(AbstractFamily):
    """Normal noise through an autoregressive flow and an affine map, all three a component's own."""

    num_layers: int = eqx.field(static=True, default=2)
    num_units: int = eqx.field(static=True, default=16)
    box: Box = Box()

    @property
    def climbs_by(self):
        return "flow"

    def init(self, loc, factor):
        flow = identity_flow(loc.shape[0], loc.dtype, self.num_layers, self.num_units)
        return self.project(FlowMember(loc, _SCALE.init(factor), jax.tree.map(jnp.asarray, flow)))

    def sample(self, key, params, num_draws):
        noise = jax.random.normal(key, (num_draws, params.loc.shape[0]), params.loc.dtype)
        return jax.vmap(lambda one: self._transport(params, one))(noise)

    def log_prob(self, params, point):
        moved = _SCALE.solve(params.scale, point - params.loc) + self._middle(params)
        noise, log_det = params.flow.inverse(moved)
        log_normal = -0.5 * jnp.sum(noise**2) - 0.5 * noise.size * math.log(2 * math.pi)
        return log_normal - log_det - _SCALE.log_det(params.scale)

    def location(self, params):
        return params.loc

    def move(self, params, loc, log_factor):
        return self.project(FlowMember(loc, _SCALE.resize(params.scale, log_factor), params.flow))

    def project(self, params):
        loc = jnp.clip(params.loc, -self.box.loc, self.box.loc)
        flow = jax.tree.map(lambda leaf: jnp.clip(leaf, -_WIDEST, _WIDEST), params.flow)
        return FlowMember(loc, _SCALE.project(params.scale, self.box.log_scale), flow)

    def _transport(self, params: FlowMember, noise: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return params.loc + _SCALE.apply(params.scale, params.flow.transport(noise)[0] - self._middle(params))

    def _middle(self, params: FlowMember) -> Float[Array, " dim"]:
        """$T(0)$: so that the middle of the noise goes to the location."""
        return params.flow.transport(jnp.zeros_like(params.loc))[0]

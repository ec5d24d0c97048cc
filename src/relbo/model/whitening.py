r"""The target in coordinates $u$ with $z = m + A\, T(u)$: everything between the search for the map and the posterior.

$T$ is a flow where one was learned (`families/autoregressive.py`), and nothing otherwise.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo.budgets import budget
from relbo.families import DENSE_LIMIT, Box, Cholesky, Diagonal, LocationScale, LocationScaleParams, LowRank, Normal
from relbo.families.autoregressive import Flow
from relbo.model.affine import unwhiten
from relbo.model.blocks import block_for
from relbo.model.through_flow import filled, way_of
from relbo.targets import AbstractTarget, AbstractWrapper
from relbo.targets.minibatch import Anchored

WIDE = Box(loc=1e12, log_scale=27.0)
"""Maps are not bounded, as components are; a runner of the race for one that ends here has run away."""


class Whitened(AbstractWrapper):
    r"""The target in whitened coordinates: $\log p(m + A\, T(u)) + \log|\det A| + \log|\det \partial T / \partial u|$.

    So ELBOs need no correction.
    """

    target: AbstractTarget
    family: LocationScale
    params: LocationScaleParams
    flow: Flow | None

    def __init__(
        self, target: AbstractTarget, family: LocationScale, params: LocationScaleParams, flow: Flow | None = None
    ):
        self.target, self.family, self.params, self.flow = target, family, params, flow

    @property
    def initial(self):
        return jax.vmap(self.whiten)(self.target.initial)

    @property
    def subsamples(self):
        return self.target.subsamples

    def subsample(self, key):
        return Whitened(self.target.subsample(key), self.family, self.params, self.flow)

    def with_target(self, target: AbstractTarget) -> "Whitened":
        """The same coordinates, and the same anchor, for another target of the same shape (new data)."""
        moved = target if self.anchor is None else self.anchor.moved(target)
        return Whitened(moved, self.family, self.params, self.flow)

    @property
    def anchor(self) -> Anchored | None:
        """Of a target that subsamples."""
        return self.target if isinstance(self.target, Anchored) else None

    @property
    def affine(self) -> "Whitened":
        """The coordinates before the flow."""
        return self if self.flow is None else Whitened(self.target, self.family, self.params)

    def with_flow(self, flow: Flow) -> "Whitened":
        return Whitened(self.target, self.family, self.params, flow)

    def log_density(self, u):
        return self.target.log_density(self.unwhiten(u)) + self.log_det(u)

    def constrain(self, u):
        return self.target.constrain(self.unwhiten(u))

    def unconstrain(self, params):
        return self.whiten(self.target.unconstrain(params))

    def log_likelihood(self, u):
        return self.target.log_likelihood(self.unwhiten(u))

    def whiten(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        x = self.family.scale.solve(self.params.scale, z - self.params.loc)
        return x if self.flow is None else self.flow.inverse(x)[0]

    def unwhiten(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        x = u if self.flow is None else self.flow.transport(u)[0]
        return self.family.transport(self.params, x)

    def log_det(self, u: Float[Array, " dim"]) -> Float[Array, ""]:
        """Of `unwhiten`, at a point; without a flow it is the same everywhere."""
        affine = self.family.scale.log_det(self.params.scale)
        return affine if self.flow is None else affine + self.flow.transport(u)[1]


def unwhitened(whitened: Whitened, points) -> np.ndarray:
    """Points (num, dim) in the target's own coordinates, on the host: block by block, by the programs of the door."""
    points, block = np.asarray(points, whitened.dtype), block_for(whitened.dim)
    flow, parts = whitened.flow, []
    for part in filled(points, block).reshape(-1, block, whitened.dim):
        moved = part if flow is None else way_of(flow, part).end
        parts.append(np.asarray(unwhiten(whitened.family, whitened.params, moved)))
    return np.concatenate(parts)[: len(points)]


def scale_of(kind: str, dim: int):
    """The linear maps that a kind of whitening chooses from."""
    if kind in ("auto", "affine", "flow"):
        kind = "dense" if dim <= DENSE_LIMIT else "low_rank"
    scales = {"dense": Cholesky(), "low_rank": LowRank(budget(dim).rank), "diagonal": Diagonal(), "none": Diagonal()}
    return scales[kind]


def identity_map(target: AbstractTarget, kind: str) -> Whitened:
    """Coordinates shifted to the starting point, not scaled."""
    family = LocationScale(Normal(), scale_of(kind, target.dim), WIDE)
    loc = np.asarray(target.initial)[0]
    shapes = jax.eval_shape(lambda: family.scale.init(jnp.ones(loc.shape, loc.dtype)))
    unscaled = jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)  # of every scale
    return Whitened(target, family, LocationScaleParams(jnp.asarray(loc), unscaled, ()))

r"""Location-scale components, $z = m + A \varepsilon$: a noise law and a linear map, each chosen freely."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.families.base import AbstractFamily, Box
from relbo.families.natural import capped
from relbo.families.noise import AbstractNoise, Normal
from relbo.families.scale import AbstractScale, Cholesky


class LocationScaleParams(eqx.Module):
    """One component (or a stack of them): location, the scale's parameters, the noise law's parameters."""

    loc: Float[Array | np.ndarray, "*stack dim"]
    scale: PyTree
    noise: PyTree


class LocationScale(AbstractFamily):
    r"""$s(z) = \pi(A^{-1}(z - m)) \,/\, |\det A|$ for a noise law $\pi$ and a linear map $A$.

    >>> from relbo.families import LocationScale, Laplace, Diagonal
    >>> LocationScale(Laplace(), Diagonal())        # the paper's mean-field Laplace components
    LocationScale(...)
    """

    noise: AbstractNoise = Normal()
    scale: AbstractScale = Cholesky()
    box: Box = Box()

    def init(self, loc, factor):
        return self.project(LocationScaleParams(loc, self.scale.init(factor), self.noise.init(loc.dtype)))

    def sample(self, key, params, num_draws):
        noise = self.noise.sample(key, params.noise, num_draws, params.loc.shape[0], params.loc.dtype)
        return jax.vmap(lambda one: self.transport(params, one))(noise)

    def noise_on_host(self, rng, shape, dtype):
        return self.noise.on_host(rng, shape, dtype)

    def transport(self, params: LocationScaleParams, noise):
        return params.loc + self.scale.apply(params.scale, noise)

    def log_prob(self, params, point):
        noise = self.scale.solve(params.scale, point - params.loc)
        return self.noise.log_prob(params.noise, noise) - self.scale.log_det(params.scale)

    def log_probs(self, params, points):
        if not self.noise.is_normal:
            return super().log_probs(params, points)
        offsets = points[None] - params.loc[:, None]
        noise = self.scale.solve_each(params.scale, offsets)
        log_norm = 0.5 * points.shape[1] * jnp.log(2 * jnp.pi) + jax.vmap(self.scale.log_det)(params.scale)
        return (-0.5 * jnp.sum(noise**2, axis=-1) - log_norm[:, None]).T

    def location(self, params):
        return params.loc

    def move(self, params, loc, log_factor):
        return self.project(LocationScaleParams(loc, self.scale.resize(params.scale, log_factor), params.noise))

    def project(self, params):
        loc = jnp.clip(params.loc, -self.box.loc, self.box.loc)
        scale = self.scale.project(params.scale, self.box.log_scale)
        return LocationScaleParams(loc, scale, self.noise.project(params.noise))

    @property
    def geometry(self):
        return self.scale.geometry if self.noise.is_normal else None

    def natural_step(
        self, params: LocationScaleParams, slope: Float[Array, " dim"], curvature: Array, step_size: Float[Array, ""]
    ) -> LocationScaleParams:
        """One step with `slope` g and `curvature` G, its length in the component's own metric capped at sqrt(dim).

        For families with a `geometry`. The result is not projected: bounds are the caller's.
        """
        geometry = self.scale.geometry
        if geometry is None:
            raise ValueError(f"{self} has no natural steps in closed form.")
        limit = jnp.sqrt(jnp.asarray(slope.shape[0], slope.dtype))
        shift = capped(step_size * slope, limit)
        scale = geometry.step_scale(params.scale, capped(step_size * curvature, limit))
        return LocationScaleParams(params.loc + self.scale.apply(params.scale, shift), scale, params.noise)

    @property
    def symmetric(self):
        return True  # as all noise laws are

    @property
    def has_inner(self):
        return self.noise.is_normal

    def log_inner(self, params, other):
        return self.scale.log_overlap(params.scale, other.scale, params.loc - other.loc)

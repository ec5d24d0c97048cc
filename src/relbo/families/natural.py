r"""Natural-gradient steps for normal components, in the component's own coordinates.

For $s = N(m, LL^\top)$ and $z = m + L\varepsilon$, let $h = \nabla_\varepsilon R(m + L\varepsilon)$ be the gradient of
the residual $R$ seen from inside the component. Then, by Stein's identity, with $S$ the precision,

$$ L^\top E_s[\nabla R] = E[h] =: g, \qquad -L^\top E_s[\nabla^2 R] L = -E[\mathrm{sym}(\varepsilon h^\top)] =: G, $$

and the natural-gradient step $m \mathrel{+}= \rho S^{-1} E[\nabla R]$, $S \mathrel{+}= \rho\,(\cdot) +
\tfrac{\rho^2}{2} (\cdot) S^{-1} (\cdot)$ reads

$$ m \leftarrow m + \rho L g, \qquad L \leftarrow L M^{-1/2}, \qquad M = I + \rho G + \tfrac{\rho^2}{2} G^2
   = \tfrac12 \left( I + (I + \rho G)^2 \right) \succeq \tfrac12 I. $$

Only $M$ is ever factorised, and its eigenvalues are at least 1/2: the step needs no Hessian, no inverse of a precision,
and works alike in float32, for any conditioning of the target (it is invariant to affine maps). The triangular root
with $L M^{-1/2}$ lower triangular comes from the Cholesky factor of $M$ with rows and columns reversed.
(Khan and Rue 2023; Lin, Schmidt and Khan 2020 for the quadratic term.)
"""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.families.triangular import from_tril, to_tril
from relbo.runtime.linalg import inverse_lower


class AbstractGeometry(eqx.Module):
    """How second-order statistics of a normal component are gathered, and a step taken with them."""

    @abstractmethod
    def outer(self, noise: Float[Array, "num dim"], weight: Float[Array, "num dim"]) -> Array:
        """The mean of `noise weight^T`, symmetrised, or its diagonal."""

    @abstractmethod
    def identity(self, dim: int, dtype) -> Array: ...

    @abstractmethod
    def step_scale(self, scale_params: Array, curvature: Array) -> Array:
        """The scale after `L <- L M^{-1/2}`, `curvature` being rho G."""


class FullGeometry(AbstractGeometry):
    def outer(self, noise, weight):
        mean = noise.T @ weight / noise.shape[0]
        return 0.5 * (mean + mean.T)

    def identity(self, dim, dtype):
        return jnp.eye(dim, dtype=dtype)

    def step_scale(self, scale_params, curvature):
        eye = jnp.eye(curvature.shape[0], dtype=curvature.dtype)
        growth = eye + curvature + 0.5 * curvature @ curvature
        reverse = jnp.linalg.cholesky(growth[::-1, ::-1])  # reversed both ways, growth = upper @ upper.T
        return from_tril(to_tril(scale_params) @ inverse_lower(reverse)[::-1, ::-1].T)


class DiagonalGeometry(AbstractGeometry):
    def outer(self, noise, weight):
        return jnp.mean(noise * weight, axis=0)

    def identity(self, dim, dtype):
        return jnp.ones(dim, dtype)

    def step_scale(self, scale_params, curvature):
        return scale_params - 0.5 * jnp.log1p(curvature + 0.5 * curvature**2)


def capped(step: Array, limit: Array) -> Array:
    """A step of at most this length, in its own direction."""
    length = jnp.sqrt(jnp.sum(step**2))
    return step * jnp.minimum(1.0, limit / jnp.maximum(length, jnp.finfo(step.dtype).tiny))

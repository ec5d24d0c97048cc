r"""Linear maps $A$ applied to a component's noise: diagonal, low rank + diagonal, Cholesky.

Every scale knows how to apply $A$, to solve with it and its $\log|\det A|$, for one vector. `log_diag` is always the
logarithm of a diagonal, so that unconstrained optimisers may move it freely and a box around it bounds the set.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.families.natural import AbstractGeometry, DiagonalGeometry, FullGeometry
from relbo.families.triangular import from_tril, to_tril
from relbo.runtime.linalg import inverse_and_log_det, inverse_lower


class AbstractScale(eqx.Module):
    """A parameterised invertible linear map."""

    geometry: eqx.AbstractClassVar[AbstractGeometry | None]
    """How natural-gradient steps move a normal of this scale; None where they have no closed form."""
    is_dense: eqx.AbstractClassVar[bool]
    """Whether it holds a number for every pair of coordinates."""

    @abstractmethod
    def init(self, factor: Float[Array, " dim"] | Float[Array, "dim dim"]) -> PyTree:
        """Parameters of the map nearest to `factor`, a diagonal or a lower triangular matrix."""

    @abstractmethod
    def apply(self, params: PyTree, noise: Float[Array, " dim"]) -> Float[Array, " dim"]: ...

    @abstractmethod
    def solve(self, params: PyTree, offset: Float[Array, " dim"]) -> Float[Array, " dim"]: ...

    def solve_each(self, params: PyTree, offsets: Float[Array, "stack num dim"]) -> Float[Array, "stack num dim"]:
        """`solve` for every one of a stack of maps, each with vectors of its own."""
        return jax.vmap(lambda one, vectors: jax.vmap(lambda offset: self.solve(one, offset))(vectors))(params, offsets)

    @abstractmethod
    def log_det(self, params: PyTree) -> Float[Array, ""]: ...

    @abstractmethod
    def resize(self, params: PyTree, log_factor: Float[Array, ""]) -> PyTree:
        """The map times `exp(log_factor)`."""

    @abstractmethod
    def project(self, params: PyTree, log_bound: float) -> PyTree:
        """The nearest parameters whose scales lie within `exp(+-log_bound)`."""

    @abstractmethod
    def widths(self, params: PyTree) -> Float[np.ndarray, " dim"]:
        """The standard deviation of every coordinate under normal noise, on the host and in double precision."""

    @abstractmethod
    def log_overlap(self, params: PyTree, other: PyTree, offset: Float[Array, " dim"]) -> Float[Array, ""]:
        r"""$\log N(\text{offset};\, 0,\, A A^\top + B B^\top)$: the inner product of two normals so far apart."""


class Diagonal(AbstractScale):
    """$A = \\mathrm{diag}(e^{\\ell})$; parameters: the vector of logarithms."""

    geometry = DiagonalGeometry()
    is_dense = False

    def init(self, factor):
        return jnp.log(factor if factor.ndim == 1 else jnp.linalg.norm(factor, axis=1))

    def apply(self, params, noise):
        return jnp.exp(params) * noise

    def solve(self, params, offset):
        return jnp.exp(-params) * offset

    def log_det(self, params):
        return jnp.sum(params)

    def resize(self, params, log_factor):
        return params + log_factor

    def project(self, params, log_bound):
        return jnp.clip(params, -log_bound, log_bound)

    def widths(self, params):
        return np.exp(np.asarray(params, np.float64))

    def log_overlap(self, params, other, offset):
        log_scale = 0.5 * jnp.logaddexp(2 * params, 2 * other)
        return _log_normal(jnp.exp(-log_scale) * offset, jnp.sum(log_scale))


class LowRankParams(eqx.Module):
    log_diag: Float[Array, " dim"]
    tilt: Float[Array, "dim rank"]


class LowRank(AbstractScale):
    r"""$A = D (I + U U^\top)$ with $U$ of `rank` columns: invertible for every $U$ and any noise law.

    A sum of a diagonal and a low-rank noise would be the textbook form, but is a density only for normals.
    """

    geometry = None
    is_dense = False
    rank: int = eqx.field(static=True, default=10)

    def __check_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}. Use the diagonal scale for rank 0.")

    def init(self, factor):
        diag = factor if factor.ndim == 1 else jnp.linalg.norm(factor, axis=1)
        dim, rank = diag.shape[0], min(self.rank, diag.shape[0])
        # A small fixed tilt, different in every column: at exactly zero the gradient with respect to it vanishes.
        phase = jnp.arange(dim)[:, None] * (1.0 + jnp.arange(rank)) + jnp.arange(rank)
        return LowRankParams(jnp.log(diag), (0.1 / jnp.sqrt(dim) * jnp.cos(2.39996 * phase)).astype(diag.dtype))

    def apply(self, params, noise):
        return jnp.exp(params.log_diag) * (noise + params.tilt @ (params.tilt.T @ noise))

    def solve(self, params, offset):
        unscaled = jnp.exp(-params.log_diag) * offset
        inner, _ = inverse_and_log_det(self._inner(params))
        return unscaled - params.tilt @ (inner @ (params.tilt.T @ unscaled))

    def log_det(self, params):
        return jnp.sum(params.log_diag) + inverse_and_log_det(self._inner(params))[1]

    def resize(self, params, log_factor):
        return LowRankParams(params.log_diag + log_factor, params.tilt)

    def project(self, params, log_bound):
        bound = jnp.exp(0.5 * log_bound)
        return LowRankParams(jnp.clip(params.log_diag, -log_bound, log_bound), jnp.clip(params.tilt, -bound, bound))

    def widths(self, params):
        return np.exp(np.asarray(params.log_diag, np.float64))  # tilts, which make it wider, are left out

    def log_overlap(self, params, other, offset):
        # The sum of both covariances is D (I + V V') D, and with I + V' V = C C' the rest is of the size of V' V.
        log_diag = 0.5 * jnp.logaddexp(2 * params.log_diag, 2 * other.log_diag)
        columns = jnp.concatenate(self._columns(params, other, log_diag), axis=1)
        small = jnp.linalg.cholesky(jnp.eye(columns.shape[1], dtype=columns.dtype) + columns.T @ columns)
        noise = jnp.exp(-log_diag) * offset
        known = inverse_lower(small) @ (columns.T @ noise)
        log_det = jnp.sum(log_diag) + jnp.sum(jnp.log(jnp.diagonal(small)))
        return _log_normal(noise, log_det) + 0.5 * jnp.sum(known**2)

    def _columns(self, params, other, log_diag):
        """V of each with A A' = D_A^2 + D V V' D: of (I + U U')^2 = I + U (2 I + U'U) U', the second part, scaled.

        One factorisation for both (see `linalg`).
        """
        both = jnp.stack([self._inner(params), self._inner(other)])
        roots = jnp.linalg.cholesky(both + jnp.eye(both.shape[1], dtype=both.dtype))
        pairs = zip((params, other), roots, strict=True)
        return [jnp.exp(one.log_diag - log_diag)[:, None] * (one.tilt @ root) for one, root in pairs]

    def _inner(self, params):
        return jnp.eye(params.tilt.shape[1], dtype=params.tilt.dtype) + params.tilt.T @ params.tilt


class Cholesky(AbstractScale):
    """$A = L$ lower triangular; parameters: one matrix, the strict lower part of $L$ and $\\log$ of its diagonal."""

    geometry = FullGeometry()
    is_dense = True

    def init(self, factor):
        return from_tril(jnp.diag(factor) if factor.ndim == 1 else factor)

    def apply(self, params, noise):
        return to_tril(params) @ noise

    def solve(self, params, offset):
        # The explicit inverse is computed once when this is vmapped over points, and leaves one matrix product.
        return inverse_lower(to_tril(params)) @ offset

    def solve_each(self, params, offsets):
        return jnp.einsum("kij,knj->kni", inverse_lower(jax.vmap(to_tril)(params)), offsets)

    def log_det(self, params):
        return jnp.sum(jnp.diagonal(params))

    def resize(self, params, log_factor):
        return from_tril(to_tril(params) * jnp.exp(log_factor))

    def project(self, params, log_bound):
        bound = jnp.exp(log_bound)
        diagonal = jnp.clip(jnp.diagonal(params), -log_bound, log_bound)
        return jnp.clip(jnp.tril(params, -1), -bound, bound) + jnp.diag(diagonal)

    def widths(self, params):
        matrix = np.asarray(params, np.float64)
        return np.sqrt(np.sum(np.tril(matrix, -1) ** 2, axis=1) + np.exp(2 * np.diagonal(matrix)))

    def log_overlap(self, params, other, offset):
        # A A' + B B' = A (I + M M') A' with M = A^-1 B: what is factorised has no eigenvalue below one.
        inverse = inverse_lower(to_tril(params))
        ratio = inverse @ to_tril(other)
        sum_factor = jnp.linalg.cholesky(jnp.eye(ratio.shape[0], dtype=ratio.dtype) + ratio @ ratio.T)
        noise = inverse_lower(sum_factor) @ (inverse @ offset)
        return _log_normal(noise, self.log_det(params) + jnp.sum(jnp.log(jnp.diagonal(sum_factor))))


def _log_normal(noise: Float[Array, " dim"], log_det: Float[Array, ""]) -> Float[Array, ""]:
    """The log density of a normal at the image of `noise` under a map of this determinant."""
    return -0.5 * jnp.sum(noise**2) - 0.5 * noise.shape[0] * jnp.log(2 * jnp.pi) - log_det

r"""Noise laws on $\mathbb{R}^d$: what a component's affine map is applied to.

Each is standardised (location 0, scale 1). The normal and the Laplace law are products over coordinates; the
student-t is elliptical (one chi-square for the whole vector), so that it stays itself under every linear map.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Key, PyTree


class AbstractNoise(eqx.Module):
    """A standardised law; `params` is a pytree of what is learned about it (empty for most)."""

    is_normal: ClassVar[bool] = False
    """Whether densities, inner products and natural gradients have the closed forms of normals."""

    @abstractmethod
    def init(self, dtype) -> PyTree: ...

    @abstractmethod
    def sample(self, key: Key[Array, ""], params: PyTree, num: int, dim: int, dtype) -> Float[Array, "num dim"]: ...

    def on_host(self, rng: np.random.Generator, shape: tuple[int, ...], dtype) -> np.ndarray | None:
        """Draws by NumPy, which compiles nothing; the last axis is that of coordinates. None where `sample` does it."""
        del rng, shape, dtype
        return None

    @abstractmethod
    def log_prob(self, params: PyTree, noise: Float[Array, " dim"]) -> Float[Array, ""]: ...

    @abstractmethod
    def project(self, params: PyTree) -> PyTree:
        """The nearest parameters in the bounded set."""


class Normal(AbstractNoise):
    """Independent standard normals."""

    is_normal = True

    def init(self, dtype):
        return ()

    def sample(self, key, params, num, dim, dtype):
        return jax.random.normal(key, (num, dim), dtype)

    def on_host(self, rng, shape, dtype):
        return rng.standard_normal(shape, dtype)

    def log_prob(self, params, noise):
        return -0.5 * jnp.sum(noise**2) - 0.5 * noise.shape[0] * jnp.log(2 * jnp.pi)

    def project(self, params):
        return params


class Laplace(AbstractNoise):
    """Independent Laplace laws of unit scale (standard deviation sqrt 2)."""

    def init(self, dtype):
        return ()

    def sample(self, key, params, num, dim, dtype):
        return jax.random.laplace(key, (num, dim), dtype)

    def log_prob(self, params, noise):
        return -jnp.sum(jnp.abs(noise)) - noise.shape[0] * jnp.log(2.0)

    def project(self, params):
        return params


class StudentT(AbstractNoise):
    r"""Elliptical student-t, $x = n / \sqrt{g / \nu}$ with $n$ normal and $g \sim \chi^2_\nu$.

    `learn_df=True` makes the degrees of freedom a parameter, kept in `[1, 100]`; its draws are differentiated
    implicitly (JAX does so through the gamma law).
    """

    df: float = eqx.field(static=True, default=4.0)
    learn_df: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if not self.df >= 1:
            raise ValueError(f"df must be at least 1, got {self.df}. Heavier tails than Cauchy's are not supported.")

    def init(self, dtype):
        return jnp.log(jnp.asarray(self.df, dtype)) if self.learn_df else ()

    def sample(self, key, params, num, dim, dtype):
        normal_key, gamma_key = jax.random.split(key)
        df = self._df(params, dtype)
        chi_square = 2 * jax.random.gamma(gamma_key, df / 2, (num, 1), dtype)
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt(df / chi_square)

    def log_prob(self, params, noise):
        dim, df = noise.shape[0], self._df(params, noise.dtype)
        log_norm = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * jnp.log(df * jnp.pi)
        return log_norm - 0.5 * (df + dim) * jnp.log1p(jnp.sum(noise**2) / df)

    def project(self, params):
        return jnp.clip(params, 0.0, jnp.log(100.0)) if self.learn_df else params

    def _df(self, params, dtype):
        return jnp.exp(params) if self.learn_df else jnp.asarray(self.df, dtype)

r"""A small autoregressive flow: coordinates that are learned, $x = T(u)$, instead of only shifted, scaled and turned.

Each layer moves coordinate $i$ by what the ones before it say,

$$ x_i \leftarrow x_i\, e^{s_i(x_{<i})} + t_i(x_{<i}), $$

and the next layer reads the coordinates in the opposite order. $s$ and $t$ have a linear part and one of `tanh` units:
the linear part of $s$ is a scale that depends on a scale, as in hierarchical models, and that of $t$ a correlation.
A point is moved, with $\log|\det \partial T/\partial u|$, by one pass; the inverse takes as many passes as there are
coordinates, and is exact. Written here, and not taken from a library: layers of one shape in one `scan` are one small
program, whatever their number, and the score of a transported normal, which training needs, is a triangular solve a
layer (libraries have it by an inverse and its derivative, which costs as many passes).
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

_Numbers = Array | np.ndarray
NUM_LAYERS = 3
_FEWEST_UNITS, _MOST_UNITS = 32, 64
_STEEPEST = 4.0
"""The largest |s| of a layer: what a few draws far out suggest must not overflow."""
_LINEAR_TO = 4.0
"""Standard deviations up to which the linear part of s is about linear; farther out it ends at this value."""


class Layer(eqx.Module):
    """The numbers of one layer, or of a stack of them."""

    inner: Float[_Numbers, "*layers dim units"]
    inner_bias: Float[_Numbers, "*layers units"]
    scale: Float[_Numbers, "*layers units dim"]
    scale_linear: Float[_Numbers, "*layers dim dim"]
    scale_bias: Float[_Numbers, "*layers dim"]
    shift: Float[_Numbers, "*layers units dim"]
    shift_linear: Float[_Numbers, "*layers dim dim"]
    shift_bias: Float[_Numbers, "*layers dim"]

    def parts(self, x: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num dim"]]:
        """s and t at points; entry i of either depends on the entries of `x` before i alone."""
        _, out, before = _masks(*self.inner.shape)
        units, linear = self._read(x)
        steep = units @ (self.scale * out) + linear @ (self.scale_linear * before) + self.scale_bias
        shift = units @ (self.shift * out) + x @ (self.shift_linear * before) + self.shift_bias
        return _STEEPEST * jnp.tanh(steep / _STEEPEST), shift

    def forward(self, x: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        scale, shift = self.parts(x)
        return x * jnp.exp(scale) + shift, jnp.sum(scale, axis=-1)

    def backward(self, y: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        """The inverse of `forward`, and the log determinant of `forward` there."""

        def known_further(_, x):
            """Right in one coordinate more: the first is so after the first pass, whatever `x` was."""
            scale, shift = self.parts(x)
            return (y - shift) * jnp.exp(-scale)

        x = jax.lax.fori_loop(0, y.shape[-1], known_further, y)
        return x, jnp.sum(self.parts(x)[0], axis=-1)

    def slopes(self, x: Float[Array, "num dim"]) -> tuple[Float[Array, "num dim dim"], Float[Array, "num dim"]]:
        r"""$J^\top$ of `forward`, upper triangular, and the gradient of its log determinant."""
        into, out, before = _masks(*self.inner.shape)
        units, linear = self._read(x)
        scale, _ = self.parts(x)
        by_units = (self.inner * into) * (1 - units**2)[:, None]
        straight = (1 - (linear / _LINEAR_TO) ** 2)[:, :, None] * (self.scale_linear * before)
        bent = (1 - (scale / _STEEPEST) ** 2)[:, None] * (by_units @ (self.scale * out) + straight)
        diagonal = jnp.eye(x.shape[1], dtype=x.dtype) * jnp.exp(scale)[:, None]
        jacobian = diagonal + (x * jnp.exp(scale))[:, None] * bent + by_units @ (self.shift * out)
        return jacobian + self.shift_linear * before, jnp.sum(bent, axis=2)

    def pulled(self, x: Float[Array, "num dim"], slopes: Float[Array, "num dim"]) -> "Layer":
        """The gradient of the sum of `slopes * forward(x)` by the numbers of the layer."""
        into, out, before = _masks(*self.inner.shape)
        units, linear = self._read(x)
        scale, _ = self.parts(x)
        steep = slopes * x * jnp.exp(scale) * (1 - (scale / _STEEPEST) ** 2)
        read = (steep @ (self.scale * out).T + slopes @ (self.shift * out).T) * (1 - units**2)
        return Layer(
            into * (x.T @ read), jnp.sum(read, axis=0),
            out * (units.T @ steep), before * (linear.T @ steep), jnp.sum(steep, axis=0),
            out * (units.T @ slopes), before * (x.T @ slopes), jnp.sum(slopes, axis=0),
        )  # fmt: skip

    def _read(self, x):
        """What s and t are made of: the units, and the coordinates themselves, bounded."""
        into, _, _ = _masks(*self.inner.shape)
        units = jnp.tanh(x @ (self.inner * into) + self.inner_bias)
        return units, _LINEAR_TO * jnp.tanh(x / _LINEAR_TO)


class Flow(eqx.Module):
    r"""The map $T$, with its numbers. A pytree of arrays: training moves them, a file holds them."""

    layers: Layer

    @property
    def num_layers(self) -> int:
        return self.layers.inner.shape[0]

    @property
    def dim(self) -> int:
        return self.layers.inner.shape[1]

    @property
    def num_units(self) -> int:
        return self.layers.inner.shape[2]

    def transport(self, u: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        r"""$T(u)$ and $\log|\det \partial T / \partial u|$, at a point or at many."""

        def through(x, layer):
            x, log_det = layer.forward(x)
            return x[..., ::-1], log_det

        x, log_dets = jax.lax.scan(through, u, self.layers)
        return self._in_order(x), jnp.sum(log_dets, axis=0)

    def inverse(self, x: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        r"""$u = T^{-1}(x)$ and $\log|\det \partial T / \partial u|$ there."""

        def back(y, layer):
            return layer.backward(y[..., ::-1])

        u, log_dets = jax.lax.scan(back, self._in_order(x), self.layers, reverse=True)
        return u, jnp.sum(log_dets, axis=0)

    def trail(self, u: Float[Array, "num dim"]) -> "Trail":
        r"""The way of points through the layers, with the score of the standard normal moved by $T$.

        Where $g$ is the score before a layer with Jacobian $J$, $J^{-\top}(g - \nabla\log|\det J|)$ is the one behind
        it: a triangular solve.
        """

        def through(carry, layer):
            x, score = carry
            jacobian, rise = layer.slopes(x)
            score = jax.vmap(solve_triangular)(jacobian, score - rise)
            return (layer.forward(x)[0][:, ::-1], score[:, ::-1]), (x, jacobian)

        (_, score), (before, jacobians) = jax.lax.scan(through, (u, -u), self.layers)
        return Trail(self._in_order(score), before, jacobians)

    def pull(self, trail: "Trail", slopes: Float[Array, "num dim"]) -> "Flow":
        """The gradient of the sum of `slopes * T(u)` by the numbers of the flow."""

        def back(slopes, passed):
            layer, x, jacobian = passed
            slopes = slopes[:, ::-1]
            return jnp.einsum("nji,ni->nj", jacobian, slopes), layer.pulled(x, slopes)

        passed = (self.layers, trail.before, trail.jacobians)
        return Flow(jax.lax.scan(back, self._in_order(slopes), passed, reverse=True)[1])

    def _in_order(self, x):
        """After an odd number of layers the coordinates stand backwards."""
        return x[..., ::-1] if self.num_layers % 2 else x


class Trail(NamedTuple):
    """What training needs to know of points on their way through a flow."""

    score: Float[Array, "num dim"]
    r"""$\nabla_x \log q(x)$ at $x = T(u)$, for $q$ the standard normal moved by $T$."""
    before: Float[Array, "layers num dim"]
    """Where the points are before each layer."""
    jacobians: Float[Array, "layers num dim dim"]
    """Of each layer there, transposed."""


def identity_flow(dim: int, dtype, num_layers: int = NUM_LAYERS, num_units: int | None = None) -> Flow:
    """The flow that moves nothing, ready to learn: only the units have numbers, the same ones in every flow."""
    return Flow(_layers(dim, num_layers, num_units or min(max(_FEWEST_UNITS, 2 * dim), _MOST_UNITS), np.dtype(dtype)))


def _layers(dim: int, num_layers: int, num_units: int, dtype) -> Layer:
    def zeros(*shape: int):
        return np.zeros((num_layers, *shape), dtype)

    inner = np.random.default_rng(0).standard_normal((num_layers, dim, num_units)) / math.sqrt(dim)
    return Layer(
        inner.astype(dtype), zeros(num_units), zeros(num_units, dim), zeros(dim, dim), zeros(dim),
        zeros(num_units, dim), zeros(dim, dim), zeros(dim),
    )  # fmt: skip


@functools.cache
def _masks(dim: int, num_units: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which coordinates a unit reads, which ones it speaks to, and which ones come before which: 0 or 1.

    Unit j reads the coordinates up to number j modulo dim - 1, and speaks to those behind.
    """
    order, last_read = np.arange(dim), np.arange(num_units) % max(1, dim - 1)
    into = order[:, None] <= last_read[None]
    out = last_read[:, None] < order[None]
    return into.astype(np.int8), out.astype(np.int8), (order[:, None] < order[None]).astype(np.int8)

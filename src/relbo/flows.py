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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

_Numbers = Array | np.ndarray
NUM_LAYERS = 3
_FEWEST_UNITS = 32
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

    def parts(self, x: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
        """s and t at a point; entry i of either depends on the entries of `x` before i alone."""
        into, out, before = _masks(*self.inner.shape)
        units = jnp.tanh(x @ (self.inner * into) + self.inner_bias)
        linear = _LINEAR_TO * jnp.tanh(x / _LINEAR_TO)
        steep = units @ (self.scale * out) + linear @ (self.scale_linear * before) + self.scale_bias
        shift = units @ (self.shift * out) + x @ (self.shift_linear * before) + self.shift_bias
        return _STEEPEST * jnp.tanh(steep / _STEEPEST), shift

    def forward(self, x: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        scale, shift = self.parts(x)
        return x * jnp.exp(scale) + shift, jnp.sum(scale)

    def backward(self, y: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """The inverse of `forward`, and the log determinant of `forward` there."""

        def known_further(_, x):
            """Right in one coordinate more: the first is so after the first pass, whatever `x` was."""
            scale, shift = self.parts(x)
            return (y - shift) * jnp.exp(-scale)

        x = jax.lax.fori_loop(0, y.shape[0], known_further, y)
        return x, jnp.sum(self.parts(x)[0])


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

    def transport(self, u: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        r"""$T(u)$ and $\log|\det \partial T / \partial u|$."""

        def through(x, layer):
            x, log_det = layer.forward(x)
            return x[::-1], log_det

        x, log_dets = jax.lax.scan(through, u, self.layers)
        return self._in_order(x), jnp.sum(log_dets)

    def inverse(self, x: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        r"""$u = T^{-1}(x)$ and $\log|\det \partial T / \partial u|$ there."""

        def back(y, layer):
            return layer.backward(y[::-1])

        u, log_dets = jax.lax.scan(back, self._in_order(x), self.layers, reverse=True)
        return u, jnp.sum(log_dets)

    def score(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        r"""$\nabla_x \log q(x)$ at $x = T(u)$, for $q$ the standard normal moved by $T$.

        Layer by layer: where $g$ is the score before a layer with Jacobian $J$, $J^{-\top}(g - \nabla\log|\det J|)$ is
        the one behind it, and $J$ is triangular.
        """

        def through(carry, layer):
            x, slope = carry
            rise = jax.grad(lambda at: layer.forward(at)[1])(x)
            jacobian = jax.jacfwd(lambda at: layer.forward(at)[0])(x)
            slope = solve_triangular(jacobian, slope - rise, trans=1, lower=True)
            return (layer.forward(x)[0][::-1], slope[::-1]), None

        (_, slope), _ = jax.lax.scan(through, (u, -u), self.layers)
        return self._in_order(slope)

    def _in_order(self, x):
        """After an odd number of layers the coordinates stand backwards."""
        return x[::-1] if self.num_layers % 2 else x


def identity_flow(dim: int, dtype, num_layers: int = NUM_LAYERS, num_units: int | None = None) -> Flow:
    """The flow that moves nothing, ready to learn: only the units have numbers, the same ones in every flow."""
    return Flow(_layers(dim, num_layers, num_units or max(_FEWEST_UNITS, 2 * dim), np.dtype(dtype)))


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

r"""A small autoregressive flow: coordinates that are learned, $x = T(u)$, instead of only shifted, scaled and turned.

Each layer moves coordinate $i$ by what the ones before it say,

$$ x_i \leftarrow x_i\, e^{s_i(x_{<i})} + t_i(x_{<i}), $$

and the next layer reads the coordinates in the opposite order; before the first, every coordinate may be bent by itself
(`families/skew.py`). $s$ and $t$ have a linear part and one of `tanh` units:
the linear part of $s$ is a scale that depends on a scale, as in hierarchical models, and that of $t$ a correlation.
A point is moved, with $\log|\det \partial T/\partial u|$, by one pass; the inverse finds one coordinate after the
other, and is exact. Written here, and not taken from a library: layers of one shape in one `scan` are one small
program, whatever their number; and the inverse, and the score of a transported normal, which training needs, cost about
as much as a pass, where libraries have an inverse of as many passes as there are coordinates, and the score as its
derivative.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from relbo.families.skew import Skew, no_skew

_Numbers = Array | np.ndarray
NUM_LAYERS = 3  # each in the reverse order of the one before: every pair is met both ways
_FEWEST_UNITS, MOST_UNITS = 32, 64  # twice the dimension, between these: fewer cannot bend, more are slow to learn
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

    def masked(self) -> "Layer":
        """The numbers that count: those by which a coordinate is moved by ones before it alone."""
        if self.inner.shape[0] == 0:  # no layers: the masks would be as large as the square of the dimension
            return self
        into, out, before = _masks(*self.inner.shape[-2:])
        return Layer(
            self.inner * into, self.inner_bias, self.scale * out, self.scale_linear * before, self.scale_bias,
            self.shift * out, self.shift_linear * before, self.shift_bias,
        )  # fmt: skip

    def look(self, x: Float[Array, "*num dim"]) -> "Look":
        """s and t at points, and what they are made of. Of this and the methods below, `self` is masked."""
        units, linear = jnp.tanh(x @ self.inner + self.inner_bias), _bounded(x)
        steep = _steep(units @ self.scale + linear @ self.scale_linear + self.scale_bias)
        return Look(x, units, linear, steep, units @ self.shift + x @ self.shift_linear + self.shift_bias)

    def backward(self, y: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        """Where points come from, and the log determinant of the way here.

        One coordinate after the other: of what is known, the units and the sums hold all that the next one needs.
        """

        def known_further(carry, row):
            x, read = carry
            index, y_now, layer = row
            units = jnp.tanh(read + self.inner_bias)
            steep = _steep(units @ layer.scale + _bounded(x) @ layer.scale_linear + layer.scale_bias)
            x_now = (y_now - units @ layer.shift - x @ layer.shift_linear - layer.shift_bias) * jnp.exp(-steep)
            return (x.at[..., index].set(x_now), read + x_now[..., None] * layer.inner), steep

        nothing = (jnp.zeros_like(y), jnp.zeros((*y.shape[:-1], self.inner.shape[1]), y.dtype))
        columns = self._rows(self.scale_linear.T, self.shift_linear.T)
        (x, _), steep = jax.lax.scan(known_further, nothing, (jnp.arange(y.shape[-1]), jnp.moveaxis(y, -1, 0), columns))
        return x, jnp.sum(steep, axis=0)

    def score(self, at: "Look", before: Float[Array, "num dim"]) -> Float[Array, "num dim"]:
        r"""The score of a law behind the layer, from that `before` it: $J^{-\top}(g - \nabla\log|\det J|)$.

        $J^\top$ is upper triangular: the last coordinate is known at once, and the ones before it by what those behind
        say through the units. Without the matrices themselves, which would cost ten times as much in 100 dimensions.
        """
        grown, bent = jnp.exp(at.steep), at.bent
        open_units, open_linear = (1 - at.units**2).T, at.open_linear.T

        def known_further(carry, row):
            by_units, by_scales, by_shifts = carry
            index, layer, g, grown, tall, bent, open_now = row
            pulled = layer.inner @ (open_units * by_units) + layer.shift_linear @ by_shifts
            shifts = (g - pulled - open_now * (layer.scale_linear @ by_scales)) / grown
            scales = shifts * tall + bent
            by_units = by_units + layer.scale[:, None] * scales + layer.shift[:, None] * shifts
            return (by_units, by_scales.at[index].set(scales), by_shifts.at[index].set(shifts)), shifts

        nothing = (jnp.zeros_like(open_units), jnp.zeros_like(open_linear), jnp.zeros_like(open_linear))
        rows = self._rows(self.scale_linear, self.shift_linear)
        along = (jnp.arange(before.shape[1]), rows, before.T, grown.T, (at.x * grown * bent).T, bent.T, open_linear)
        return jax.lax.scan(known_further, nothing, along, reverse=True)[1].T

    def pulled(
        self, at: "Look", slopes: Float[Array, "num dim"], rise: Float[ArrayLike, ""]
    ) -> tuple["Layer", Float[Array, "num dim"]]:
        """Of the sum of `slopes * moved` and of `rise` times the log determinant, the gradient by the numbers of the
        layer (those that count), and by the points."""
        grown = jnp.exp(at.steep)
        steep = (slopes * at.x * grown + rise) * at.bent
        read = (steep @ self.scale.T + slopes @ self.shift.T) * (1 - at.units**2)
        by_x = slopes * grown + read @ self.inner.T + at.open_linear * (steep @ self.scale_linear.T)
        by_numbers = Layer(
            at.x.T @ read, jnp.sum(read, axis=0), at.units.T @ steep, at.linear.T @ steep, jnp.sum(steep, axis=0),
            at.units.T @ slopes, at.x.T @ slopes, jnp.sum(slopes, axis=0),
        )  # fmt: skip
        return by_numbers.masked(), by_x + slopes @ self.shift_linear.T

    def _rows(self, scale_linear, shift_linear) -> "_Rows":
        return _Rows(
            self.inner, self.scale.T, scale_linear, self.scale_bias, self.shift.T, shift_linear, self.shift_bias
        )


class Look(NamedTuple):
    """What a layer makes of points `x`."""

    x: Float[Array, "*num dim"]
    units: Float[Array, "*num units"]
    linear: Float[Array, "*num dim"]
    """The coordinates themselves, bounded."""
    steep: Float[Array, "*num dim"]
    """s; its sum is the log determinant."""
    shift: Float[Array, "*num dim"]
    """t."""

    @property
    def moved(self) -> Float[Array, "*num dim"]:
        return self.x * jnp.exp(self.steep) + self.shift

    @property
    def bent(self) -> Float[Array, "*num dim"]:
        """The derivative of s, by what it is a bounded version of."""
        return 1 - (self.steep / _STEEPEST) ** 2

    @property
    def open_linear(self) -> Float[Array, "*num dim"]:
        """The derivative of `linear`."""
        return 1 - (self.linear / _LINEAR_TO) ** 2


class _Rows(NamedTuple):
    """What of a layer concerns a coordinate, coordinate by coordinate."""

    inner: Float[_Numbers, "dim units"]
    scale: Float[_Numbers, "dim units"]
    scale_linear: Float[_Numbers, "dim dim"]
    scale_bias: Float[_Numbers, " dim"]
    shift: Float[_Numbers, "dim units"]
    shift_linear: Float[_Numbers, "dim dim"]
    shift_bias: Float[_Numbers, " dim"]


def _bounded(x):
    return _LINEAR_TO * jnp.tanh(x / _LINEAR_TO)


def _steep(s):
    return _STEEPEST * jnp.tanh(s / _STEEPEST)


class Way(NamedTuple):
    """The way of points through a flow."""

    start: Float[Array, "num dim"]
    layers: Look
    """What the layers make of them, stacked."""
    end: Float[Array, "num dim"]
    log_dets: Float[Array, " num"]


class Flow(eqx.Module):
    r"""The map $T$, with its numbers. A pytree of arrays: training moves them, a file holds them."""

    layers: Layer
    skew: Skew | None = None
    """What bends every coordinate by itself, before the layers."""

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
            at = layer.look(x)
            return at.moved[..., ::-1], jnp.sum(at.steep, axis=-1)

        x, log_det = self._skewed(u)
        x, log_dets = jax.lax.scan(through, x, self.layers.masked())
        return self._in_order(x), log_det + jnp.sum(log_dets, axis=0)

    def inverse(self, x: Float[Array, "*num dim"]) -> tuple[Float[Array, "*num dim"], Float[Array, "*num"]]:
        r"""$u = T^{-1}(x)$ and $\log|\det \partial T / \partial u|$ there."""

        def back(y, layer):
            return layer.backward(y[..., ::-1])

        u, log_dets = jax.lax.scan(back, self._in_order(x), self.layers.masked(), reverse=True)
        u, log_det = (u, 0.0) if self.skew is None else self.skew.back(u)
        return u, log_det + jnp.sum(log_dets, axis=0)

    def way(self, u: Float[Array, "num dim"]) -> Way:
        """The way of points, from which `score` and `pull` go back."""

        def through(x, layer):
            at = layer.look(x)
            return at.moved[:, ::-1], at

        x, log_det = self._skewed(u)
        x, looks = jax.lax.scan(through, x, self.layers.masked())
        return Way(u, looks, self._in_order(x), log_det + jnp.sum(looks.steep, axis=(0, 2)))

    def score(self, way: Way) -> Float[Array, "num dim"]:
        r"""$\nabla_x \log q(x)$ at $x = T(u)$, for $q$ the standard normal moved by $T$."""

        def through(score, passed):
            layer, at = passed
            return layer.score(at, score)[:, ::-1], None

        before = -way.start if self.skew is None else self.skew.score(way.start)
        return self._in_order(jax.lax.scan(through, before, (self.layers.masked(), way.layers))[0])

    def pull(
        self, way: Way, slopes: Float[Array, "num dim"], rise: Float[ArrayLike, ""] = 0.0
    ) -> tuple["Flow", Float[Array, "num dim"]]:
        """Of the sum of `slopes * T(u)` and of `rise` times the log determinant, the gradient by the numbers of the
        flow, and by `u`."""

        def back(slopes, passed):
            layer, at = passed
            by_numbers, slopes = layer.pulled(at, slopes[:, ::-1], rise)
            return slopes, by_numbers

        slopes, layers = jax.lax.scan(back, self._in_order(slopes), (self.layers.masked(), way.layers), reverse=True)
        if self.skew is None:
            return Flow(layers), slopes
        by_skew, slopes = self.skew.pulled(way.start, slopes, rise)
        return Flow(layers, by_skew), slopes

    def _skewed(self, u):
        return (u, jnp.zeros(u.shape[:-1], u.dtype)) if self.skew is None else self.skew.move(u)

    def _in_order(self, x):
        """After an odd number of layers the coordinates stand backwards."""
        return x[..., ::-1] if self.num_layers % 2 else x


def identity_flow(
    dim: int, dtype, num_layers: int = NUM_LAYERS, num_units: int | None = None, skewed: bool = False
) -> Flow:
    """The flow that moves nothing, ready to learn: only the units have numbers, the same ones in every flow."""
    num_units = num_units or min(max(_FEWEST_UNITS, 2 * dim), MOST_UNITS)
    return Flow(_layers(dim, num_layers, num_units, np.dtype(dtype)), no_skew(dim, dtype) if skewed else None)


def _layers(dim: int, num_layers: int, num_units: int, dtype) -> Layer:
    def zeros(*shape: int):
        return np.zeros((num_layers, *shape), dtype)

    rng = np.random.default_rng(0)
    inner = rng.standard_normal((num_layers, dim, num_units)) / math.sqrt(dim)
    bias = rng.standard_normal((num_layers, num_units))  # units that are all odd about zero learn no parabola
    return Layer(
        inner.astype(dtype), bias.astype(dtype), zeros(num_units, dim), zeros(dim, dim), zeros(dim),
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

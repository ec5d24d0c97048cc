r"""The functions that PyTensor's graphs call, as JAX needs them: with finite slopes.

PyMC writes a density that needs two formulas as `switch(condition, a, b)`. PyTensor simplifies the gradient of that
before it computes it. JAX computes both branches, and multiplies the slope of the one that is not taken by zero: NaN,
if that slope is infinite. So every function here has a slope that is cut off at the largest finite number. The values
are not touched: where a branch that is not taken overflows to infinity and is then multiplied, the gradient is still
NaN, as for an interval more than 20 standard deviations away in float32.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from relbo.runtime.require import require

_SWITCH, _DEPTH = 3.0, 32  # see `erfcx`


def _with_slope(slope: Callable[[Array, Array], Array]) -> Callable[[Callable[[Array], Array]], Any]:
    """Give a function of one array its derivative, as a function of its argument and its value."""

    def decorate(function: Callable[[Array], Array]) -> Any:
        smooth = jax.custom_jvp(function)

        @smooth.defjvp
        def jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Array, Array]:
            value = smooth(*primals)
            limit = jnp.finfo(value.dtype).max
            return value, jnp.clip(slope(*primals, value), -limit, limit) * tangents[0]

        return smooth

    return decorate


@_with_slope(lambda x, value: value)
def exp(x: Array) -> Array:
    return jnp.exp(x)


@_with_slope(lambda x, value: 1 / x)
def log(x: Array) -> Array:
    return jnp.log(x)


@_with_slope(lambda x, value: 1 / (1 + x))
def log1p(x: Array) -> Array:
    return jnp.log1p(x)


@_with_slope(lambda x, value: 0.5 / value)
def sqrt(x: Array) -> Array:
    return jnp.sqrt(x)


@_with_slope(lambda x, value: -1 / jnp.expm1(-x))
def log1mexp(x: Array) -> Array:
    """log(1 - exp(x)) for negative x."""
    return jnp.where(x < -jnp.log(2.0), jnp.log1p(-jnp.exp(x)), jnp.log(-jnp.expm1(x)))


@_with_slope(lambda x, value: 2 * x * value - 2 * jnp.pi**-0.5)
def erfcx(x: Array) -> Array:
    r"""The scaled complementary error function $e^{x^2} \operatorname{erfc}(x)$.

    Up to 3 by its definition, where the product loses no more than a few units in the last place; beyond, by Laplace's
    continued fraction (Abramowitz and Stegun 7.1.14),

    $$\sqrt{\pi}\, e^{x^2} \operatorname{erfc}(x) =
    \cfrac{1}{x + \cfrac{1/2}{x + \cfrac{1}{x + \cfrac{3/2}{x + \dots}}}},$$

    of which 32 levels are taken, enough for float64 from there on. It overflows for large negative $x$, as it should.
    """
    near, far = jnp.minimum(x, _SWITCH), jnp.maximum(x, _SWITCH)
    tail = far
    for level in range(_DEPTH, 0, -1):
        tail = far + 0.5 * level / tail
    return jnp.where(x < _SWITCH, jnp.exp(near**2) * erfc(near), jnp.pi**-0.5 / tail)


@_with_slope(lambda x, value: -2 * jnp.pi**-0.5 / erfcx(x))
def log_erfc(x: Array) -> Array:
    """log(erfc(x)), far beyond where erfc underflows."""
    return jnp.where(x < 1, jnp.log(erfc(x)), jnp.log(erfcx(x)) - x**2)


def is_positive_definite(matrix: Float[Array, "n n"]) -> Array:
    return jnp.all(jnp.isfinite(jnp.linalg.cholesky(matrix)))


@functools.cache
def replacements() -> dict[type, Callable[..., Any]]:
    """The JAX function for every class of PyTensor operation that gets one here.

    PyTensor translates all but two of them itself: `Erfcx` would need TensorFlow Probability, `PosDefMatrix` is PyMC's.
    """
    basic, special = require("pytensor.scalar.basic", extra="pymc"), require("pytensor.scalar.math", extra="pymc")
    return {
        basic.Exp: exp,
        basic.Log: log,
        basic.Log1p: log1p,
        basic.Sqrt: sqrt,
        special.Softplus: jax.nn.softplus,
        special.Log1mexp: log1mexp,
        special.Erfcx: erfcx,
        require("pymc.distributions.multivariate", extra="pymc").PosDefMatrix: is_positive_definite,
    }


@functools.cache
def jax_backend() -> ModuleType:
    """`pytensor.link.jax.dispatch`, imported so that JAX's configuration stays as it was.

    The import sets `jax_enable_x64` to match PyTensor's `floatX`, for the whole process. That is the user's choice.
    """
    with ThreadPoolExecutor(1) as elsewhere:  # a thread sees the global value, whatever `jax.enable_x64()` is open here
        enabled = elsewhere.submit(lambda: jax.config.values["jax_enable_x64"]).result()
    try:
        return require("pytensor.link.jax.dispatch", extra="pymc")
    finally:
        jax.config.update("jax_enable_x64", enabled)

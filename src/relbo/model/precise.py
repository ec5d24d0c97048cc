r"""Values in float64, where float32 would round them by more than a fit decides on.

The log density of a million rows is near $-4 \cdot 10^5$, where neighbours in float32 are 0.03 nats apart. Slopes do
not suffer, for they are sums that nearly cancel, and all that climbs goes by them. But what is compared (ELBO,
improvement, duality gap, importance ratios) are differences of values. So those who compare ask the door for values
alone, and where the first of them are large, all are computed in float64, whatever JAX is set to in the user's program.
That costs up to two and a half times as much as float32 with slopes, where a row is little more than an exponential.
"""

import logging
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from relbo.model.whitening import Whitened
from relbo.runtime.compiling import are_many, compile_options
from relbo.runtime.interrupts import interruption_in
from relbo.runtime.spreading import everywhere, here, mesh_of
from relbo.targets.precision import in_double, widened

_COARSE = 2.5e-4
"""Nats: half of the least improvement that a fit decides on."""
_EPS, _DOUBLE_EPS = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)
_IS_SAME = 1e-3
"""Of the last digit in float32: numbers that are all so near to one were computed in float32."""


class Values(NamedTuple):
    """log p at points, on the host, and what its last digit is worth there, in nats."""

    log_p: np.ndarray
    rounding: float


def is_coarse(log_p: np.ndarray) -> bool:
    """Whether float32 rounds values of this size by more than a fit decides on."""
    finite = np.abs(log_p[np.isfinite(log_p)])
    return bool(finite.size) and _EPS * float(finite.min()) > _COARSE


def rounding_of(values: np.ndarray) -> float:
    """What the last digit of values is worth: that of float32 if they were computed so, whatever they are held in."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(finite - finite.astype(np.float32))
        single = bool(np.all(off <= _IS_SAME * _EPS * np.abs(finite)))
    return (_EPS if single else _DOUBLE_EPS) * float(np.median(np.abs(finite)))


_programs: dict[Any, Any] = {}
"""By the structure of the target; None where a model cannot be computed in float64."""
_known: set[Any] = set()
"""Of those structures, the ones for which it has been done."""


class Precise:
    """The log density of a target at points of its affine coordinates, in float64; without the map's log determinant.

    For as long as it lives it holds the data in float64.
    """

    def __init__(self, target: Whitened, is_tight: bool = False):
        self._is_tight = is_tight
        dynamic, static = eqx.partition(target.affine, eqx.is_array)
        leaves, structure = jax.tree.flatten(static)
        arrays, shape = jax.tree.flatten(dynamic)
        self._mesh = mesh_of(arrays)
        many = are_many(arrays)
        self._identity = (structure, tuple(leaves), shape, self._mesh, many)
        if self._identity not in _programs:

            def evaluate(arrays, points):
                whole = in_double(eqx.combine(jax.tree.unflatten(shape, arrays), static))
                return jax.vmap(lambda u: whole.target.log_density(whole.unwhiten(u)))(points.astype(jnp.float64))

            _programs[self._identity] = jax.jit(evaluate, **compile_options(mesh=self._mesh, over_data=many))
        self._arrays, self._are_wide = [self._given(array) for array in arrays], False

    def __call__(self, points: Any) -> np.ndarray:
        """At a block of points. Values alone have no more temporaries than values and slopes have in float32; but a
        block that was made smaller to fit into memory is halved."""
        points = np.asarray(points)
        halves = np.split(points, 2) if self._is_tight and len(points) % 2 == 0 else [points]
        with jax.enable_x64(True):
            if not self._are_wide:
                self._arrays, self._are_wide = widened(self._arrays), True
            program = _programs[self._identity]
            parts = [program(self._arrays, self._given(half)) for half in halves]
            return np.concatenate([np.asarray(part if self._mesh is None else here(part)) for part in parts])

    def _given(self, array: Any) -> Any:
        """An array as the program takes it: on all devices, where the data lie on several."""
        return array if self._mesh is None else everywhere(array, self._mesh)

    def is_possible(self, points: Any) -> bool:
        """Whether it can be done: not where the device has no float64, nor where a model insists on float32."""
        if jax.default_backend() == "tpu" or _programs[self._identity] is None:
            return False
        if self._identity in _known:
            return True
        try:
            self(points)
        except Exception as error:  # where float32 did not fail: whatever it is, it has to be float32
            if interruption_in(error) is not None:
                raise
            logging.getLogger("relbo").debug("the log density cannot be computed in float64", exc_info=True)
            _programs[self._identity] = None
            return False
        _known.add(self._identity)
        return True

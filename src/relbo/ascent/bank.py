"""Noise for many steps of an ascent, made by one call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo.runtime.compiling import host_random
from relbo.runtime.quasi import MOST_COORDINATES, quasi_normals

_BANK = 20  # steps whose noise is made by one call


class Bank:
    """Standard normals for the steps of an ascent, `each` for each of a stack, made many steps at a time."""

    def __init__(self, key, num: int, each: int, dim: int, dtype):
        self.key, self._each, self._dtype = key, each, np.dtype(dtype)
        self._shape = (_BANK, num * each, dim)
        self._number, self._rows = -1, None

    def at(self, step: int) -> tuple[Any, np.ndarray, int]:
        """The noise of `_BANK` steps, and which of them is meant: taken apart inside the program that uses it."""
        number = step // _BANK
        if number != self._number:
            self._rows = jax.device_put(self._normals(host_random(self.key, number)))
            self._number = number
        return self._rows, np.asarray(step % _BANK, np.int32), self._each

    def _normals(self, rng: np.random.Generator) -> np.ndarray:
        num_steps, num_rows, dim = self._shape
        if dim > MOST_COORDINATES:
            return rng.standard_normal(self._shape, self._dtype)
        normals = quasi_normals(rng, num_rows // self._each, num_steps * self._each, dim)
        by_step = normals.reshape(num_steps, self._each, -1, dim).swapaxes(1, 2)
        return by_step.reshape(self._shape).astype(self._dtype)


def noise_at(bank, num: int) -> Float[Array, "stack num dim"]:
    """The antithetic draws of each of a stack of `num`."""
    rows, index, each = bank
    half = rows[index].reshape(num, each, -1)
    return jnp.concatenate([half, -half], axis=1)

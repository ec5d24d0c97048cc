"""A compiled Stan program in this process: loaded by ctypes, its functions registered with XLA."""

import ctypes
import functools
import hashlib
import json
import pathlib
import threading
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

_HANDLERS = ("log_density", "gradient", "constrain", "unconstrain")
_LOADING = threading.Lock()


@dataclass(frozen=True)
class Description:
    """The names and shapes of a program with its data, as Stan writes them (`theta.1`, one-based)."""

    coordinates: list[str]
    """One name for every unconstrained coordinate."""
    entries: list[str]
    """One name for every number that `constrain` gives, in its order."""
    parameters: list[str]
    variables: list[str]
    """Parameters, transformed parameters, generated quantities."""
    shapes: list[list[int]]
    """Of the variables."""


class Library:
    """One shared object. Never unloaded: programs that JAX has compiled hold the addresses of its functions."""

    def __init__(self, path: pathlib.Path):
        self.name = f"relbo_stan_{path.stem}"
        """What the registered functions' names begin with: the same in every process that runs this program."""
        self._object = ctypes.CDLL(str(path))
        self._object.relbo_make.restype = self._object.relbo_evaluate.restype = ctypes.c_char_p
        for what in _HANDLERS:
            handler = jax.ffi.pycapsule(getattr(self._object, f"relbo_{what}"))
            jax.ffi.register_ffi_target(f"{self.name}_{what}", handler, platform="cpu")

    def make(self, data: str, seed: int) -> tuple[int, Description]:
        """The program with its data (JSON), as the handle by which the registered functions find it.

        The handle is a hash of what it stands for. The same data give the same handle in every process, and the glue
        looks a handle up instead of trusting it: one that means nothing here is an error, not a stray pointer.
        """
        digest = hashlib.sha256(f"{seed} {data}".encode()).digest()[:8]
        handle = int.from_bytes(digest, "little", signed=True)
        failed = ctypes.c_int()
        answer = self._object.relbo_make(
            ctypes.c_int64(handle), data.encode(), ctypes.c_uint(seed), ctypes.byref(failed)
        ).decode()
        if failed.value:
            raise ValueError(answer)
        return handle, Description(**json.loads(answer))

    def evaluate(self, handle: int, z: np.ndarray) -> tuple[float, np.ndarray, str]:
        """log p and its gradient at one point, and what Stan says if it rejects the point."""
        point, out = np.ascontiguousarray(z, np.float64), np.empty(1 + z.size)
        words = self._object.relbo_evaluate(ctypes.c_int64(handle), _pointer(point), point.size, _pointer(out))
        return float(out[0]), out[1:], words.decode()


def _pointer(array: np.ndarray) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_double))


def load(path: pathlib.Path) -> Library:
    """The library at `path`, which is loaded and registered once."""
    with _LOADING:
        return _load(path)


@functools.cache
def _load(path: pathlib.Path) -> Library:
    return Library(path)

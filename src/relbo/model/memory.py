"""How much memory a fit may take, and how many points at once fit into it.

The rule is one number, `points_at_once`: XLA says what one more point costs, and half of the memory is for points. The
rest is for the mixtures and the draws, which are small unless there are very many dimensions: then `check_size` speaks
before anything is computed, and `affordable_draws` says how many draws can be measured at a time.
"""

import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo.families import DENSE_LIMIT, AbstractFamily, Cholesky, LocationScale, Normal
from relbo.mixture import empty_mixture
from relbo.model.blocks import block_of
from relbo.runtime.compiling import temporary_bytes
from relbo.targets import AbstractTarget

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_DEFAULT = 10**9  # more at once is no faster
_DRAWS = 2 * 10**9  # what measured draws may take a quarter of
_COPIES = 6  # of a mixture, in a refinement: old, new, position, base, curvature, and what is computed from them
_RUNNERS = 7  # of the race for the affine map


def as_bytes(memory: Any) -> int:
    """A number of bytes from an integer or from a string such as "2GB", "500 MB" or "1.5 GiB"."""
    number: float = memory if type(memory) is int else 0
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?I?)B?\s*", memory.upper())
        if match and match[2] in _UNITS:
            number = float(match[1]) * _UNITS[match[2]]
    if number < 1:
        raise ValueError(f'max_memory must be a number of bytes or a string such as "2GB" or "500 MB", got {memory!r}.')
    return int(number)


def device_memory() -> int:
    """The bytes that the device has, or for the CPU those that the machine (or its container) has."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * 10**9
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(total, int(file.read()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return total


def points_at_once(target: AbstractTarget, max_memory: int | None) -> int | None:
    """How many points fit, a power of two; None where nothing need be limited (and then nothing is compiled), or where
    data are streamed, which has a limit of its own (`AbstractTarget.within`).

    In few dimensions the door's blocks, made for the cache, are small. In many, a point may cost far more than a number
    for each row: a product of two factors has as many as their matrix.
    """
    if target.streams or (max_memory is None and target.dim <= DENSE_LIMIT):
        return None
    memory = min(_DEFAULT, device_memory() // 4) if max_memory is None else max_memory
    shared, each = _cost(target)
    if shared + each > memory:
        raise ValueError(
            f"One evaluation of the log density takes {_readable(shared + each)}, and max_memory is "
            f"{_readable(memory)}. Give more, or use minibatches (relbo.from_numpyro and relbo.from_pymc understand "
            "those of the model)."
        )
    fitting = max(1, int((memory / 2 - shared) / max(each, 1)))
    return min(block_of(target), 2 ** int(np.log2(fitting)))


def _cost(target: AbstractTarget) -> tuple[int, int]:
    """Bytes of temporaries of an evaluation (with its gradient, if there is one): for all points, and for each."""

    def evaluate(target, points):
        at_point = jax.value_and_grad(target.log_density) if target.differentiable else target.log_density
        return jax.vmap(at_point)(points)

    few, more = 1, 8
    small, large = (
        temporary_bytes(evaluate, target, jnp.zeros((num, target.dim), target.dtype)) for num in (few, more)
    )
    each = max(0, large - small) // (more - few)
    return max(0, small - few * each), each


def check_size(family: AbstractFamily, dim: int, dtype, capacity: int, dense_map: bool, max_memory: int | None) -> None:
    """Raise a ValueError if the mixture, or the affine map, cannot fit; by default, into what the machine has."""
    memory = device_memory() if max_memory is None else max_memory
    limit = "this machine has" if max_memory is None else "max_memory is"
    advice = 'Use family="mean_field_normal", or give max_memory as much as this.'
    component = _bytes_of(family, dim, dtype)
    _check(
        f"{capacity} components of {_readable(component)} each in {dim:,} dimensions",
        _COPIES * capacity * component,
        memory,
        limit,
        advice,
    )
    if dense_map:
        component = _bytes_of(LocationScale(Normal(), Cholesky()), dim, dtype)
        advice = 'Use precondition="low_rank" or "diagonal".'
        _check(f"A dense affine map in {dim:,} dimensions", _COPIES * _RUNNERS * component, memory, limit, advice)


def _check(what: str, needed: int, memory: int, limit: str, advice: str) -> None:
    if needed > memory:
        raise ValueError(f"{what} need about {_readable(needed)} to fit; {limit} {_readable(memory)}. {advice}")


def _bytes_of(family: AbstractFamily, dim: int, dtype) -> int:
    mixture = jax.eval_shape(lambda: empty_mixture(family, dim, 1, dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(mixture.params))


def affordable_draws(num_draws: int, dim: int, dtype, max_memory: int | None) -> int:
    """As many draws as asked for, or fewer (by halves) where they would take more than a quarter of the memory.

    What is measured draws two and a half times as often (see `objectives/measuring.py`), and each draw exists twice.
    """
    memory = min(_DRAWS, device_memory()) if max_memory is None else max_memory
    affordable = memory / 4 / (5 * dim * np.dtype(dtype).itemsize)
    return max(1, num_draws // 2 ** max(0, int(np.ceil(np.log2(num_draws / affordable)))))


def _readable(num_bytes: float) -> str:
    power = min(4, int(np.log10(max(num_bytes, 1)) / 3))
    return f"{num_bytes / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"

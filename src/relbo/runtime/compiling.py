"""The one way programs are compiled here."""

import contextlib
import functools
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import numpy as np

from relbo.runtime.folders import cache_folder
from relbo.runtime.spreading import everywhere, here, mesh_of, the_same

F = TypeVar("F", bound=Callable)

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_SMALL = 2**18
"""Numbers in the largest argument of a program that is not worth optimising: it runs in about a millisecond."""
_MANY = 2**15
"""Numbers in the largest array of data from which on the code counts that XLA makes of a loop over them: a fit goes
through it ten thousand times."""
_KEPT = 64
"""Programs of one function, by everything about its arguments that is not an array; the oldest are forgotten."""
_ARRAYS = (jax.Array, np.ndarray, np.generic)


def compiled(function: F, *, runs_once: bool = False, runs_often: bool = False, over_data: bool = False) -> F:
    """`jax.jit` where arrays are arguments and everything else is fixed, with options for the device that there is.

    On small problems compiling is most of what a user waits for. On the CPU, LLVM's first optimisation level compiles
    our programs in half the time of the default and runs them as fast (XLA calls libraries for what is heavy), and
    XLA's older code generator takes half of that again, for code as fast; but not where it loops over many rows of data
    (`over_data`). Programs of small arguments, and those that run once in a fit, are not optimised at all: that is
    three times as fast to compile, and what they lose is less, unless a fit runs them thousands of times.

    It does what `equinox.filter_jit` does, by hand because a fit calls small programs tens of thousands of times: here
    a call costs 20 microseconds, there 110. The device, and the size of the arguments, are looked up at the first call.
    Where an argument is spread over several devices, the program runs on all of them (see `runtime/spreading.py`).
    """

    @functools.lru_cache(maxsize=_KEPT)
    def program(optimized: bool, structure, fixed: tuple, mesh):
        def run(arrays):
            rest = iter(arrays)
            args, kwargs = jax.tree.unflatten(structure, [next(rest) if leaf is None else leaf for leaf in fixed])
            with full_precision():
                return _Result.of(function(*args, **kwargs))

        run.__name__ = run.__qualname__ = function.__name__
        return jax.jit(run, **compile_options(optimized, mesh, over_data))

    @functools.wraps(function)
    def call(*args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays, fixed = _split(leaves)
        optimized = runs_often or over_data or not (runs_once or all(leaf.size < _SMALL for leaf in arrays))
        mesh = mesh_of(arrays)
        run = program(optimized, structure, fixed, mesh)
        result = run(arrays) if mesh is None else here(run([everywhere(leaf, mesh) for leaf in arrays]))
        return result.value() if type(result) is _Result else result

    return call  # type: ignore[return-value]


@jax.tree_util.register_pytree_node_class
class _Result:
    """What a program returns, where not all of it is arrays: the rest is known when it is traced."""

    def __init__(self, arrays: list, structure: Any, fixed: tuple):
        self.arrays, self.structure, self.fixed = arrays, structure, fixed

    @classmethod
    def of(cls, value: Any) -> Any:
        leaves, structure = jax.tree.flatten(value)
        arrays, fixed = _split(leaves)
        return value if len(arrays) == len(leaves) else cls(arrays, structure, fixed)

    def value(self) -> Any:
        rest = iter(self.arrays)
        return jax.tree.unflatten(self.structure, [next(rest) if leaf is None else leaf for leaf in self.fixed])

    def tree_flatten(self):
        return self.arrays, (self.structure, self.fixed)

    @classmethod
    def tree_unflatten(cls, fixed, arrays):
        return cls(list(arrays), *fixed)


def _split(leaves: list) -> tuple[list, tuple]:
    """The arrays, and all leaves with None in place of them."""
    is_array = [isinstance(leaf, _ARRAYS) for leaf in leaves]
    fixed = [None if traced else leaf for leaf, traced in zip(leaves, is_array, strict=True)]
    return list(itertools.compress(leaves, is_array)), tuple(fixed)


def temporary_bytes(function: Callable, *args: Any, over_data: bool = False) -> int:
    """What XLA sets aside for the temporaries of `function`, once compiled; 0 where it does not say."""
    options = compile_options(optimized=False, over_data=over_data)
    analysis = jax.jit(function, **options).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes if analysis is not None else 0


class _Clock:
    """The wall-clock seconds in which JAX traced, lowered or compiled, since the first look."""

    def __init__(self):
        self.spans: list[tuple[float, float]] = []
        self.is_compiling = False
        self.counted = 0.0
        jax.monitoring.register_event_time_span_listener(self._listen)

    def _listen(self, event: str, start_time: float, end_time: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self.spans.append((start_time, end_time))
            self.is_compiling = event == _LOWERED  # what was lowered goes to XLA next, which takes the longest

    def seconds(self) -> float:
        """The length of the union of the spans: one program may be traced inside another."""
        total, covered_to = 0.0, -math.inf
        for start, end in sorted(self.spans):
            total += max(0.0, end - max(start, covered_to))
            covered_to = max(covered_to, end)
        self.counted, self.spans = self.counted + total, []
        return self.counted


@functools.cache
def _clock() -> _Clock:
    return _Clock()


def compile_seconds() -> float:
    """Seconds that JAX has spent on tracing and compiling, from the first call of this function on."""
    return _clock().seconds()


def is_compiling() -> bool:
    """Whether XLA is at work, as far as JAX tells: for people to read."""
    return _clock().is_compiling


def host_split(key, num: int) -> list:
    """Keys for use on the host: `fold_in` is one small program, where each number of keys to `split` is another."""
    return [jax.random.fold_in(key, index) for index in range(num)]


def host_random(key, *numbers: int) -> np.random.Generator:
    """NumPy's generator, for a key and further numbers.

    Noise of components is made by it, too: JAX's generator takes half a second to compile, and four times as long to
    run on the CPU.
    """
    return np.random.default_rng([*np.asarray(jax.random.key_data(key)).ravel().tolist(), *numbers])


@functools.cache
def compile_options(optimized: bool = True, mesh: Any = None, over_data: bool = False) -> dict[str, Any]:
    """Arguments of `jax.jit` for the device that there is; results are the same on all devices of a mesh.

    With `over_data`, for programs that loop over many rows, by XLA's newer code generator: a gradient of a logistic
    regression takes 1.7 times as long by the older one, and with a mask of rows 3.5 times.
    """
    results = {} if mesh is None else {"out_shardings": the_same(mesh)}
    if jax.default_backend() != "cpu":
        return results
    options: dict[str, Any] = {"xla_backend_optimization_level": int(optimized)}
    if not over_data and _is_known({"xla_cpu_use_fusion_emitters": False}):
        options["xla_cpu_use_fusion_emitters"] = False
    return {"compiler_options": options} | results


def are_many(arrays: Iterable[Any]) -> bool:
    """Whether a program of these arrays, a model's data among them, is one over many data."""
    return any(array.size >= _MANY for array in arrays)


def full_precision():
    """Within it float32 is float32 in what is traced: accelerators round factors of matrix products unless told."""
    return contextlib.nullcontext() if jax.default_backend() == "cpu" else jax.default_matmul_precision("highest")


def _is_known(options: dict[str, Any]) -> bool:
    """Whether this version of XLA has the options, which come and go."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def enable_compile_cache(path: str | os.PathLike | None = None) -> str:
    """Keep compiled programs on disk, for all JAX programs of this process and for the processes that follow.

    The next process that fits the same model compiles nothing, and for another model of the same dimension one program.
    Call it before the first fit. `path` is a folder; by default `xla` in `$RELBO_CACHE_DIR`, or in the folder `relbo`
    of the user's cache. Returns the folder.
    """
    folder = str(cache_folder() / "xla" if path is None else pathlib.Path(path))
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # small programs are most of them
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder

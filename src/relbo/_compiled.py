"""The one way programs are compiled here."""

import functools
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable)

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_SMALL = 2**18
"""Numbers in the largest argument of a program that is not worth optimising: it runs in about a millisecond."""


def compiled(function: F, *, runs_once: bool = False, runs_often: bool = False) -> F:
    """`equinox.filter_jit`, with options for the device that there is.

    On small problems compiling is most of what a user waits for. On the CPU, LLVM's first optimisation level compiles
    our programs in half the time of the default and runs them as fast (XLA calls libraries for what is heavy), and
    XLA's older code generator takes half of that again, for code as fast. Programs of small arguments, and those that
    run once in a fit, are not optimised at all: that is three times as fast to compile, and what they lose is less,
    unless a fit runs them thousands of times.
    The device, and the size of the arguments, are looked up at the first call.
    """
    programs: dict[bool, Callable] = {}

    @functools.wraps(function)
    def call(*args, **kwargs):
        small = runs_once or (_size(args) < _SMALL and not runs_often)
        if small not in programs:
            programs[small] = eqx.filter_jit(function, **compile_options(optimized=not small))
        return programs[small](*args, **kwargs)

    return call  # type: ignore[return-value]


def _size(args: tuple) -> int:
    """Numbers in the largest of the arguments."""
    return max((leaf.size for leaf in jax.tree.leaves(args) if eqx.is_array(leaf)), default=0)


def temporary_bytes(function: Callable, *args: Any) -> int:
    """What XLA sets aside for the temporaries of `function`, once compiled; 0 where it does not say."""
    analysis = jax.jit(function, **compile_options(optimized=False)).lower(*args).compile().memory_analysis()
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


@functools.cache
def compile_options(optimized: bool = True) -> dict[str, Any]:
    """Arguments of `jax.jit` for the device that there is."""
    if jax.default_backend() != "cpu":
        return {}
    options: dict[str, Any] = {"xla_backend_optimization_level": int(optimized)}
    if _is_known({"xla_cpu_use_fusion_emitters": False}):
        options["xla_cpu_use_fusion_emitters"] = False
    return {"compiler_options": options}


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


def cache_folder() -> pathlib.Path:
    """$RELBO_CACHE_DIR, else the folder `relbo` of the user's cache. Made if it does not exist."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = pathlib.Path(os.environ.get("RELBO_CACHE_DIR") or f"{user_cache}/relbo").expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder

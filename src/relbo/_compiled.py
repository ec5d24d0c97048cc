"""The one way programs are compiled here."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable)


def compiled(function: F, *, runs_once: bool = False) -> F:
    """`equinox.filter_jit`, with options for the device that there is.

    On small problems compiling is most of what a user waits for. On the CPU, LLVM's first optimisation level compiles
    our programs in half the time of the default and runs them as fast (XLA calls libraries for what is heavy). Of
    a program that `runs_once` in a fit, XLA's older code generator makes slower code (by a third) in half the time.
    The device is looked up at the first call, not at import.
    """
    program = None

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal program
        if program is None:
            program = eqx.filter_jit(function, **compile_options(runs_once))
        return program(*args, **kwargs)

    return call  # type: ignore[return-value]


def temporary_bytes(function: Callable, *args: Any) -> int:
    """What XLA sets aside for the temporaries of `function`, once compiled; 0 where it does not say."""
    analysis = jax.jit(function, **compile_options(True)).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes if analysis is not None else 0


class _Clock:
    """The wall-clock seconds in which JAX traced, lowered or compiled, since the first look."""

    def __init__(self):
        self.spans: list[tuple[float, float]] = []
        self.counted = 0.0
        jax.monitoring.register_event_time_span_listener(self._listen)

    def _listen(self, event: str, start_time: float, end_time: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self.spans.append((start_time, end_time))

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


def host_split(key, num: int) -> list:
    """Keys for use on the host: `fold_in` is one small program, where each number of keys to `split` is another."""
    return [jax.random.fold_in(key, index) for index in range(num)]


@functools.cache
def compile_options(runs_once: bool = False) -> dict[str, Any]:
    if jax.default_backend() != "cpu":
        return {}
    options: dict[str, Any] = {"xla_backend_optimization_level": 1}
    if runs_once and _is_known({"xla_cpu_use_fusion_emitters": False}):
        options["xla_cpu_use_fusion_emitters"] = False
    return {"compiler_options": options}


def _is_known(options: dict[str, Any]) -> bool:
    """Whether this version of XLA has the options, which come and go."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return False
    return True

"""The one way programs are compiled here."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable)


def compiled(function: F) -> F:
    """`equinox.filter_jit`, with options for the device that there is.

    On small problems compiling is most of what a user waits for. On the CPU, LLVM's first optimisation level compiles
    our programs in half the time of the default and runs them as fast (XLA calls libraries for what is heavy).
    The device is looked up at the first call, not at import.
    """
    program = None

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal program
        if program is None:
            on_cpu = jax.default_backend() == "cpu"
            options: dict[str, Any] = {"compiler_options": {"xla_backend_optimization_level": 1}} if on_cpu else {}
            program = eqx.filter_jit(function, **options)
        return program(*args, **kwargs)

    return call  # type: ignore[return-value]

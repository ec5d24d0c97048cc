"""The one way programs are compiled here."""

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable)

_background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="relbo-compile")


def compiled(function: F, *, runs_once: bool = False) -> F:
    """`equinox.filter_jit`, with options for the device that there is.

    On small problems compiling is most of what a user waits for. On the CPU, LLVM's first optimisation level compiles
    our programs in half the time of the default and runs them as fast (XLA calls libraries for what is heavy). Of
    a program that `runs_once` in a fit, XLA's older code generator makes slower code (by a third) in half the time.
    The device is looked up at the first call, not at import.
    """
    program = None
    pending: list[Future] = []

    def get():
        nonlocal program
        if program is None:
            program = eqx.filter_jit(function, **_options(runs_once))
        return program

    @functools.wraps(function)
    def call(*args, **kwargs):
        if pending:
            wait(pending)  # if compiling failed there, it fails again here, where it can be seen
            pending.clear()
        return get()(*args, **kwargs)

    def start(*args):
        # Tracing stays on this thread: a user's model need not bear two at once.
        pending.append(_background.submit(get().lower(*args).compile))

    call.start_compiling = start  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def start_compiling(function: Callable, *args: Any) -> None:
    """Compile a `compiled` function (or method) for such arguments in the background; a call of it waits for that."""
    method = getattr(function, "__func__", None)
    start = getattr(method or function, "start_compiling", None)
    if start is not None:
        start(*((function.__self__, *args) if method is not None else args))  # type: ignore[attr-defined]


def temporary_bytes(function: Callable, *args: Any) -> int:
    """What XLA sets aside for the temporaries of `function`, once compiled; 0 where it does not say."""
    analysis = jax.jit(function, **_options(True)).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes if analysis is not None else 0


def host_split(key, num: int) -> list:
    """Keys for use on the host: `fold_in` is one small program, where each number of keys to `split` is another."""
    return [jax.random.fold_in(key, index) for index in range(num)]


@functools.cache
def _options(runs_once: bool) -> dict[str, Any]:
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

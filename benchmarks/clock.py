"""Clocks: how long JAX (or another compiler) compiled, and what a process has used so far."""

import contextlib
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass


class CompileClock:
    """The wall-clock seconds, inside a `with` block, in which JAX traced, lowered or compiled."""

    prefix = "/jax/core/compile/"
    """Of jaxpr_trace_duration, jaxpr_to_mlir_module_duration and backend_compile_duration."""

    def __init__(self):
        self.spans: list[tuple[float, float]] = []

    def __enter__(self) -> "CompileClock":
        import jax  # here, so that what never imports JAX can use the rest of this file

        jax.monitoring.register_event_time_span_listener(self._listen)
        return self

    def __exit__(self, *_) -> None:
        import jax

        jax.monitoring.unregister_event_time_span_listener(self._listen)

    def _listen(self, event: str, start_time: float, end_time: float, **_) -> None:
        if event.startswith(self.prefix):
            self.spans.append((start_time, end_time))

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        """A block in which a compiler other than JAX's is at work."""
        begun = time.time()
        yield
        self.spans.append((begun, time.time()))

    @property
    def seconds(self) -> float:
        """The length of the union of the spans."""
        total, covered_to = 0.0, float("-inf")
        for start, end in sorted(self.spans):
            total += max(0.0, end - max(start, covered_to))
            covered_to = max(covered_to, end)
        return total


@dataclass(frozen=True)
class Usage:
    """Seconds, of the wall clock and of the processor, and what is between two readings of them."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Usage":
        """CPU seconds since the process began, those of its finished children (a C compiler) with them."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in used))

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(self.wall - earlier.wall, self.cpu - earlier.cpu)

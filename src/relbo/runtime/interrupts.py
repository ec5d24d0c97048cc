"""SIGTERM as an exception, so that a fit can put things in order before the process ends."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Terminated(BaseException):
    """The process was asked to end."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it SIGTERM raises `Terminated`, if this is the main thread and the program has no handler of its own."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(number, frame):
        del number, frame
        raise Terminated

    try:
        signal.signal(signal.SIGTERM, terminate)
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def interruption_in(error: Exception) -> BaseException | None:
    """What interrupted a callback, if that is what `error` tells of: JAX makes its own errors of whatever is raised."""
    last = (str(error).strip().splitlines()[-1:] or [""])[0]
    for kind in (KeyboardInterrupt, Terminated):
        if kind.__name__ in last:
            return kind()
    name, _, code = last.partition(":")
    if name == SystemExit.__name__:  # `sys.exit(3)`, `sys.exit("no licence")` or `sys.exit()`, as a traceback ends
        code = code.strip()
        return SystemExit(int(code) if code.lstrip("-").isdigit() else code or None)
    return None

"""Several processes for one fit: `relbo fit --coordinator ... --process I` on every machine, or `--local-processes N`.

Every process runs the same command, reads model and data, and takes its part of the work. When the fit is saved they
part: the first goes on alone, and is the one that speaks.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

import relbo
from relbo.cli.session import BAD_VERDICT, GOOD, Session, UsageError

_LOCAL = "--local-processes"


@dataclass(frozen=True)
class Crew:
    """What was said of other processes."""

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    detect: bool = False
    shard: str | None = None

    def __post_init__(self) -> None:
        given = {"--coordinator": self.coordinator, "--processes": self.processes, "--process": self.process}
        missing = [name for name, value in given.items() if value is None]
        if self.detect and len(missing) < len(given):
            raise UsageError(f"--distributed finds {', '.join(given)} by itself: leave them out, or leave it out.")
        if 0 < len(missing) < len(given):
            raise UsageError(f"{', '.join(given)} belong together, and {', '.join(missing)} is missing.")
        if self.processes is not None and self.process is not None and self.process >= self.processes:
            raise UsageError(f"--process counts from 0 to {self.processes - 1}, got {self.process}.")
        if self.shard is not None and not self.together:
            raise UsageError(
                f"--shard says what processes divide among them, and there is one. Give {_LOCAL} or --coordinator, too."
            )

    @property
    def together(self) -> bool:
        return self.detect or self.coordinator is not None

    def join(self, talk: Session) -> None:
        """Before anything is done with JAX. Of all processes the first speaks; the others say what is wrong alone."""
        if not self.together:
            return
        with _stdout_to_stderr():  # gloo greets its peers there
            relbo.distributed.init(self.coordinator, self.processes, self.process)
        if jax.process_index() > 0:
            talk.quiet, talk.as_json = True, False

    def settings(self) -> dict[str, Any]:
        """For `relbo.fit`."""
        if not self.together:
            return {}
        return {"mesh": jax.make_mesh((jax.device_count(),), ("data",)), "shard": self.shard or "auto"}

    def part(self, posterior: relbo.Posterior, path: pathlib.Path, target: Any) -> relbo.Posterior | None:
        """The fit, for the first process to go on with alone; None in the others."""
        if not self.together:
            return posterior
        relbo.save(posterior, path)
        is_first = jax.process_index() == 0
        jax.distributed.shutdown()  # all wait for each other here, and for nobody afterwards
        return relbo.load(path, target=target) if is_first else None


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Also for what is not Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def run_locally(talk: Session, num: int, coordinator: str | None, arguments: Sequence[str]) -> int:
    """The same command in `num` processes on this machine: the exit code of the first, or of one that failed.

    What the others have to say is shown where it went wrong for them and not for the first.
    """
    if coordinator is not None:
        raise UsageError(f"{_LOCAL} starts all processes on this machine, and needs no --coordinator.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = [*_without_local(arguments), "--coordinator", address, "--processes", str(num)]
    with tempfile.TemporaryDirectory(prefix="relbo-") as name, contextlib.ExitStack() as stack:
        crew = []
        for process in range(num):
            command = [sys.executable, "-m", "relbo", *shared, "--process", str(process)]
            log = stack.enter_context(open(pathlib.Path(name, str(process)), "w"))
            quiet = {} if process == 0 else {"stdout": log, "stderr": log}
            crew.append(subprocess.Popen(command, **quiet))  # type: ignore[call-overload]
        with _passing_signals(crew):
            codes = [process.wait() for process in crew]
        failed = [process for process, code in enumerate(codes) if code not in (GOOD, BAD_VERDICT)]
        if failed and codes[0] in (GOOD, BAD_VERDICT):
            lines = pathlib.Path(name, str(failed[0])).read_text().strip().splitlines()
            talk.warn(f"process {failed[0]} ended with {codes[failed[0]]}: {lines[-1] if lines else 'no word'}")
        return codes[failed[0]] if failed else codes[0]


def _without_local(arguments: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.startswith(f"{_LOCAL}="):
            skip = False
        elif argument == _LOCAL:
            skip = True
        else:
            kept.append(argument)
    return kept


@contextlib.contextmanager
def _passing_signals(crew: Sequence[subprocess.Popen]) -> Iterator[None]:
    """Ctrl-C reaches them from the terminal; SIGTERM is passed on. This process waits for them in any case."""

    def passed(number: int, _: Any) -> None:
        for process in crew:
            process.send_signal(number)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, passed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
        for process in crew:
            if process.poll() is None:
                process.kill()

"""The command line as a person uses it: commands one after the other, in one process behind a pseudo-terminal.

One process, because each would import JAX and compile the same programs again; the commands do not know of each other.
"""

import json
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
_FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

_RUNNER = """
import json, sys
from relbo.cli.app import app
for number, command in enumerate(json.loads(sys.argv[1])):
    print(f"<<<begin {number}>>>", flush=True)
    try:
        app(command, prog_name="relbo")
        code = 0
    except SystemExit as ended:
        code = ended.code
    sys.stderr.flush()
    print(f"<<<end {number} {code}>>>", flush=True)
"""


@dataclass(frozen=True)
class Said:
    """What a command left on the screen, and its exit code."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without colours, and with every run of blanks as one: lines are broken where the terminal ends."""
        return " ".join(_ESCAPES.sub("", self.raw).split())

    @property
    def json(self):
        """The JSON object among what was printed; warnings go to the same screen."""
        text = _ESCAPES.sub("", self.raw)
        return json.loads(text[text.index("{") : text.rindex("}") + 1], parse_constant=_refuse)


def _refuse(name: str):
    raise ValueError(f"{name} is no JSON")


def run_commands(folder: pathlib.Path, commands: list[list[str]], seconds: float = 900) -> list[Said]:
    """Run them in `folder`, and read the screen."""
    screen = run_in_terminal([sys.executable, "-c", _RUNNER, json.dumps(commands)], folder, seconds)[0]
    pattern = re.compile(r"<<<begin (\d+)>>>(.*?)<<<end \1 (\w+)>>>", re.DOTALL)
    said = [Said(int(code) if code != "None" else 0, raw) for _, raw, code in pattern.findall(screen)]
    assert len(said) == len(commands), screen[-3000:]
    return said


def run_in_terminal(command: list[str], folder: pathlib.Path, seconds: float = 300) -> tuple[str, int]:
    """What a process writes to its terminal, and its exit code."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "RELBO_CACHE_DIR": str(folder / "cache"),
        "XLA_FLAGS": _FAST,
        "TERM": "xterm-256color",
        "COLUMNS": "120",
    }
    with subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    ) as process:
        os.close(theirs)
        screen, until = b"", time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                if not select.select([ours], [], [], 1.0)[0]:
                    continue
                part = os.read(ours, 65536)
                if not part:
                    break
                screen += part
        except OSError:  # the terminal is closed when its process ends
            pass
        finally:
            if process.poll() is None and time.monotonic() >= until:
                process.kill()
            os.close(ours)
        return screen.decode(errors="replace"), process.wait()

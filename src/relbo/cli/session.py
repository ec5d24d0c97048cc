"""How a command speaks: sentences for people, one JSON object for machines, exit codes for scripts."""

import json
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relbo.runtime.plain import plain

GOOD, ERROR, USAGE, BAD_VERDICT = 0, 1, 2, 3
"""Exit codes. Wrong options, which typer finds, end with 2."""


MODULE_PREFIX = "relbo_model_"
"""Of the names that the modules of model files have."""


class UsageError(Exception):
    """What was typed cannot be meant: exit code 2."""


class Session:
    """Where a command puts what it found."""

    def __init__(self, as_json: bool, quiet: bool, debug: bool):
        self.as_json, self.quiet, self.debug = as_json, quiet, debug
        self.code = GOOD
        self.out, self.err = Console(highlight=False), Console(stderr=True, highlight=False)

    @property
    def speaks(self) -> bool:
        """Whether people read along."""
        return not (self.quiet or self.as_json)

    def say(self, what: Any = "", style: str | None = None) -> None:
        """To stdout, for people."""
        if self.speaks:
            self.out.print(Text(what, style=style or "") if isinstance(what, str) else what)

    def table(self, heading: tuple[str, ...], rows: list[tuple[str, ...]], title: str | None = None) -> None:
        shown = Table(title=title and Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
        for number, name in enumerate(heading):
            shown.add_column(Text(name, style="bold"), justify="left" if number == 0 else "right", overflow="fold")
        for row in rows:
            shown.add_row(*map(Text, row))
        self.say(shown)

    def note(self, text: str) -> None:
        """To stderr, for people: what is worth knowing and not the answer."""
        if self.speaks:
            self.err.print(Text(f"relbo: {text}", style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.err.print(Text(f"relbo: warning: {text}", style="yellow"), soft_wrap=True)

    def result(self, **found: Any) -> None:
        """To stdout, for machines."""
        if self.as_json:
            print(json.dumps(plain(found), indent=2))

    def fail(self, error: BaseException) -> None:
        """Say what went wrong in a sentence, and where it can be seen."""
        text = sentence(error)
        if self.as_json:
            print(json.dumps({"error": text}))
        self.err.print(Text(f"relbo: error: {text}", style="red"), soft_wrap=True)
        if self.debug:
            traceback.print_exception(error)


@contextmanager
def session(as_json: bool, quiet: bool, debug: bool) -> Iterator[Session]:
    """Around a command: warnings and errors become sentences, and the exit code is set."""
    talk = Session(as_json, quiet, debug)
    with warnings.catch_warnings():
        if not debug:
            for kind in (FutureWarning, DeprecationWarning, PendingDeprecationWarning):
                warnings.simplefilter("ignore", kind)
            warnings.showwarning = lambda message, *_, **__: talk.warn(str(message))
        try:
            yield talk
        except (typer.Exit, SystemExit, KeyboardInterrupt):
            raise
        except UsageError as error:
            talk.fail(error)
            raise typer.Exit(USAGE) from error
        except Exception as error:
            talk.fail(error)
            raise typer.Exit(ERROR) from error
    sys.stdout.flush()
    if talk.code:
        raise typer.Exit(talk.code)


def sentence(error: BaseException) -> str:
    """An error as a person would say it; ours are sentences already, others say what kind they are."""
    text = str(error).strip()
    place = _place(error)
    if place:
        return f"{place}: {type(error).__name__}: {text}"
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}."
    if isinstance(error, ValueError | TypeError | ImportError | RuntimeError | UsageError) and text:
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """The line of the model's file where an error came up; nothing, if it is one of ours."""
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    lines = [number for (_, number), name in zip(frames, names, strict=True) if name.startswith(MODULE_PREFIX)]
    if not lines or names[-1].startswith("relbo."):
        return ""
    (file,) = {name.removeprefix(MODULE_PREFIX) for name in names if name.startswith(MODULE_PREFIX)}
    return f"{file}.py, line {lines[-1]}"

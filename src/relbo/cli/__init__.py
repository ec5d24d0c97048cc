"""The `relbo` command. Nothing heavy is imported before a command needs it, so that help comes at once."""

import importlib
import importlib.util
import sys
from typing import Any

from relbo.runtime.require import require


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    try:
        require("typer", extra="cli")
    except ImportError as error:
        print(f"relbo: error: {error}", file=sys.stderr)
        sys.exit(1)
    importlib.import_module("relbo.cli.app").app(prog_name="relbo")


def __getattr__(name: str) -> Any:
    """`cli.looks` and its like, imported when they are first used."""
    if name.startswith("_") or importlib.util.find_spec(f"relbo.cli.{name}") is None:
        raise AttributeError(f"module 'relbo.cli' has no attribute {name!r}")
    return importlib.import_module(f"relbo.cli.{name}")

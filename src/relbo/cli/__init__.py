"""The `relbo` command. Nothing heavy is imported before a command needs it, so that help comes at once."""

import sys

from relbo.runtime.require import require


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    try:
        require("typer", extra="cli")
    except ImportError as error:
        print(f"relbo: error: {error}", file=sys.stderr)
        sys.exit(1)
    from relbo.cli.app import app

    app(prog_name="relbo")

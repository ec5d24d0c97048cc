"""What long computations have done so far, a line of JSON each, so that the same call goes on from there."""

import json
import os
import pathlib
from typing import Any

from relbo.runtime.plain import plain


class Journal:
    """A file that begins with what the computation is, and has a line for everything that is done.

    A line is on disk when `add` returns; one that was cut short, by a process that was killed, does not count.
    """

    def __init__(self, path: str | os.PathLike, what: str, facts: dict[str, Any]):
        self.path = pathlib.Path(path)
        self.entries: list[dict[str, Any]] = []
        facts = json.loads(json.dumps(plain({"what": what, **facts})))
        if not self.path.exists() or not self.path.stat().st_size:
            self._write(facts)
            return
        found, length = _lines(self.path)
        if not found:
            raise ValueError(f"{self.path} is no journal of {what}: take another name, or remove it.")
        different = [name for name in {**facts, **found[0]} if facts.get(name) != found[0].get(name)]
        if different:
            told = "; ".join(f"{name}: {found[0].get(name)!r} there, {facts.get(name)!r} here" for name in different)
            raise ValueError(f"{self.path} belongs to another call ({told}). Take another name, or remove it.")
        self.entries = found[1:]
        os.truncate(self.path, length)

    def add(self, entry: dict[str, Any]) -> None:
        self._write(entry)
        self.entries.append(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(plain(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines, and the length of the file as far as they go."""
    found: list[dict[str, Any]] = []
    length = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        found.append(entry)
        length += len(line)
    return found, length

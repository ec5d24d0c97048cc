"""Finished pieces of an experiment, kept on disk one by one: a killed experiment goes on where it was."""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import relbo
from experiments.provenance import code_of, imported, versions
from experiments.report import plain


@dataclasses.dataclass(frozen=True)
class Piece:
    """Work that is done once: `function(*arguments)` gives a dictionary; `key` says all that the result depends on."""

    key: dict[str, Any]
    function: Callable[..., dict[str, Any]]
    arguments: tuple[Any, ...] = ()


class Runs:
    """A file of lines, each one piece of work: its key, the code that made it, its result and what it cost.

    A piece counts as done if its key, the code (relbo's engine, and the modules that compute) and the versions of the
    libraries are those of a line. `fresh=True` (`--fresh`) begins anew. `modules` are those that compute: a function of
    another module is refused, because a change of it would not be seen.
    """

    def __init__(self, path: pathlib.Path, modules: Iterable[str], *, fresh: bool = False, say: bool = True):
        self.path, self.name, self.say = path, path.name.split(".")[0], say
        self.modules = set().union(*(imported(module) for module in modules))
        self.code, self.versions = code_of(self.modules), versions()
        self.cpu_seconds = 0.0
        """Of the pieces that were asked for, whenever they ran."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self._done = dict(_lines(path)) if path.exists() else {}

    def all(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """The results, in order; those that are not there yet are computed, and progress is told."""
        missing = [piece for piece in pieces if self._name(piece) not in self._done]
        if self.say and len(missing) < len(pieces):
            print(f"  {self.name}: {len(pieces) - len(missing)} of {len(pieces)} pieces were done before", flush=True)
        begun = time.perf_counter()
        for number, piece in enumerate(missing, 1):
            self._compute(piece)
            if self.say:
                passed = time.perf_counter() - begun
                left = passed / number * (len(missing) - number)
                told = f"{number} of {len(missing)} pieces in {_minutes(passed)}, about {_minutes(left)} to go"
                print(f"  {self.name}: {told}", flush=True)
        return [self.once(piece) for piece in pieces]

    def once(self, piece: Piece) -> dict[str, Any]:
        """The result of a piece, computed now if it is not there yet."""
        if self._name(piece) not in self._done:
            self._compute(piece)
        line = self._done[self._name(piece)]
        self.cpu_seconds += line["cpu_seconds"]
        return line["result"]

    def _compute(self, piece: Piece) -> None:
        if piece.function.__module__.removeprefix("experiments.") not in self.modules:
            raise ValueError(f"{piece.function.__module__} is not among the modules that compute: {self.modules}.")
        begun = time.process_time()
        result = plain(piece.function(*piece.arguments), finite=False)
        line = {"name": self._name(piece), "result": result, "cpu_seconds": time.process_time() - begun}
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(line))  # a torn line before is left behind
            file.flush()
            os.fsync(file.fileno())
        self._done[line["name"]] = line

    def _name(self, piece: Piece) -> str:
        return json.dumps(plain({"key": piece.key, "code": self.code, "versions": self.versions}), sort_keys=True)


def _lines(path: pathlib.Path):
    for text in filter(None, path.read_text().splitlines()):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # the process was killed in the middle of this line
        if "cpu_seconds" in line:  # else it is of an older form
            yield line["name"], line


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def timed_fit(target, **settings: Any) -> tuple[relbo.Posterior, float]:
    """`relbo.fit` without a progress bar, and its CPU seconds. A fit that did not end by itself is no result.

    `relbo.fit` hands over what there is when it is interrupted or fails; here that ends the experiment.
    """
    begun = time.process_time()
    posterior = relbo.fit(target, **settings | {"progress_bar": False})
    if posterior.stop.kind == "interrupted":
        raise KeyboardInterrupt
    if posterior.stop.kind in ("failed", "broken"):
        raise RuntimeError(f"A fit of this experiment ended early: {posterior.stop_reason}.")
    return posterior, time.process_time() - begun

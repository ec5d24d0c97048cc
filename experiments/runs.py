"""Finished pieces of an experiment, kept on disk one by one: a killed experiment goes on where it was."""

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import relbo
from experiments.report import plain, versions


class Runs:
    """A file of lines, each one piece of work: what it was, and its result.

    A piece counts as done if its key and the versions of the libraries, relbo's code among them, are those of a line.
    A change of an experiment's own code is not seen: `fresh=True` (`--fresh`) begins anew.
    """

    def __init__(self, path: pathlib.Path, *, fresh: bool = False):
        self.path = path
        self._versions = versions()
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self._done = dict(_lines(path)) if path.exists() else {}

    def once(self, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `compute()`, or what it was the last time for the same `key`."""
        name = json.dumps(plain({"key": key, "versions": self._versions}), sort_keys=True)
        if name not in self._done:
            result = plain(compute(), finite=False)
            with self.path.open("a") as file:
                file.write("\n" + json.dumps({"name": name, "result": result}))  # a torn line before is left behind
                file.flush()
                os.fsync(file.fileno())
            self._done[name] = result
        return self._done[name]


def _lines(path: pathlib.Path):
    for line in filter(None, path.read_text().splitlines()):
        try:
            piece = json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed in the middle of this line
        yield piece["name"], piece["result"]


def timed_fit(target, **settings: Any) -> tuple[relbo.Posterior, float]:
    """`relbo.fit` without a progress bar, and its seconds. A fit that did not end by itself is no result.

    `relbo.fit` hands over what there is when it is interrupted or fails; here that ends the experiment.
    """
    begun = time.perf_counter()
    posterior = relbo.fit(target, **settings | {"progress_bar": False})
    if posterior.stop.kind == "interrupted":
        raise KeyboardInterrupt
    if posterior.stop.kind in ("failed", "broken"):
        raise RuntimeError(f"A fit of this experiment ended early: {posterior.stop_reason}.")
    return posterior, time.perf_counter() - begun

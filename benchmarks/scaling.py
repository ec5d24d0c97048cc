"""How cost grows: in rows, dimensions, components and processes, beside NumPyro's SVI and NUTS.

    python benchmarks/scaling.py [--full] [--axes rows ...] [--limit 300] [--work FOLDER] [--again]

Every measurement is a process of its own and one file in the working folder; what is there is not repeated, so that a
run that was stopped goes on. A method that was over the limit of CPU seconds, or failed, is not tried at larger sizes.
By default the ladders end where an hour on one core does; `--full` goes to ten million rows (streamed), 30,000
dimensions and 128 components. At the end everything is joined into `results/scaling.json`, of which `scaling_page.py`
makes the figure and the tables.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import scaling_cell
from peers_store import machine, write_json

HERE = Path(__file__).resolve().parent
LADDERS: dict[str, tuple[list[int], list[int]]] = {
    "rows": ([1_000, 10_000, 100_000, 1_000_000], [10_000_000]),
    "rows of 100": ([10_000, 100_000], [1_000_000]),
    "dimensions": ([2, 8, 32, 128, 256, 1024, 4096], [30_000]),
    "components": ([2, 8, 32, 64], [1, 4, 16, 128]),
    "processes": ([1, 2, 4], []),
}
"""Sizes by default, and those that `--full` adds."""
_IN_MEMORY = 1_000_000
"""Rows: more are streamed; streaming begins a factor of ten before, so that the two overlap."""


def sizes(axis: str, full: bool) -> list[int]:
    return sorted(LADDERS[axis][0] + (LADDERS[axis][1] if full else []))


def is_meant(axis: str, size: int, method: str) -> bool:
    if axis != "rows":
        return True
    return size >= _IN_MEMORY / 10 if method == "relbo, streaming" else size <= _IN_MEMORY


def path_of(work: Path, axis: str, size: int, method: str) -> Path:
    return work / f"{axis}.{method}.{size}.json".replace(" ", "_").replace(",", "")


def measure(axis: str, size: int, method: str, limit: float) -> dict:
    command = [sys.executable, str(HERE / "scaling_cell.py"), axis, str(size), method, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True)
    key = {"axis": axis, "size": size, "method": method}
    if done.returncode == 0:
        return key | {"kind": "done"} | json.loads(done.stdout.splitlines()[-1])
    if done.returncode in (-24, -9):  # SIGXCPU, or SIGKILL a little later
        return key | {"kind": "over the limit", "limit": limit}
    return key | {"kind": "failed", "message": (done.stderr.strip().splitlines() or [""])[-1][:300]}


def climb(options: argparse.Namespace, axis: str, method: str) -> None:
    """One method up one ladder, as far as it goes."""
    for size in sizes(axis, options.full):
        if not is_meant(axis, size, method):
            continue
        path = path_of(options.work, axis, size, method)
        if options.again or not path.exists():
            write_json(path, measure(axis, size, method, options.limit))
        cell = json.loads(path.read_text())
        seconds = cell.get("run_cpu", cell.get("cold_cpu"))
        told = f"{seconds:.1f} CPU s" if seconds is not None else cell["kind"]
        print(f"{axis} {size:,}, {method}: {told}", flush=True)
        if cell["kind"] != "done":
            return


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the largest sizes, too")
    parser.add_argument("--axes", nargs="*", default=list(LADDERS), choices=list(LADDERS))
    parser.add_argument("--methods", nargs="*", help="all by default")
    parser.add_argument("--limit", type=float, default=300.0, help="CPU seconds of one measurement")
    parser.add_argument("--work", type=Path, default=HERE / "results" / "scaling")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "scaling.json")
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_options()
    for axis, method in scaling_cell.MEASURE:
        if axis in options.axes and (not options.methods or method in options.methods):
            climb(options, axis, method)
    cells = [json.loads(path.read_text()) for path in sorted(options.work.glob("*.json"))]
    write_json(options.json, {"machine": machine(), "cells": cells})
    print(options.json)


if __name__ == "__main__":
    main()

"""relbo against other variational tools and NUTS: every method on every model, one fresh process each.

The methods take turns on a model, each process is pinned to one core and may use 200 CPU seconds. Every finished cell
is a file of its own in the folder `--work`, and a second call goes on where the first was stopped. The cells are then
joined with the references, wherever these are there, into `--json`. Run by `make peers`; benchmarks/README.md says how
to read it.
"""

import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods import METHODS
from methods.base import Method
from peers_store import Key, commit, compare, join, read_cells, write_cell, write_json

HERE = Path(__file__).resolve().parent
MAX_CPU_SECONDS = 200.0
WALL_FACTOR = 3.0
"""The machine may be busy: a cell may take so many times its CPU limit by the wall clock, and then is ended."""
MEASURING_SECONDS = 300.0
"""Wall-clock seconds granted on top for what is measured after the clock has stopped."""
RUNNING: set[subprocess.Popen] = set()
"""The processes of unfinished cells, which must not outlive this one."""
QUICK_MODELS = ("two_modes", "eight_schools_centered", "banana")


def main(arguments: Sequence[str] | None = None) -> int:
    from posteriors import MODELS, load_reference

    options = parse_options(arguments, list(MODELS))
    keys = choose(options, MODELS)
    folder = options.again or options.work
    run_all(keys, MODELS, folder, options)
    if options.again is not None:
        return show_comparison(read_cells(options.work), read_cells(options.again))
    references = {name: found for name in MODELS if (found := load_reference(name)) is not None}
    write_json(options.json, join(read_cells(options.work), MODELS, METHODS, references))
    num_cells = len(read_cells(options.work))
    print(f"{options.json}: {num_cells} cells, {len(references)} references of {len(MODELS)} models")
    return 0


def parse_options(arguments: Sequence[str] | None, models: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=models, metavar="NAME", help=f"of {', '.join(models)}")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="NAME", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 .. N-1 for all (default: 3 or 1 by method)")
    parser.add_argument("--cores", default="0", help="one process at a time on each of these cores, such as 0,1")
    parser.add_argument("--work", type=Path, help="the folder of finished cells (results/peers)")
    parser.add_argument("--json", type=Path, help="where to join them (results/peers.json)")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="repeat cells into FOLDER and compare with --work")
    parser.add_argument("--retry", action="store_true", help="run again what failed or went over the limit")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK_MODELS)} with seed 0")
    parser.add_argument("--join", action="store_true", help="run nothing: join the cells that are there")
    options = parser.parse_args(arguments)
    options.cores = [int(core) for core in options.cores.split(",")]
    if options.quick:
        options.models, options.seeds = options.models or list(QUICK_MODELS), options.seeds or 1
    place = HERE / ("output" if options.quick else "results")  # a quick run leaves the complete one's results alone
    options.work, options.json = options.work or place / "peers", options.json or place / "peers.json"
    return options


def choose(options: argparse.Namespace, models: dict[str, Any]) -> list[Key]:
    """The cells to have: model by model, in it seed by seed, in it the methods in turns."""
    if options.join:
        return []
    methods = [METHODS[name] for name in options.methods or METHODS]
    keys = []
    for name in options.models or models:
        try:
            models[name].data()
        except Exception as error:  # the data are somebody else's file: say so, and go on with the other models
            print(f"{name}: skipped, {error}", flush=True)
            continue
        for seed in range(options.seeds or max(method.num_seeds for method in methods)):
            keys += [Key(name, seed, m.name) for m in methods if seed < (options.seeds or m.num_seeds)]
    return keys


# Running


def run_all(keys: list[Key], models: dict[str, Any], folder: Path, options: argparse.Namespace) -> None:
    """Whatever of `keys` is not in the folder yet, one process at a time on every core."""
    there = read_cells(folder)
    redo = ("failed", "over the limit") if options.retry else ()
    todo = [key for key in keys if key not in there or there[key]["kind"] in redo]
    print(f"{len(keys)} cells, {len(keys) - len(todo)} of them there already", flush=True)
    waiting: queue.SimpleQueue[Key] = queue.SimpleQueue()
    for key in todo:
        waiting.put(key)
    progress = Progress(todo, len(options.cores))
    stamp = {"commit": commit()}
    stopping = threading.Event()

    def work(core: int) -> None:
        while True:
            try:
                key = waiting.get_nowait()
            except queue.Empty:
                return
            begun = time.perf_counter()
            facts = run_cell(key, METHODS[key.method], models[key.model], core)
            if stopping.is_set():
                return
            cell = write_cell(folder, key, {**facts, **stamp, "core": core})
            progress.report(key, cell, time.perf_counter() - begun)

    workers = [threading.Thread(target=work, args=(core,), daemon=True) for core in options.cores]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:  # Ctrl-C and SIGTERM: what was running leaves no cell, and is run by the next call
        stopping.set()
        for process in list(RUNNING):
            process.kill()


def run_cell(key: Key, method: Method, model: Any, core: int) -> dict[str, Any]:
    """The facts of one cell, from a fresh process with empty compiler caches. Never raises for what happens in it."""
    if method.needs_pymc and model.pymc is None:
        return {"kind": "not applicable", "reason": "the model has no PyMC form"}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "facts.json"
        command = [sys.executable, str(HERE / "peers_cell.py"), key.method, key.model, str(key.seed), str(core)]
        return run_process([*command, str(MAX_CPU_SECONDS), str(out)], out, environment(scratch))


def run_process(
    command: list[str],
    out: Path,
    variables: dict[str, str] | None = None,
    max_seconds: float = WALL_FACTOR * MAX_CPU_SECONDS + MEASURING_SECONDS,
) -> dict[str, Any]:
    """What a process wrote to `out`, or how it ended if it wrote nothing."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables)
    RUNNING.add(process)
    try:
        _, complaints = process.communicate(timeout=max_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"kind": "over the limit", "reason": f"no end after {max_seconds:.0f} s by the wall clock"}
    finally:
        RUNNING.discard(process)
    if process.returncode == -signal.SIGXCPU:
        return {"kind": "over the limit", "reason": f"more than {MAX_CPU_SECONDS:.0f} CPU s"}
    if process.returncode != 0 or not out.is_file():
        lines = [line.strip() for line in complaints.splitlines() if line.strip()]
        return {"kind": "failed", "reason": lines[-1][:500] if lines else f"exit code {process.returncode}"}
    facts = json.loads(out.read_text())
    if facts["kind"] == "done" and facts["cpu_seconds"]["total"] > MAX_CPU_SECONDS:
        facts |= {"kind": "over the limit", "reason": f"more than {MAX_CPU_SECONDS:.0f} CPU s, with its children"}
    return facts


def environment(scratch: str) -> dict[str, str]:
    """Every process compiles for itself, on one thread: no caches of JAX, PyTensor or Numba."""
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    caches = {"NUMBA_CACHE_DIR": f"{scratch}/numba", "PYTENSOR_FLAGS": f"base_compiledir={scratch}/pytensor"}
    return kept | threads | caches | {"JAX_PLATFORMS": "cpu", "TQDM_DISABLE": "1"}


class Progress:
    """A line for each finished cell, with a guess of what remains: by method where one is known, else by the mean."""

    def __init__(self, todo: list[Key], num_cores: int):
        self.left, self.total, self.num_cores = list(todo), len(todo), num_cores
        self.seconds: dict[str, list[float]] = {}
        self.lock = threading.Lock()

    def report(self, key: Key, cell: dict[str, Any], seconds: float) -> None:
        with self.lock:
            self.left.remove(key)
            self.seconds.setdefault(key.method, []).append(seconds)
            done = self.total - len(self.left)
            remaining = f"about {self.remaining() / 60:.0f} min left"
            print(f"{done}/{self.total} {key}: {one_line(cell)} ({remaining})", flush=True)

    def remaining(self) -> float:
        overall = statistics.mean(value for values in self.seconds.values() for value in values)
        guesses = [statistics.mean(self.seconds.get(key.method, [overall])) for key in self.left]
        return sum(guesses) / self.num_cores


def one_line(cell: dict[str, Any]) -> str:
    if cell["kind"] != "done":
        return f"{cell['kind']}: {cell['reason']}"
    cpu = cell["cpu_seconds"]
    parts = f"{cpu['imports']:.1f} imports, {cpu['compile']:.1f} compile, {cpu['run']:.1f} run"
    elbo = "" if cell.get("elbo") is None else f", ELBO {cell['elbo']:.3f} +- {cell['elbo_std_err']:.3f}"
    return f"{cpu['total']:.1f} CPU s ({parts}){elbo}"


# A second run


def show_comparison(first: dict[Key, dict], second: dict[Key, dict]) -> int:
    """The table of the second run against the first; 1 if a cell is not close."""
    rows = compare(first, second)
    print(f"{'cell':60} {'ELBO':>22} {'std err':>8} {'CPU s':>15} {'change':>7}")
    for row in rows:
        elbos = "{:.3f} {:.3f}".format(*row["elbos"]) if "elbos" in row else "none"
        error = f"{row['elbo_std_err']:.3f}" if "elbos" in row else ""
        cpu = "{:.1f} {:.1f}".format(*row["cpu_seconds"]) if "cpu_seconds" in row else " / ".join(row["kinds"])
        change = f"{row['cpu_change']:+.0%}" if "cpu_seconds" in row else ""
        verdict = "" if row["close"] else "  NOT CLOSE"
        print(f"{row['key']!s:60} {elbos:>22} {error:>8} {cpu:>15} {change:>7}{verdict}")
    return int(not rows or not all(row["close"] for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())

"""Simulations in this process, or in several.

JAX must not be forked, so processes are fresh ones (joblib's loky: models from a notebook or a script without a
`__main__` guard travel by cloudpickle). What all simulations share is written to a file and read once by every process,
so that its functions and targets are the same objects in all its fits, and programs are compiled once there.
"""

import os
import pathlib
import signal
import tempfile
from collections.abc import Generator
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from typing import Any

import cloudpickle
import jax
import joblib

from relbo.calibration.trial import Failure, Ranks, Trial
from relbo.runtime.choices import whole_number

_FITS_PER_PROCESS = 8  # a process compiles for itself, which takes as long as a few fits
_FEWEST_THREADS = 2  # so that one may wait for a callback on the host while the other works
_DIED = "its process died (killed, out of memory, or ended by the model itself)"


def choose_num_processes(wanted: int | None, num_simulations: int) -> int:
    """One for every core, as long as each has fits enough to be worth its start; one on a GPU, which is not shared."""
    if wanted is None:
        cores = joblib.cpu_count() if jax.default_backend() == "cpu" else 1
        return max(1, min(cores, num_simulations // _FITS_PER_PROCESS))
    return min(whole_number("num_processes", wanted, 1), num_simulations)


def run_trials(trial: Trial, jobs: list[Any], num_processes: int) -> Generator[Ranks | Failure, None, None]:
    """The outcome of every job, in any order."""
    if num_processes == 1:
        for simulation, job in enumerate(jobs):
            yield trial.run(simulation, job)
        return
    with tempfile.TemporaryDirectory(prefix="relbo-") as name:
        folder = pathlib.Path(name)
        _write(trial, folder / "trial", num_processes)
        waiting = dict(enumerate(jobs))
        while waiting:
            try:
                for outcome in _pool(folder, waiting, num_processes):
                    del waiting[outcome.simulation]
                    yield outcome
            except BrokenProcessPool:
                for simulation in _begun(folder, waiting):
                    yield _alone(folder, simulation, waiting.pop(simulation))


def _pool(folder: pathlib.Path, jobs: dict[int, Any], num_processes: int) -> Generator[Ranks | Failure, None, None]:
    parallel = joblib.Parallel(
        num_processes, backend="loky", return_as="generator_unordered", batch_size=1, max_nbytes=None
    )
    tasks = [joblib.delayed(_work)(str(folder), simulation, job) for simulation, job in jobs.items()]
    with closing(parallel(tasks)) as outcomes:
        yield from outcomes


def _alone(folder: pathlib.Path, simulation: int, job: Any) -> Ranks | Failure:
    """When a process dies, any fit that was running may be the cause: each is tried again with no other beside it."""
    try:
        (outcome,) = _pool(folder, {simulation: job}, 2)  # of one, joblib would make this very process
    except BrokenProcessPool:
        return Failure(simulation, _DIED)
    return outcome


def _begun(folder: pathlib.Path, waiting: dict[int, Any]) -> list[int]:
    return [simulation for simulation in waiting if (folder / f"begun-{simulation}").exists()]


def _write(trial: Trial, path: pathlib.Path, num_processes: int) -> None:
    threads = max(_FEWEST_THREADS, (os.cpu_count() or 1) // num_processes)
    config = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_compilation_cache_dir")}
    # The trial is pickled apart: reading it may start JAX, and what JAX reads at its start has to come first.
    path.write_bytes(cloudpickle.dumps((threads, config, cloudpickle.dumps(trial))))


_loaded: dict[str, Trial] = {}


def _work(folder: str, simulation: int, job: Any) -> Ranks | Failure:
    pathlib.Path(folder, f"begun-{simulation}").touch()
    if folder not in _loaded:
        _loaded.clear()
        _loaded[folder] = _read(pathlib.Path(folder, "trial"))
    return _loaded[folder].run(simulation, job)


def _read(path: pathlib.Path) -> Trial:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the user's process, which ends the others
    threads, config, trial = cloudpickle.loads(path.read_bytes())
    os.environ.setdefault("NPROC", str(threads))  # the size of XLA's pool of threads
    for name, value in config.items():
        jax.config.update(name, value)
    return cloudpickle.loads(trial)

"""Independent jobs: in this process, in several of this machine, or wherever a backend of joblib runs them.

JAX must not be forked, so processes are fresh ones (joblib's loky: models from a notebook or a script without a
`__main__` guard travel by cloudpickle). What all jobs share is read once by every process, so that its functions and
targets are the same objects in all its fits, and programs are compiled once there: from a file, or, where processes
may be on other machines (`with joblib.parallel_config("dask")`), from what the backend sends them.
"""

import abc
import hashlib
import os
import pathlib
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from typing import Any

import cloudpickle
import jax
import joblib
from joblib.parallel import get_active_backend

from relbo.runtime.choices import whole_number

_JOBS_PER_PROCESS = 8  # a process compiles for itself, which takes as long as a few fits
_FEWEST_THREADS = 2  # so that one may wait for a callback on the host while the other works
_DIED = "its process died (killed, out of memory, or ended by the model itself)"


class AbstractTask(abc.ABC):
    """What is done with every job. It travels by pickle."""

    @abc.abstractmethod
    def run(self, number: int, job: Any) -> Any:
        """The outcome of a job, failures included: it does not raise. It depends on the arguments alone."""

    @abc.abstractmethod
    def failed(self, number: int, job: Any, message: str) -> Any:
        """The outcome of a job whose process died."""


def run_jobs(task: AbstractTask, jobs: Mapping[int, Any], wanted: int | None) -> Generator[tuple[int, Any], None, None]:
    """The number and outcome of every job, in any order. `wanted` is how many processes; 1 stays in this one.

    By default there are as many as a backend of joblib that was chosen outside has, or else one for every core.
    """
    wanted = None if wanted is None else whole_number("num_processes", wanted, 1)
    backend, configured = get_active_backend()
    if wanted == 1 or getattr(backend, "supports_sharedmem", False):
        return _here(task, jobs)
    if "Loky" in type(backend).__name__:
        num = _num_processes(wanted or (configured if configured and configured > 1 else None), len(jobs))
        return _here(task, jobs) if num == 1 else _on_this_machine(task, jobs, num)
    return _elsewhere(task, jobs, wanted or configured or -1)


def _num_processes(wanted: int | None, num_jobs: int) -> int:
    """One for every core, as long as each has jobs enough to be worth its start; one on a GPU, which is not shared."""
    if wanted is None:
        cores = joblib.cpu_count() if jax.default_backend() == "cpu" else 1
        return max(1, min(cores, num_jobs // _JOBS_PER_PROCESS))
    return max(1, min(wanted, num_jobs))


def _here(task: AbstractTask, jobs: Mapping[int, Any]) -> Generator[tuple[int, Any], None, None]:
    for number, job in jobs.items():
        yield number, task.run(number, job)


# On this machine


def _on_this_machine(
    task: AbstractTask, jobs: Mapping[int, Any], num_processes: int
) -> Generator[tuple[int, Any], None, None]:
    with tempfile.TemporaryDirectory(prefix="relbo-") as name:
        folder = pathlib.Path(name)
        (folder / "task").write_bytes(_packed(task, num_processes))
        waiting = dict(jobs)
        while waiting:
            try:
                for number, outcome in _pool(folder, waiting, num_processes):
                    del waiting[number]
                    yield number, outcome
            except BrokenProcessPool:
                begun = [each for each in waiting if (folder / f"begun-{each}").exists()]
                if not begun:  # processes die before any job begins: nothing would come of starting more
                    raise
                for number in begun:
                    yield number, _alone(task, folder, number, waiting.pop(number))


def _pool(folder: pathlib.Path, jobs: Mapping[int, Any], num: int) -> Generator[tuple[int, Any], None, None]:
    parallel = joblib.Parallel(num, backend="loky", return_as="generator_unordered", batch_size=1, max_nbytes=None)
    tasks = [joblib.delayed(_work_by_file)(str(folder), number, job) for number, job in jobs.items()]
    with closing(parallel(tasks)) as outcomes:
        yield from outcomes


def _alone(task: AbstractTask, folder: pathlib.Path, number: int, job: Any) -> Any:
    """When a process dies, any job that was running may be the cause: each is tried again with no other beside it."""
    try:
        ((_, outcome),) = _pool(folder, {number: job}, 2)  # of one, joblib would make this very process
    except BrokenProcessPool:
        return task.failed(number, job, _DIED)
    return outcome


def _work_by_file(folder: str, number: int, job: Any) -> tuple[int, Any]:
    pathlib.Path(folder, f"begun-{number}").touch()
    return _work(folder, lambda: pathlib.Path(folder, "task").read_bytes(), number, job)


# Elsewhere


class _Parcel:
    """The task in bytes; an object of its own, so that a backend can see that it is the same one in all jobs."""

    def __init__(self, content: bytes):
        self.content, self.name = content, hashlib.blake2b(content, digest_size=16).hexdigest()

    def __sizeof__(self) -> int:
        return len(self.content)


def _elsewhere(task: AbstractTask, jobs: Mapping[int, Any], num: int) -> Generator[tuple[int, Any], None, None]:
    """Where a backend gives up on some job it does not say on which: the rest are tried in two halves, and so on."""
    parcel = _Parcel(_packed(task, None))
    rest = [list(jobs)]
    while rest:
        waiting = dict.fromkeys(rest.pop())
        try:
            for number, outcome in _sent(parcel, {each: jobs[each] for each in waiting}, num):
                del waiting[number]
                yield number, outcome
        except Exception as error:
            left = list(waiting)
            if len(left) == 1:
                why = f"no worker finished it ({type(error).__name__}: {error})"
                yield left[0], task.failed(left[0], jobs[left[0]], why)
            else:
                rest += [half for half in (left[: len(left) // 2], left[len(left) // 2 :]) if half]


def _sent(parcel: _Parcel, jobs: Mapping[int, Any], num: int) -> Iterable[tuple[int, Any]]:
    backend = _telling(get_active_backend()[0])
    return_as = "generator_unordered" if backend.supports_return_generator else "list"
    parallel = joblib.Parallel(num, backend=backend, return_as=return_as, batch_size=1)
    found = parallel(joblib.delayed(_work_by_parcel)(parcel, number, job) for number, job in jobs.items())
    if return_as == "list":
        yield from found
        return
    with closing(found):
        yield from found


def _telling(backend: Any) -> Any:
    """The backend, made to tell of jobs whose worker died: joblib's own for Dask does not, and one would wait forever.

    And where one worker is left joblib would do the jobs in this very process: to it there are always two.
    """
    submit, count = type(backend).submit, type(backend).effective_n_jobs

    def submit_and_tell(func: Any, callback: Any = None) -> Any:
        future = submit(backend, func, callback)
        if callback is not None and hasattr(future, "add_done_callback"):
            future.add_done_callback(lambda done: done.exception() is None or callback(done.exception()))
        return future

    backend.submit = submit_and_tell
    backend.effective_n_jobs = lambda wanted: max(2, count(backend, wanted))
    return backend


def _work_by_parcel(parcel: _Parcel, number: int, job: Any) -> tuple[int, Any]:
    with _one_at_a_time:
        return _work(parcel.name, lambda: parcel.content, number, job)


# In a worker

_loaded: dict[str, AbstractTask] = {}
_one_at_a_time = threading.Lock()
"""Workers with several threads would only slow each other down: a fit uses the cores that there are."""


def _work(name: str, content: Any, number: int, job: Any) -> tuple[int, Any]:
    if name not in _loaded:
        _loaded.clear()
        _loaded[name] = _unpacked(content())
    return number, _loaded[name].run(number, job)


def _packed(task: AbstractTask, num_processes: int | None) -> bytes:
    """With the number of processes among which the cores are divided, if they are those of this machine."""
    threads = None if num_processes is None else (os.cpu_count() or 1) // num_processes
    config = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_compilation_cache_dir")}
    # The task is pickled apart: reading it may start JAX, and what JAX reads at its start has to come first.
    return cloudpickle.dumps((threads, config, cloudpickle.dumps(task)))


def _unpacked(content: bytes) -> AbstractTask:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the user's process, which ends the others
    threads, config, task = cloudpickle.loads(content)
    threads = max(_FEWEST_THREADS, _threads_here() if threads is None else threads)
    os.environ.setdefault("NPROC", str(threads))  # the size of XLA's pool of threads
    for name, value in config.items():
        jax.config.update(name, value)
    return cloudpickle.loads(task)


def _threads_here() -> int:
    """What a cluster gives this worker: Dask says it, and otherwise it is what the machine lets this process have."""
    try:
        return int(sys.modules["distributed"].get_worker().state.nthreads)
    except (KeyError, ValueError):
        return int(joblib.cpu_count())

"""kill -9 at random moments: whenever it strikes, the fit goes on to the same bits.

Twice. First whole processes: a life begins with the checkpoint that the last one left, and is killed at a random time
after its first write (or, one in ten, before); when a life ends by itself its file must equal that of a fit that
nothing happened to. A life costs seconds, so there are eight kills in `make test`, and two dozen more in
`make test-all`; there RELBO_KILLS=200 makes it two hundred.

Then processes that do what a fit does to the disk, and nothing else: they take the lock and write the checkpoints of a
fit one after the other. They are cheap, so two dozen are killed each time. What each leaves behind is resumed by a fit
in this process.
"""

import multiprocessing
import os
import pathlib
import signal
import time

import jax.numpy as jnp
import numpy as np
import pytest

import fault_worker
import relbo
from relbo.storage import checkpoint, container

FEW, MANY = 8, int(os.environ.get("RELBO_KILLS", "24"))
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["relbo", "jax.numpy", "fault_worker"])


class Life:
    """One process running the fit."""

    def __init__(self, name: str, folder: pathlib.Path, cache: str):
        self.path, self.result = folder / "fit.ckpt", folder / "digest"
        self.process = context.Process(
            target=fault_worker.run, args=(name, str(self.path), str(self.result), cache), daemon=True
        )
        self.process.start()

    def end(self) -> str:
        """Let it live to its end."""
        self.process.join(300)
        assert self.process.exitcode == 0
        return self.result.read_text()

    def kill(self, rng: np.random.Generator, seconds: float) -> bool:
        """Kill it; False if it had ended before."""
        before = self._stamp()
        if rng.random() < 0.9:
            while self.process.is_alive() and self._stamp() == before:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, seconds))
        else:
            time.sleep(rng.uniform(0, 1))
        alive = self.process.is_alive() and not self.result.exists()
        self.process.kill()
        self.process.join()
        return alive

    def _stamp(self):
        return os.stat(self.path).st_mtime_ns if self.path.exists() else None


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize(
    ("name", "seed", "num_kills"),
    [
        ("lean", 0, FEW),
        pytest.param("lean", 1, MANY, marks=pytest.mark.slow),
        pytest.param("default", 3, 4, marks=pytest.mark.slow),
    ],
)
def test_killed_fits_resume_to_the_same_bits(name, seed, num_kills, tmp_path, cache):
    rng = np.random.default_rng(seed)
    (tmp_path / "whole").mkdir()
    expected = Life(name, tmp_path / "whole", cache).end()
    kills, chain, seen = 0, 0, set()
    while kills < num_kills:
        folder = tmp_path / str(chain)
        folder.mkdir(exist_ok=True)
        life = Life(name, folder, cache)
        if life.kill(rng, 0.2 if name == "lean" else 0.5):
            kills += 1
            seen.add(_length(life.path))
            continue
        assert life.result.read_text() == expected
        chain += 1
    assert Life(name, tmp_path / str(chain), cache).end() == expected  # the last one that was killed
    assert len(seen) >= min(8, max(2, num_kills // 3))  # the blows fell at different iterations


@pytest.mark.filterwarnings("ignore:os.fork")  # what is forked here never calls JAX
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_writers_leave_a_fit_that_goes_on(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    target = relbo.from_log_density(fault_worker.log_density, jnp.zeros(1))
    settings = {**fault_worker.LEAN, "seed": 3, "max_components": 8, "progress_bar": False}
    written: list[list[bytes]] = []
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", lambda path, parts, **rest: written.append(parts))
        relbo.fit(target, checkpoint=tmp_path / "whole", **settings)
    seconds = _seconds_to_write(tmp_path / "timed", written)
    relbo.fit(target, checkpoint=tmp_path / "whole", **settings)
    expected = fault_worker.digest(str(tmp_path / "whole"))
    seen = set()
    for number in range(MANY):
        path = tmp_path / str(number) / "fit.ckpt"
        path.parent.mkdir()
        process = os.fork()
        if process == 0:
            _write_all(path, written)
        time.sleep(rng.uniform(0, 1.2 * seconds))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        seen.add(len(relbo.load(path).trace) if path.exists() else 0)
        relbo.fit(target, checkpoint=path, **settings)
        assert fault_worker.digest(str(path)) == expected
        assert os.listdir(path.parent) == ["fit.ckpt"]
    assert len(seen) >= 3  # the blows fell at different iterations


def _seconds_to_write(folder: pathlib.Path, written: list[list[bytes]]) -> float:
    """How long a process that nobody kills takes on this disk, its start included."""
    folder.mkdir()
    begun = time.perf_counter()
    process = os.fork()
    if process == 0:
        _write_all(folder / "fit.ckpt", written)
    os.waitpid(process, 0)
    return time.perf_counter() - begun


def _write_all(path: pathlib.Path, written: list[list[bytes]]) -> None:
    """In a forked process, so without JAX: only bytes and files."""
    with checkpoint.locked(path) as file:
        for parts in written:
            container.write_atomically(path, parts, before_replace=file._keep_previous)
    os._exit(0)


def _length(path: pathlib.Path) -> int:
    """The size of the checkpoint, which grows with every iteration."""
    return path.stat().st_size if path.exists() else 0

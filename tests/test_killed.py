"""kill -9 at random moments: whenever it strikes, the fit goes on to the same bits.

A life of the process begins with the checkpoint that the last one left, and is killed at a random time after its first
write (or, one in ten, before). When a life ends by itself its file must equal that of a fit that nothing happened to.
"""

import multiprocessing
import os
import pathlib
import time

import numpy as np
import pytest

import fault_worker

KILLS = {"lean": 64, "default": 8}
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


@pytest.mark.parametrize(("name", "seed"), [("lean", 0), ("lean", 1), ("lean", 2), ("default", 3)])
def test_killed_fits_resume_to_the_same_bits(name, seed, tmp_path, cache):
    rng = np.random.default_rng(seed)
    (tmp_path / "whole").mkdir()
    expected = Life(name, tmp_path / "whole", cache).end()
    kills, chain, seen = 0, 0, set()
    while kills < KILLS[name]:
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
    assert len(seen) >= (10 if name == "lean" else 2)  # the blows fell at different iterations


def _length(path: pathlib.Path) -> int:
    """The size of the checkpoint, which grows with every iteration."""
    return path.stat().st_size if path.exists() else 0

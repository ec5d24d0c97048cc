"""Starts the processes of `mesh_worker.py`, on this machine, and waits for them."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

import conftest

HERE = pathlib.Path(__file__).parent


class Crew:
    """Processes that make the same fits together."""

    def __init__(self, folder: pathlib.Path, cache: pathlib.Path, *jobs: dict, processes: int = 2, dump: str = ""):
        self.folder, self.jobs = folder, [{**job, "out": str(folder / job["name"])} for job in jobs]
        flags = conftest.FAST_COMPILATION + (f" --xla_dump_to={dump} --xla_dump_hlo_as_text" if dump else "")
        environment = {**os.environ, "XLA_FLAGS": flags}
        plan = {"processes": processes, "port": _free_port(), "timeout": 10, "cache": str(cache), "jobs": self.jobs}
        self.processes = []
        for process in range(processes):
            path = folder / f"plan{process}.json"
            path.write_text(json.dumps({**plan, "process": process}))
            command = [sys.executable, str(HERE / "mesh_worker.py"), str(path)]
            log = open(folder / f"log{process}.txt", "w")  # noqa: SIM115 (the process keeps it open)
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
            )
            log.close()

    def log(self, process: int) -> str:
        return (self.folder / f"log{process}.txt").read_text()

    def wait(self, seconds: float = 900) -> list[int]:
        """Their exit codes; none is left alive."""
        try:
            return [process.wait(seconds) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def ends_well(self) -> "Crew":
        codes = self.wait()
        assert not any(codes), f"{codes}\n{self.log(0)[-4000:]}\n{self.log(len(codes) - 1)[-4000:]}"
        return self

    def found(self, name: str, process: int = 0) -> dict[str, np.ndarray]:
        return dict(np.load(self.folder / f"{name}.{process}.npz"))

    def error(self, name: str, process: int) -> str:
        return (self.folder / f"{name}.{process}.error").read_text()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

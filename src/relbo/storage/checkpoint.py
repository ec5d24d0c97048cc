"""A fit on disk: written after every iteration, whole or not at all, by one process at a time."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from relbo.boosting import Booster
from relbo.posterior import Posterior
from relbo.storage.container import remove_leftovers, write_atomically
from relbo.storage.files import check_alike, read, settings_of, to_bytes
from relbo.storage.objects import encode

try:
    import fcntl
except ImportError:  # Windows: two processes are not kept apart there
    fcntl = None  # type: ignore[assignment]

_MEMORY = ("num_measure", "points_at_once")  # who ran out of memory may go on with less


class Checkpoint:
    """The file of one fit. The file before it is kept as `PATH.previous`, until the fit ends.

    A write that fails (a full disk) does not end the fit: it is warned of, and tried again after the next iteration.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.path.abspath(os.fspath(path))
        self.previous = f"{self.path}.previous"
        self.problem: str | None = None
        """Why the last write failed."""
        self.last_written = 0
        """How many iterations the file holds."""

    def write(self, posterior: Posterior, about: dict[str, Any]) -> None:
        try:
            write_atomically(self.path, to_bytes(posterior, fit=about), before_replace=self._keep_previous)
        except OSError as error:
            if self.problem is None:
                warnings.warn(
                    f"The checkpoint {self.path} could not be written ({error.strerror or error}). The fit goes on and "
                    f"tries again after every iteration; on disk is what it was after {self.last_written} of them.",
                    stacklevel=4,
                )
            self.problem = str(error.strerror or error)
        else:
            self.problem, self.last_written = None, len(posterior.trace)

    def finish(self) -> None:
        """After the last write: the file before it is needed no more."""
        if self.problem is None:
            with contextlib.suppress(OSError):
                os.unlink(self.previous)

    def read(self, booster: Booster) -> tuple[Posterior, dict[str, Any]] | None:
        """What the file holds, or the one before it if it is damaged; None if there is neither."""
        if not os.path.exists(self.path):
            return None
        try:
            found = read(self.path, booster.step_rule)
        except ValueError as error:
            if not os.path.exists(self.previous):
                raise ValueError(f"{error} To begin anew, delete the file or give another path.") from error
            warnings.warn(f"{error} Going on from {self.previous}, which is one iteration older.", stacklevel=5)
            found = read(self.previous, booster.step_rule)
        self.last_written = len(found[0].trace)
        return found

    def _keep_previous(self) -> None:
        """Give the file that is about to be replaced a second name; not every file system can."""
        beside = f"{self.previous}.tmp"
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            os.link(self.path, beside)
            os.replace(beside, self.previous)


@contextlib.contextmanager
def locked(path: str | os.PathLike) -> Iterator[Checkpoint]:
    """The checkpoint at `path`, held by this process alone. The lock ends with the process, however that ends."""
    checkpoint = Checkpoint(path)
    folder = os.path.dirname(checkpoint.path)
    if not os.path.isdir(folder):
        raise ValueError(f"checkpoint is to be written in {folder}, which is not a folder. Make it, or give another.")
    if os.path.isdir(checkpoint.path):
        raise ValueError(f"checkpoint must be the path of a file, and {checkpoint.path} is a folder.")
    if fcntl is None:
        yield checkpoint
        return
    name = f"{checkpoint.path}.lock"
    handle = _take_lock(name)
    try:
        remove_leftovers(checkpoint.path)
        yield checkpoint
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
        os.close(handle)


def _take_lock(name: str) -> int:
    while True:
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode(errors="replace") or "unknown"
            os.close(handle)
            raise ValueError(
                f"Another fit (process {owner}) is using the checkpoint {name.removesuffix('.lock')}. Wait for it, or "
                "give this fit a path of its own."
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(name)):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
        os.close(handle)  # its last owner removed it between our two calls


def fingerprint(booster: Booster, seed: int, log_densities: np.ndarray) -> dict[str, Any]:
    """What must not change between the parts of one fit."""
    encode(booster.family)  # raises now, and not after the first iteration, if a file cannot hold it
    return {"seed": seed, "log_densities": [float(value) for value in log_densities]}


def check_same_fit(found: tuple[Posterior, dict[str, Any]], booster: Booster, mine: dict[str, Any], path: str) -> None:
    """Refuse a checkpoint of another fit."""
    posterior, header = found
    other = f"The checkpoint {path} is of another fit: "
    remedy = " Go on with what it was begun with, delete it, or give another path."
    if header["fit"] is None:
        raise ValueError(
            f"{path} is a saved posterior, not a checkpoint. To go on from it: fit(start=relbo.load(path))."
        )
    check_alike(posterior.target, booster.target, f"The checkpoint {path}")
    theirs = header["fit"]
    if theirs["seed"] != mine["seed"]:
        raise ValueError(f"{other}its seed is {theirs['seed']}, not {mine['seed']}.{remedy}")
    settings, asked = header["settings"] | {"family": header["family"]}, settings_of(booster)
    asked |= {"family": encode(booster.family)}
    compared = [name for name in asked if name not in _MEMORY and not _unnamed(asked[name])]
    changed = [name for name in compared if asked[name] != settings.get(name)]
    if changed:
        raise ValueError(f"{other}{', '.join(changed)} differ{'s' if len(changed) == 1 else ''}.{remedy}")
    before, now = np.asarray(theirs["log_densities"]), np.asarray(mine["log_densities"])
    if before.shape != now.shape or not np.allclose(before, now, rtol=1e-4, atol=1e-4):
        raise ValueError(f"{other}the log density at the starting point was {before[0]:g}, and is {now[0]:g}.{remedy}")


def _unnamed(setting: Any) -> bool:
    return isinstance(setting, dict) and "not_stored" in setting

"""A fit on disk: written after every iteration, whole or not at all, by one process at a time."""

import contextlib
import errno
import hashlib
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.distributed.agreeing import from_first, is_first
from relbo.model.whitening import identity_map
from relbo.posterior.posterior import Posterior
from relbo.runtime.warn import warn
from relbo.storage.container import NewerFormat, pack, remove_leftovers, write_atomically
from relbo.storage.files import check_alike, describe, encode_family, settings_of
from relbo.storage.objects import decode_number, encode_number
from relbo.storage.reading import Contents, other_versions, read, read_bytes
from relbo.storage.targets import encode_target

try:
    import fcntl
except ImportError:  # Windows: two processes are not kept apart there
    fcntl = None  # type: ignore[assignment]

_NUM_SLOPES = 5  # of each gradient its length and four directions: any change of the model shows
_MEMORY = ("num_measure", "points_at_once")  # who ran out of memory may go on with less


class Checkpoint:
    """The file of one fit. The file before it is kept as `PATH.previous`, until the fit ends.

    A write that fails (a full disk) does not end the fit: it is warned of, and tried again after the next iteration.
    Of the processes that run one fit `together`, the first writes and reads the file, and tells the others.
    """

    def __init__(self, path: str | os.PathLike, together: bool = False):
        self.together = together
        self.path = os.path.realpath(os.fspath(path))
        self.previous = f"{self.path}.previous"
        self.problem: str | None = None
        """Why the last write failed."""
        self.last_written = 0
        """How many records of the trace the file holds."""
        self._target: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None

    def write(self, posterior: Posterior, facts: dict[str, Any], best: State | None) -> None:
        if self._target is None:
            # The same for all iterations. It may take the model, and so all processes.
            self._target = encode_target(posterior, 0, data=False)
        if self.together and not is_first():
            self.last_written = len(posterior.trace)
            return
        try:
            parts = pack(*describe(posterior, *self._target, fit=facts, best=best))
            write_atomically(self.path, parts, before_replace=self._keep_previous)
        except (OSError, TypeError, ValueError) as error:
            reason = str(getattr(error, "strerror", None) or error)
            if self.problem is None:
                warn(
                    f"The checkpoint {self.path} could not be written ({reason}). The fit goes on and tries again "
                    f"after every iteration; on disk is what it was after {self.last_written} of them."
                )
            self.problem = reason
        else:
            self.problem, self.last_written = None, len(posterior.trace)

    def finish(self) -> None:
        """After the last write: the file before it is needed no more."""
        if self.together and not is_first():
            return
        if self.problem is None:
            for name in (self.previous, f"{self.previous}.tmp"):
                with contextlib.suppress(OSError):
                    os.unlink(name)
        else:
            warn(
                f"The checkpoint {self.path} could not be written to the end ({self.problem}): it holds the fit after "
                f"{self.last_written} iterations. Keep the result: relbo.save it elsewhere."
            )

    def read(self, booster: Booster) -> Contents | None:
        """What the file holds, or the one before it if it is damaged; None if there is neither."""
        if not self.together:
            return self._read(booster)
        content = from_first(lambda: b"" if self._read(booster) is None else pathlib.Path(self.path).read_bytes())
        contents = read_bytes(content, self.path, booster.step_rule) if content else None
        self.last_written = 0 if contents is None else len(contents.posterior.trace)
        return contents

    def _read(self, booster: Booster) -> Contents | None:
        if not os.path.exists(self.path):
            return None
        try:
            contents = read(self.path, booster.step_rule)
        except NewerFormat:
            raise
        except (ValueError, OSError) as error:
            if not os.path.exists(self.previous):
                raise ValueError(f"{error} To begin anew, delete the file or give another path.") from error
            contents = read(self.previous, booster.step_rule)
            warn(f"{error} Going on from the checkpoint before it, {self.previous}.")
            os.replace(self.previous, self.path)  # or the next write would keep the damaged one
        self.last_written = len(contents.posterior.trace)
        return contents

    def _keep_previous(self) -> None:
        """Give the file that is about to be replaced a second name; not every file system can."""
        beside = f"{self.previous}.tmp"
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            os.link(self.path, beside)
            os.replace(beside, self.previous)


@contextlib.contextmanager
def locked(path: str | os.PathLike, together: bool = False) -> Iterator[Checkpoint]:
    """The checkpoint at `path`, held by this fit alone. The lock ends with the process, however that ends.

    Of processes that run a fit together the first holds it; what is wrong with the path is raised in all.
    """
    with contextlib.ExitStack() as stack:

        def hold() -> bytes:
            stack.enter_context(_held(checkpoint))
            return b""

        checkpoint = Checkpoint(path, together)
        if together:
            from_first(hold)
        else:
            hold()
        yield checkpoint


@contextlib.contextmanager
def _held(checkpoint: Checkpoint) -> Iterator[None]:
    folder = os.path.dirname(checkpoint.path)
    if not os.path.isdir(folder):
        raise ValueError(f"checkpoint is to be written in {folder}, which is not a folder. Make it, or give another.")
    if os.path.isdir(checkpoint.path):
        raise ValueError(f"checkpoint must be the path of a file, and {checkpoint.path} is a folder.")
    with _lock(f"{checkpoint.path}.lock", needed=not os.path.exists(checkpoint.path)) as mine:
        if mine:
            remove_leftovers(checkpoint.path)
        yield


@contextlib.contextmanager
def _lock(name: str, needed: bool) -> Iterator[bool]:
    """Whether there is a lock: some file systems have none. One that another process holds raises ValueError.

    In a folder that cannot be written there is none either: a checkpoint that is there can still be read, but where
    the lock is `needed` to make one that raises, too.
    """
    handle = None
    try:
        handle = _take_lock(name) if fcntl is not None else None
    except OSError as error:
        if needed:
            folder = os.path.dirname(name)
            raise ValueError(
                f"checkpoint is to be written in {folder}, which cannot be written ({error.strerror}). Give another "
                "path, or leave to write there."
            ) from error
    try:
        yield handle is not None
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
            os.close(handle)


def _take_lock(name: str) -> int | None:
    while True:
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode(errors="replace") or "unknown"
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                return None
            raise ValueError(
                f"Another fit (process {owner}) is using the checkpoint {name.removesuffix('.lock')}. Wait for it, or "
                "give this fit a path of its own."
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(name)):
                with contextlib.suppress(OSError):  # the number is for people; a full disk has no room for it
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        os.close(handle)  # its last owner removed it between our two calls


def fingerprint(booster: Booster, seed: int, start: Posterior | None) -> dict[str, Any]:
    """What must not change between the parts of one fit."""
    encode_family(booster.family)  # raises now, and not after the first iteration, if a file cannot hold it
    target = booster.target
    door = booster.door(identity_map(target, booster.preconditioner.kind))
    values, gradients = door.numbers(_around(target.dim), "checks")
    digest = None
    if start is not None:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(start.state.mixture)]
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
    return {
        "seed": seed,
        "start": digest,
        "log_densities": [encode_number(value) for value in np.asarray(values, np.float64).tolist()],
        "slopes": _slopes(gradients if target.differentiable else None),
    }


def _around(dim: int) -> np.ndarray:
    """Steps from the first starting point: at that point alone, many models do not depend on their data."""
    return np.linspace(-2, 2, 7)[:, None] * np.cos(np.arange(dim))


def _slopes(gradients: Any) -> list[Any]:
    """What is kept of the gradients, (num, dim): of each the length, and the slopes along a few fixed directions."""
    if gradients is None:
        return []
    gradients = np.asarray(gradients, np.float64)
    directions = np.random.default_rng(0).choice([-1.0, 1.0], (gradients.shape[1], _NUM_SLOPES - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        slopes = np.hstack([lengths, gradients @ directions / math.sqrt(len(directions))])
    return [encode_number(slope) for slope in slopes.ravel().tolist()]


def check_same_fit(contents: Contents, booster: Booster, mine: dict[str, Any], path: str) -> None:
    """Refuse a checkpoint of another fit."""
    posterior, header, _ = contents
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
    if theirs["start"] is not None and mine["start"] is None:
        raise ValueError(
            f"{other}it was begun with start=, and this one has none. Give the same start again; or, if there is none, "
            f"go on from what the file holds, with another checkpoint: fit(start=relbo.load({path!r}))."
        )
    if theirs["start"] != mine["start"]:
        raise ValueError(f"{other}it was not begun from this start.{remedy}")
    settings, asked = header["settings"] | {"family": header["family"]}, settings_of(booster)
    asked |= {"family": encode_family(booster.family)}
    compared = [name for name in asked if name not in _MEMORY and not _unnamed(asked[name])]
    changed = [name for name in compared if asked[name] != settings.get(name)]
    if changed:
        raise ValueError(f"{other}{', '.join(changed)} differ{'s' if len(changed) == 1 else ''}.{remedy}")
    if not theirs["finished"] and (versions := other_versions(header)) is not None:
        warn(f"The checkpoint {path} was written by {versions}. The fit goes on, but not to the same bits.")
    eps = float(np.finfo(posterior.target.dtype).eps)
    before, after = (_numbers(facts["log_densities"]) for facts in (theirs, mine))
    if not _alike(before, after, eps):
        raise ValueError(
            f"{other}its log density is not this one; around the starting point it was {before[0]:g}, {before[1]:g}, "
            f"..., and is {after[0]:g}, {after[1]:g}, ... (other data, or another model).{remedy}"
        )
    slopes = [_numbers(facts.get("slopes", [])) for facts in (theirs, mine)]
    if len(slopes[0]) > 0 and not _same_slopes(slopes[0], slopes[1], eps):  # the files of older versions have none
        raise ValueError(
            f"{other}the gradient of its log density is not this one; at the first of the points that are compared its "
            f"length was {slopes[0][0]:g}, and is {slopes[1][0]:g} (other data, or another model).{remedy}"
        )


def _alike(before: np.ndarray, after: np.ndarray, eps: float) -> bool:
    """Log densities are equal up to the rounding of another device, and more closely so the steps between them.

    Much of a large log density is a constant, and what summing it in another order changes is, too.
    """
    finite = np.isfinite(before)
    if before.shape != after.shape or not np.array_equal(before[~finite], after[~finite], equal_nan=True):
        return False
    before, after = before[finite], after[finite]
    with np.errstate(invalid="ignore"):
        values = np.abs(before - after) <= 1e-3 + 100 * eps * np.abs(before)
        steps = np.abs(np.diff(before) - np.diff(after)) <= 1e-3 + 10 * eps * np.max(np.abs(before), initial=0)
    return bool(np.all(values) and np.all(steps))


def _same_slopes(before: np.ndarray, after: np.ndarray, eps: float) -> bool:
    """Up to rounding, which is that of the longest of the gradients."""
    if before.shape != after.shape or not np.array_equal(np.isfinite(before), np.isfinite(after)):
        return False
    finite = np.isfinite(before)
    longest = np.max(np.abs(before[finite]), initial=0)
    return bool(np.all(np.abs(before - after)[finite] <= 1e-6 + 1000 * eps * longest))


def _numbers(values: list[Any]) -> np.ndarray:
    return np.asarray([decode_number(value) for value in values])


def _unnamed(setting: Any) -> bool:
    return type(setting) is dict and "not_stored" in setting

r"""`fit_many`: independent fits, of several targets or with several seeds, in several processes or across a cluster."""

import os
import pathlib
import re
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from relbo.distributed.agreeing import digest_of
from relbo.loop.fits import FitFailure, Fits, Fitted, Kept
from relbo.loop.fitting import check_settings, fit
from relbo.loop.progress import count_up
from relbo.runtime.choices import seed_number
from relbo.runtime.functions import fingerprint
from relbo.runtime.journal import Journal
from relbo.runtime.workers import AbstractTask, run_jobs
from relbo.storage.container import write_atomically
from relbo.storage.files import to_bytes
from relbo.storage.objects import encode_or_text
from relbo.targets import AbstractTarget, as_target

_OURS = ("seed", "checkpoint", "start", "progress_bar", "callback", "mesh", "shard")
_ADDRESS = " at 0x"
_SAFE = re.compile(r"[\w.+-]+")


class Job(NamedTuple):
    """Which fit."""

    name: str
    seed: int

    @property
    def file(self) -> str:
        return f"{self.name}-seed{self.seed}.relbo"


@dataclass(frozen=True)
class Fitting(AbstractTask):
    """What a process needs to make any of the fits."""

    targets: Mapping[str, Any]
    settings: Mapping[str, Any]

    def run(self, number: int, job: Job) -> tuple[Fitted, bytes] | FitFailure:
        try:
            posterior = fit(_made(self.targets[job.name]), seed=job.seed, progress_bar=False, **self.settings)
            if posterior.stop.kind == "interrupted":
                raise KeyboardInterrupt
            if posterior.stop.kind == "failed":
                raise RuntimeError(posterior.stop_reason)
            return Fitted.of(posterior, job.name, job.seed), b"".join(to_bytes(posterior, num_draws=None, data=True))
        except Exception as error:
            return self.failed(number, job, f"{type(error).__name__}: {error}")

    def failed(self, number: int, job: Job, message: str) -> FitFailure:
        return FitFailure(job.name, job.seed, message)


def fit_many(
    targets: Any,
    seeds: int | Iterable[int] = 0,
    *,
    folder: str | os.PathLike | None = None,
    num_processes: int | None = None,
    progress_bar: bool = True,
    **settings: Any,
) -> Fits:
    """Fit several targets, or one with several seeds, or each with each; fits know nothing of each other.

    Arguments:
        targets: a target (or a PyMC model), or a list of them, or a dict of them by name; or, in place of any, a
            function of no arguments that makes one where it is fitted, for what is large or cannot travel (Stan).
        seeds: one, or several for every target.
        folder: where every fit is written when it is done, as `NAME-seedSEED.relbo`. The same call, after it was
            stopped, makes only those that are missing; what failed is tried again. This process writes it: others need
            not see it. A setting that is a function is known again by its code; optimizers of optax are not, and the
            folder is refused.
        num_processes: by default one for every core, as long as each has eight fits: every process compiles for itself.
            So fewer than 16 fits are made one after the other in this process (as with 1), and a model that crashes
            takes it along: say 2 for models that may. Inside `with joblib.parallel_config("dask")`, or another of
            joblib's backends, fits are made there.
        settings: of `relbo.fit`, the same for all.

    A fit that raises, or whose process (where it has its own) dies, is counted in `failures` and never hidden. Ctrl-C
    gives what is done, with a warning. The result does not depend on where fits are made.

    >>> import jax.numpy as jnp, relbo
    >>> target = relbo.from_log_density(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), jnp.zeros(2))
    >>> fits = relbo.fit_many(target, seeds=range(2), num_processes=1, progress_bar=False)
    >>> len(fits), len(fits.failures)
    (2, 0)
    """
    _check(settings)
    named = _named(targets)
    numbers = [seed_number(seed) for seed in (seeds if isinstance(seeds, Iterable) else (seeds,))]
    jobs = dict(enumerate(Job(name, seed) for name in named for seed in numbers))
    if not jobs or len(set(jobs.values())) < len(jobs):
        raise ValueError(f"fit_many needs targets and seeds, every seed once, got {list(named)} and {numbers}.")
    store = Store(folder, named, settings)
    fits = Fits({(job.name, job.seed): each for job in jobs.values() if (each := store.kept(job)) is not None}, [])
    waiting = {number: job for number, job in jobs.items() if (job.name, job.seed) not in fits}
    try:
        with count_up(progress_bar, "fitting", len(waiting)) as report:
            _collect(Fitting(named, settings), waiting, num_processes, (fits, store, report))
    except KeyboardInterrupt:
        if not len(fits):
            raise
        warnings.warn(f"Interrupted: returning {len(fits)} of {len(jobs)} fits.", stacklevel=2)
    return fits


def _collect(task: Fitting, jobs: dict[int, Job], num_processes: int | None, where: tuple[Fits, "Store", Any]) -> None:
    fits, store, report = where
    with warnings.catch_warnings(), closing(run_jobs(task, jobs, num_processes)) as outcomes:
        warnings.filterwarnings("ignore", message=".*tasks which were still being processed")  # ended early, as we mean
        for number, outcome in outcomes:
            job = jobs[number]
            if isinstance(outcome, FitFailure):
                fits.failures.append(outcome)
                store.note(outcome)
            else:
                fits.kept[job.name, job.seed] = store.keep(job, *outcome)
            report(len(fits.failures))


class Store:
    """Where fits go: files in a folder, and a journal of them; or memory."""

    def __init__(self, folder: str | os.PathLike | None, targets: Mapping[str, Any], settings: Mapping[str, Any]):
        self.folder, self.journal = None, None
        self.targets = targets
        if folder is None:
            return
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {name: _fact(value) for name, value in sorted(settings.items())}
        try:
            self.journal = Journal(self.folder / "fits.jsonl", "many fits", {"settings": facts})
        except ValueError as error:
            nameless = [name for name, fact in facts.items() if _ADDRESS in str(fact)]
            if nameless:
                error.add_note(
                    f"({', '.join(nameless)}: what has no name looks different in every process, so that it cannot be "
                    "seen whether it is the same. Give a plain function, or a setting of relbo's own, in its place.)"
                )
            raise
        self.done = {entry["file"]: entry for entry in self.journal.entries if "file" in entry}

    def kept(self, job: Job) -> Kept | None:
        """A fit of an earlier call."""
        if self.folder is None or job.file not in self.done or not (self.folder / job.file).exists():
            return None
        entry = self.done[job.file]
        if entry["data"] != self._data(job):
            raise ValueError(
                f"{self.folder / job.file} is a fit to other data than {job.name!r} has now. Take another folder, or "
                "another name."
            )
        return Kept(Fitted.from_entry(entry["fitted"]), self.folder / job.file, b"", self._target(job))

    def keep(self, job: Job, fitted: Fitted, content: bytes) -> Kept:
        if self.folder is None or self.journal is None:
            return Kept(fitted, None, content, self._target(job))
        write_atomically(self.folder / job.file, [content])
        self.journal.add({"file": job.file, "data": self._data(job), "fitted": fitted.as_entry()})
        return Kept(fitted, self.folder / job.file, b"", self._target(job))

    def note(self, failure: FitFailure) -> None:
        if self.journal is not None:
            self.journal.add({"failure": failure.message, "name": failure.name, "seed": failure.seed})

    def _target(self, job: Job) -> AbstractTarget | None:
        """None where a function makes it, in the process of the fit."""
        target = self.targets[job.name]
        return None if _is_maker(target) else target

    def _data(self, job: Job) -> str | None:
        """A digest of the data of a target; None where a function makes it, or there are none that can be held."""
        target = self._target(job)
        held = None if target is None else target.held_data()
        return None if held is None else digest_of(held).hex()


def _fact(value: Any) -> Any:
    return {"code": fingerprint(value)} if type(value) is types.FunctionType else encode_or_text(value)


def _check(settings: Mapping[str, Any]) -> None:
    ours = [name for name in settings if name in _OURS]
    if ours:
        raise TypeError(
            f"fit_many has no setting {', '.join(ours)}: seeds are its second argument, folder= keeps every fit when "
            "it is done, and every fit is made by one process."
        )
    check_settings(dict(settings))


def _named(targets: Any) -> dict[str, Any]:
    """By name: their own, or how many they are, or "fit" for one alone."""
    if isinstance(targets, Mapping):
        found = {str(name): target for name, target in targets.items()}
    elif isinstance(targets, list | tuple):
        found = {str(number): target for number, target in enumerate(targets)}
    else:
        found = {"fit": targets}
    for name in found:
        if not _SAFE.fullmatch(name):
            raise ValueError(f"names of targets are names of files: letters, digits, - _ + and ., got {name!r}.")
    return {name: target if _is_maker(target) else as_target(target) for name, target in found.items()}


def _is_maker(target: Any) -> bool:
    return callable(target) and not isinstance(target, AbstractTarget)


def _made(target: AbstractTarget | Callable[[], Any]) -> AbstractTarget:
    return as_target(target()) if _is_maker(target) else target  # type: ignore[operator,return-value]

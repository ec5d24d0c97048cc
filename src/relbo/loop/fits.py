"""What `fit_many` returns: many fits, each read from its file when it is asked for."""

import dataclasses
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relbo.comparison import Agreement, compare
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.runtime.tables import Tabular
from relbo.runtime.workers import AbstractTask, run_jobs
from relbo.storage.files import attach
from relbo.storage.layouts import decode_estimate, encode_estimate
from relbo.storage.reading import read_bytes
from relbo.targets import AbstractTarget

_ROWS = 20  # of a table, before it is cut
_MESSAGE_LENGTH = 200  # of a message in a table: the rest is in the failure itself
_HEADING = ("fit", "seed", "components", "ELBO", "seconds", "ended")


@dataclass(frozen=True)
class Fitted:
    """What is told of one fit without reading it."""

    name: str
    seed: int
    elbo: Estimate
    num_components: int
    seconds: float
    stop: str
    """How it ended: `converged`, `budget`, ..."""

    @classmethod
    def of(cls, posterior: Posterior, name: str, seed: int) -> "Fitted":
        count, seconds = posterior.num_components, posterior.seconds
        return cls(name, seed, posterior.elbo, count, seconds, posterior.stop.kind)

    def as_entry(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"elbo": encode_estimate(self.elbo)}

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> "Fitted":
        return cls(**{**entry, "elbo": decode_estimate(entry["elbo"])})


@dataclass(frozen=True)
class FitFailure:
    """A fit that is not there, and why."""

    name: str
    seed: int
    message: str


@dataclass(frozen=True)
class Kept:
    """A fit, its file or the bytes of one, and its target (None where it was made for this fit alone)."""

    fitted: Fitted
    path: pathlib.Path | None
    content: bytes
    target: AbstractTarget | None

    def posterior(self) -> Posterior:
        found = read_bytes(self._bytes(), str(self.path or "the fit")).posterior
        return found if self.target is None else attach(found, self.target)

    def in_memory(self) -> "Kept":
        """The same without its file."""
        return dataclasses.replace(self, path=None, content=self._bytes())

    def _bytes(self) -> bytes:
        return self.content if self.path is None else self.path.read_bytes()


@dataclass(frozen=True)
class Fits(Tabular):
    """Fits by the name of their target and their seed: `fits["eight", 0]` is a posterior. Printing gives a table."""

    kept: dict[tuple[str, int], Kept]
    failures: list[FitFailure]
    """Fits that raised, or whose process died: name, seed and message."""

    def __len__(self) -> int:
        return len(self.kept)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.kept)

    def __contains__(self, key: object) -> bool:
        return key in self.kept

    def __getitem__(self, key: tuple[str, int]) -> Posterior:
        if key not in self.kept:
            raise KeyError(f"there is no fit {key!r}, a name and a seed; there are {list(self.kept)}.")
        return self.kept[key].posterior()

    @property
    def fitted(self) -> list[Fitted]:
        """What is known of every fit, in the order of names and seeds."""
        return [self.kept[key].fitted for key in sorted(self.kept)]

    def best(self, name: str | None = None) -> Posterior:
        """Of the fits of one target, the one with the largest ELBO: a bound of the same log Z for all of them."""
        names = {each.name for each in self.fitted}
        if name is None and len(names) > 1:
            raise ValueError(f"ELBOs of different targets cannot be compared: best(name), with one of {sorted(names)}.")
        mine = [each for each in self.fitted if name in (None, each.name)]
        if not mine:
            raise ValueError(f"there is no fit of {name!r}; there are fits of {sorted(names)}.")
        chosen = max(mine, key=lambda each: float(each.elbo.value))
        return self[chosen.name, chosen.seed]

    def compare(
        self, reference: Any, num_draws: int = 10_000, *, num_processes: int | None = None
    ) -> tuple[dict[tuple[str, int], Agreement], list[FitFailure]]:
        """`relbo.compare` of every fit with the same reference, made where `fit_many` makes fits; and what failed."""
        found, failures = {}, []
        jobs = dict(enumerate(sorted(self.kept)))
        for number, outcome in run_jobs(Comparing(self.kept, reference, num_draws), jobs, num_processes):
            if isinstance(outcome, FitFailure):
                failures.append(outcome)
            else:
                found[jobs[number]] = outcome
        return found, failures

    @property
    def verdict(self) -> str:
        failed = len(self.failures)
        return f"{len(self.kept)} fits; {failed} failure{'' if failed == 1 else 's'}."

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows: list[tuple[str, ...]] = [
            (each.name, str(each.seed), str(each.num_components), str(each.elbo), f"{each.seconds:.1f}", each.stop)
            for each in self.fitted[:_ROWS]
        ]
        return _HEADING, rows

    def _lines(self) -> list[str]:
        lines = [f"... and {len(self) - _ROWS} more"] if len(self) > _ROWS else []
        if self.failures:
            first = self.failures[0]
            lines.append(f"first failure: {first.name}, seed {first.seed}: {first.message[:_MESSAGE_LENGTH]}")
        return lines


@dataclass(frozen=True)
class Comparing(AbstractTask):
    """What a process needs to compare any of the fits. Files travel as their contents: a folder may not be shared."""

    kept: dict[tuple[str, int], Kept]
    reference: Any
    num_draws: int

    def run(self, number: int, job: tuple[str, int]) -> Agreement | FitFailure:
        try:
            return compare(self.kept[job].posterior(), self.reference, self.num_draws)
        except Exception as error:
            return self.failed(number, job, f"{type(error).__name__}: {error}")

    def failed(self, number: int, job: tuple[str, int], message: str) -> FitFailure:
        return FitFailure(*job, message)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": {key: each.in_memory() for key, each in self.kept.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

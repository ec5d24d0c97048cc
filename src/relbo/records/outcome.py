"""How a fit ended: a kind, for programs, and a sentence, for people."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["converged", "stalled", "budget", "interrupted", "failed", "broken"]


@dataclass(frozen=True)
class Stop:
    """Why a fit stopped.

    `kind` is "converged" (near enough, by the rule that ended it), "stalled" (it gained no more), "budget" (it may have
    gained more), "interrupted" (Ctrl-C), "failed" (an error) or "broken" (too many NaN). `sentence` goes on after "the
    fit stopped because". `limit` names what ran out: "components", "iterations", "seconds", "evaluations", "memory".
    """

    kind: Kind
    sentence: str
    limit: str = ""

    def __post_init__(self):
        if self.kind not in get_args(Kind):
            raise ValueError(f"a fit ends as one of {', '.join(get_args(Kind))}, got {self.kind!r}.")

    def __str__(self) -> str:
        return self.sentence

    @property
    def is_early(self) -> bool:
        """Whether it ended before it was done."""
        return self.kind not in ("converged", "stalled")


INTERRUPTED = Stop("interrupted", "it was interrupted")

_BEGINNINGS: tuple[tuple[str, Kind], ...] = (
    ("the last ", "stalled"),
    ("the duality gap was below", "converged"),
    ("the mixture is within", "converged"),
    ("it was interrupted", "interrupted"),
    ("it failed", "failed"),
)
_LIMITS = {" component": "components", " iteration": "iterations", " s was spent": "seconds", " eval": "evaluations"}


def stop_of(said: Any) -> Stop | None:
    """What a rule said: a `Stop`, None, or a sentence, by which a rule of one's own says that it is content."""
    return Stop("converged", said) if isinstance(said, str) else said


def old_stop(sentence: str) -> Stop:
    """The end of a fit of which a file of an older version says no more than a sentence."""
    for beginning, kind in _BEGINNINGS:
        if sentence.startswith(beginning):
            return Stop(kind, sentence)
    if "NaN log density" in sentence:
        return Stop("broken", sentence)
    if "the most allowed" not in sentence and "the budget of" not in sentence:
        return Stop("converged", sentence)
    return Stop("budget", sentence, next((limit for words, limit in _LIMITS.items() if words in sentence), ""))

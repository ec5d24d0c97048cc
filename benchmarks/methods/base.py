"""What a method of the comparison is, what it is given, and what it hands back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NUM_DRAWS = 10_000
"""Draws on which every variational method is measured."""


class NotApplicable(Exception):
    """The method cannot take the model; the message says why."""


@dataclass(frozen=True)
class Method:
    """A row of the comparison. Importing it imports nothing heavy: `module` is loaded when the method runs.

    `methods/<module>.py` has `run(task) -> Outcome`; what it imports at its top is what its users wait for.
    """

    name: str
    title: str
    module: str
    settings: dict[str, Any]
    variational: bool = True
    needs_pymc: bool = False
    num_seeds: int = 1
    """In a complete run."""


class Task(NamedTuple):
    """One cell: the model (of `posteriors`), its data as NumPy arrays, the seed, and the method's settings."""

    model: Any
    data: tuple
    seed: int
    settings: dict[str, Any]
    clock: Any
    """A `clock.CompileClock`, to which compilers other than JAX's are reported."""


class Density(NamedTuple):
    """Fresh draws of q with log q at them: what an ELBO needs."""

    draws: Any
    log_q: Any


@dataclass(frozen=True)
class Outcome:
    """What a method found. `draws`, (num, dim) in the model's coordinates, give moments and masses.

    `density` is called after the clock has stopped; None for a method without a density.
    """

    draws: Any
    num_gradients: int | None
    density: Callable[[], Density] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

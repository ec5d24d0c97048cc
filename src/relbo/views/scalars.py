"""Draws of a posterior as a table of named scalars, and the components that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from relbo.comparison.reference import read_reference
from relbo.diagnostics.modes import modes_of
from relbo.diagnostics.parameters import named_columns
from relbo.mixture import log_densities, map_chunks
from relbo.posterior.posterior import Posterior
from relbo.runtime.choices import seed_number, whole_number
from relbo.runtime.compiling import compiled
from relbo.runtime.words import shorten


@dataclass(frozen=True)
class Scalars:
    """Independent draws of the mixture. Components are numbered by weight, the heaviest first."""

    names: list[str]
    """Of the model's scalar parameters and computed quantities, as in a diagnosis: "tau", "theta[0]"."""
    values: np.ndarray
    """(num_draws, num_names), constrained."""
    points: np.ndarray
    """The same draws in unconstrained coordinates, (num_draws, dim)."""
    shares: np.ndarray
    """(num_draws, num_components): the probability that a draw comes from a component."""
    weights: np.ndarray
    """(num_components,)."""
    mode_shares: np.ndarray
    """(num_draws, num_modes): the probability that a draw comes from a mode, the heaviest first."""
    mode_weights: np.ndarray
    """(num_modes,)."""

    @property
    def labels(self) -> np.ndarray:
        """The component that most probably made each draw, (num_draws,)."""
        return self.shares.argmax(axis=1)

    def column(self, name: str) -> np.ndarray:
        return self.values[:, self.names.index(name)]


def scalars(posterior: Posterior, num_draws: int = 2000, seed: int = 0) -> Scalars:
    """Draw, constrain and attribute to components.

    Of a posterior that was loaded without its model the draws in the file are read, if there are enough of them, or if
    only the model can compute the parameters of others: then there may be fewer.
    """
    num_draws, seed = whole_number("num_draws", num_draws, 1), seed_number(seed)
    stored = posterior.target.stored
    values: PyTree
    if stored is not None and (stored.layout is None or (stored.draws and stored.at_most(num_draws) == num_draws)):
        drawn = stored.choose_draws(stored.at_most(num_draws), seed)
        points, values = drawn.z, drawn.values
    else:
        points = np.asarray(posterior.sample_unconstrained(num_draws, seed=seed))
        values = posterior.constrain(jnp.asarray(points))
    names, columns = named_columns(values, posterior.target.first_index)
    shares = shares_at(posterior, points)
    weights = posterior.weights.astype(np.float64)
    return Scalars(names, columns, points, shares, weights, *by_mode(posterior, shares))


def shares_at(posterior: Posterior, points: np.ndarray) -> np.ndarray:
    """The responsibility of every component for unconstrained points, (num, num_components), by weight."""
    slots = slots_by_weight(posterior)
    log_each = log_densities(posterior.mixture.family, posterior.mixture.params, whitened(posterior, points))
    joint = log_each[:, slots] + np.asarray(posterior.mixture.log_weights, np.float64)[slots]
    return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))


def by_mode(posterior: Posterior, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Responsibilities of modes (num, num_modes) from those of their components, and the weights of the modes."""
    modes = modes_of(posterior)
    own = modes.labels[slots_by_weight(posterior)]
    return shares @ (own[:, None] == np.arange(len(modes))), modes.weights


def slots_by_weight(posterior: Posterior) -> np.ndarray:
    """Where the mixture keeps its components, in the order of `posterior.weights`."""
    weights = np.exp(np.asarray(posterior.mixture.log_weights))
    return np.argsort(-weights, kind="stable")[: posterior.num_components]


def whitened(posterior: Posterior, points: np.ndarray) -> np.ndarray:
    """Unconstrained points (num, dim) in the coordinates that the fit worked in."""
    return np.asarray(_whiten(posterior.whitened, jnp.asarray(points, posterior.whitened.dtype)))


@partial(compiled, runs_once=True)
def _whiten(coordinates, points):
    return map_chunks(coordinates.whiten, points)


def choose_names(names: Sequence[str], wanted: str | Sequence[str] | None, most: int) -> list[str]:
    """The scalars that are meant: by their own names, or all entries of a variable; the first `most` by default."""
    if wanted is None:
        return list(names[:most])
    chosen = []
    for asked in [wanted] if isinstance(wanted, str) else wanted:
        meant = asked.replace(", ", ",")
        entries = [name for name in names if name == meant or name.startswith(f"{meant}[")]
        if not entries:
            raise ValueError(f"there is no parameter {asked!r}. There are: {shorten(names, 20)}.")
        chosen += [name for name in entries if name not in chosen]
    return chosen


def reference_columns(posterior: Posterior, reference: Any, num_draws: int, seed: int) -> dict[str, np.ndarray]:
    """Reference draws (see `relbo.compare` for what is understood) by the names that `scalars` gives."""
    return read_reference(reference, posterior, num_draws, seed).columns

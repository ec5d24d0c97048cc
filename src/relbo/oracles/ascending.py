"""The oracle that climbs: the best starts of the pool, moved uphill side by side, the best ends kept."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import optax

from relbo.ascent import AbstractAscent, GradientAscent, NaturalAscent
from relbo.budgets import FEW
from relbo.oracles.base import AbstractOracle, Proposals
from relbo.oracles.starts import Starts, choose_diverse
from relbo.records.estimate import Estimate
from relbo.runtime.compiling import host_split

_APART = 0.25
"""Nats below its peak at which the density of one proposal must be where the next one lies: 0.7 standard deviations."""


class AscentOracle(AbstractOracle):
    """Score the pool, move the `num_restarts` best and most different starts by `ascent`, keep the best ends."""

    ascent: AbstractAscent
    num_restarts: int = eqx.field(static=True, default=FEW.num_restarts)
    starts: Starts = Starts()

    def __check_init__(self):
        if self.num_restarts < 1:
            raise ValueError(f"num_restarts must be at least 1, got {self.num_restarts}.")

    def check(self, family):
        self.ascent.check(family)

    def first_ascent(self):
        return self.ascent

    def with_draws(self, least):
        return dataclasses.replace(self, ascent=self.ascent.with_draws(least))

    def propose(self, key, door, aim, cloud, modes, most):
        start_key, ascent_key = host_split(key, 2)
        params = self.starts.best(start_key, door, cloud, modes, self.num_restarts, aim.iteration)
        return chosen_of(cloud, self.ascent.improve(ascent_key, door, aim, params), most)


def chosen_of(cloud, improved, most: int) -> Proposals:
    """The best of what an ascent found, and others that differ from it; where nothing is finite, the first as it is."""
    ranked = improved.order()
    best = int(ranked[0]) if len(ranked) else 0
    value = Estimate(float(improved.value[best]), float(improved.std_err[best]), improved.num_draws)
    members = jax.tree.map(np.asarray, improved.params)
    chosen = np.asarray([best])
    if most > 1 and len(ranked) > 1:
        usable = jax.tree.map(lambda leaf: leaf[ranked], members)
        order = choose_diverse(cloud, usable, improved.value[ranked], min(most, len(ranked)), _APART)
        chosen = ranked[order]
    return Proposals(jax.tree.map(lambda leaf: leaf[chosen], members), value, improved.num_nan)


def NaturalOracle(  # reads as the class that it builds
    num_steps: int = NaturalAscent.num_steps,
    num_draws: int = NaturalAscent.num_draws,
    num_restarts: int = FEW.num_restarts,
    starts: Starts | None = None,
) -> AscentOracle:
    """Natural gradients, for normal components with a full or diagonal scale."""
    ascent = NaturalAscent(num_steps, num_draws)
    return AscentOracle(ascent=ascent, num_restarts=num_restarts, starts=starts or Starts())


def GradientOracle(
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = GradientAscent.num_steps,
    num_draws: int = GradientAscent.num_draws,
    num_restarts: int = 4,
    starts: Starts | None = None,
) -> AscentOracle:
    """Any Optax optimiser (Adam with a falling learning rate by default), for every family."""
    ascent = GradientAscent(num_steps, num_draws, optimizer=optimizer)
    return AscentOracle(ascent=ascent, num_restarts=num_restarts, starts=starts or Starts())

"""The oracle that climbs: the best starts of the pool, moved uphill side by side, the best end kept."""

import equinox as eqx
import jax
import optax

from relbo._compiled import compiled
from relbo.ascent import AbstractAscent, GradientAscent, NaturalAscent
from relbo.estimate import Estimate
from relbo.oracles.base import AbstractOracle, Proposal
from relbo.oracles.starts import Starts, best_starts, pool_evaluations


class AscentOracle(AbstractOracle):
    """Score the pool, move the `num_restarts` best and most different starts by `ascent`, keep the best end."""

    ascent: AbstractAscent
    num_restarts: int = eqx.field(static=True, default=6)
    starts: Starts = Starts()

    def __check_init__(self):
        if self.num_restarts < 1:
            raise ValueError(f"num_restarts must be at least 1, got {self.num_restarts}.")

    def check(self, family):
        self.ascent.check(family)

    @compiled
    def propose(self, key, target, mixture, modes, objective, estimator, iteration):
        *pool_keys, ascent_key = jax.random.split(key, 4)
        params = best_starts(
            pool_keys, target.subsample(key), mixture, self.starts, modes, self.num_restarts, iteration
        )
        found = self.ascent.improve(ascent_key, target, mixture, objective, estimator, params, iteration)
        best = found.best()
        num_draws = self.ascent.num_draws * max(1, self.ascent.num_steps // 4)
        value = Estimate(found.value[best], found.std_err[best], num_draws)
        return Proposal(jax.tree.map(lambda leaf: leaf[best], found.params), value, found.num_nan)

    def num_evaluations(self, mixture):
        return self.num_restarts * self.ascent.num_steps * self.ascent.num_draws + pool_evaluations(
            self.starts, mixture.dim
        )


def NaturalOracle(  # reads as the class that it builds
    num_steps: int = 100, num_draws: int = 32, num_restarts: int = 6, starts: Starts | None = None
) -> AscentOracle:
    """Natural gradients, for normal components with a full or diagonal scale."""
    ascent = NaturalAscent(num_steps, num_draws)
    return AscentOracle(ascent=ascent, num_restarts=num_restarts, starts=starts or Starts())


def GradientOracle(
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 500,
    num_draws: int = 16,
    num_restarts: int = 4,
    starts: Starts | None = None,
) -> AscentOracle:
    """Any Optax optimiser (Adam with a falling learning rate by default), for every family."""
    ascent = GradientAscent(num_steps, num_draws, optimizer=optimizer)
    return AscentOracle(ascent=ascent, num_restarts=num_restarts, starts=starts or Starts())

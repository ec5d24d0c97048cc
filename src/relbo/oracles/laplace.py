r"""The residual-Laplace oracle of Guo et al. (2016): a mode of $\log p - \log q$, with the curvature found there."""

import equinox as eqx
import jax
import jax.numpy as jnp

from relbo._compiled import compiled
from relbo.ascent import lbfgs_evaluations, lbfgs_paths
from relbo.ascent.curvature import laplace_factor
from relbo.budgets import budget
from relbo.estimate import from_draws
from relbo.families import DENSE_LIMIT
from relbo.oracles.base import AbstractOracle, Proposal
from relbo.oracles.starts import Starts, best_starts, mixture_draws, pool_evaluations, score

_FINAL_DRAWS = 256


class LaplaceOracle(AbstractOracle):
    """No Monte Carlo gradients: L-BFGS on the residual from the best starts, then its Hessian. Cheap, and crude.

    The residual grows without bound where $q$ has lighter tails than $p$; the walk is held in the family's box and the
    start itself competes with where the walk ends, so a runaway loses.
    """

    num_steps: int = eqx.field(static=True, default=40)
    num_restarts: int = eqx.field(static=True, default=8)
    starts: Starts = Starts()

    def check(self, family):
        del family

    @compiled
    def propose(self, key, target, mixture, modes, objective, estimator, iteration):
        *pool_keys, draw_key, score_key = jax.random.split(key, 5)
        begun = best_starts(pool_keys, target, mixture, self.starts, modes, self.num_restarts, iteration)
        walked = self._walk(target, mixture, begun)
        params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), begun, walked)
        draws = mixture_draws(draw_key, target, mixture, known=jax.tree.leaves(walked)[0].ravel())
        found = score(score_key, target, mixture, draws, params, _FINAL_DRAWS)
        best = jnp.argmax(jnp.where(jnp.isfinite(found.gain), found.gain, -jnp.inf))
        one, chosen = jax.tree.map(lambda leaf: leaf[best], (params, found))
        values = objective.residual(chosen.log_p, chosen.log_q, chosen.log_s, iteration)
        return Proposal(one, from_draws(values), jnp.sum(jnp.isnan(chosen.log_p)))

    def num_evaluations(self, mixture):
        final = budget(mixture.dim).pool_draws + 2 * self.num_restarts * _FINAL_DRAWS
        return pool_evaluations(self.starts, mixture.dim) + lbfgs_evaluations(self.num_restarts, self.num_steps) + final

    def _walk(self, target, mixture, params):
        def residual(point):
            return target.log_density(point) - mixture.log_prob(point)

        points = jax.vmap(mixture.family.location)(params)
        ends = lbfgs_paths(residual, points, self.num_steps, 1, target.points_at_once)[:, -1]
        if target.dim > DENSE_LIMIT:
            return jax.vmap(lambda end, p: mixture.family.move(p, end, jnp.zeros((), end.dtype)))(ends, params)

        def member(end):
            factor = laplace_factor(residual, end, target.twice_differentiable)
            eye = jnp.eye(target.dim, dtype=target.dtype)
            return mixture.family.init(end, jnp.where(jnp.all(jnp.isfinite(factor)), factor, eye))

        return jax.vmap(member)(ends)

r"""The residual-Laplace oracle of Guo et al. (2016): a mode of $\log p - \log q$, with the curvature found there."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from relbo.ascent import lbfgs_paths
from relbo.ascent.curvature import laplace_factors
from relbo.families import DENSE_LIMIT
from relbo.mixture import joined, locations_of
from relbo.model.door import Seen
from relbo.oracles.base import AbstractOracle, Proposals
from relbo.oracles.starts import Starts, score
from relbo.records.estimate import Estimate
from relbo.runtime.compiling import compiled, host_split

_FINAL_DRAWS = 256  # the choice among a few proposals is final: no ascent follows


class LaplaceOracle(AbstractOracle):
    """No Monte Carlo gradients: L-BFGS on the residual from the best starts, then its Hessian. Cheap, and crude.

    The residual grows without bound where $q$ has lighter tails than $p$; the walk is held in the family's box and the
    start itself competes with where the walk ends, so a runaway loses.
    """

    num_steps: int = eqx.field(static=True, default=40)
    num_restarts: int = eqx.field(static=True, default=8)
    starts: Starts = Starts()

    needs_gradient = True

    def check(self, family):
        del family

    def propose(self, key, door, aim, cloud, modes, most):
        start_key, score_key = host_split(key, 2)
        begun = self.starts.best(start_key, door, cloud, modes, self.num_restarts, aim.iteration)
        walked = self._walk(door, cloud.mixture, begun)
        params = joined(begun, walked)
        gains, own = score(score_key, door, cloud, params, _FINAL_DRAWS)
        best = int(np.argmax(np.where(np.isfinite(gains), gains, -np.inf)))
        args = (own.log_p[best], own.log_q[best], own.log_s[best], aim.time)
        values = np.asarray(_residuals(aim.objective, *args), np.float64)
        value = Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values))
        return Proposals(
            jax.tree.map(lambda leaf: leaf[best : best + 1], params), value, int(np.isnan(own.log_p[best]).sum())
        )

    def _walk(self, door, mixture, params):
        def residual(at, num_used=None) -> Seen:
            return _less(mixture, at, door(at, "proposals", num_used))

        starts = np.asarray(locations_of(mixture.family, params))
        ends = lbfgs_paths(residual, starts, self.num_steps, 1)[:, -1]
        if door.dim > DENSE_LIMIT:
            return _moved(mixture.family, params, ends)

        def slopes(at):
            return np.asarray(residual(at.astype(door.dtype)).slopes, np.float64)

        factors = laplace_factors(slopes, ends.astype(np.float64))
        factors = np.where(np.isfinite(factors).all((1, 2), keepdims=True), factors, np.eye(door.dim))
        return _members(mixture.family, ends, factors.astype(ends.dtype))


@compiled
def _less(mixture, points, seen: Seen) -> Seen:
    q = mixture.at(points)
    return Seen(seen.values - q.log_q, seen.slopes - q.slope)


@compiled
def _residuals(objective, log_p, log_q, log_s, iteration):
    return jax.vmap(lambda p, q, s: objective.residual(p, q, s, iteration))(log_p, log_q, log_s)


@partial(compiled, runs_once=True)
def _moved(family, params, ends):
    return jax.vmap(lambda p, end: family.move(p, end, jnp.zeros((), end.dtype)))(params, ends)


@partial(compiled, runs_once=True)
def _members(family, points, factors):
    return jax.vmap(family.init)(points, factors)

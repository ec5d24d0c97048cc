r"""A set of components small enough to know everything about: the convex hull of finitely many normals.

Over such a hull the linear minimisation oracle is exact (try them all, by quadrature), the best mixture $q^*$ and
$f^* = \mathrm{KL}(q^* \| p)$ can be computed, and so can the curvature constant of the theory. With $\varphi(\gamma) =
\mathrm{KL}(q + \gamma(s-q) \,\|\, q)$,

$$C_f = \sup_{q, s, \gamma} \tfrac{2}{\gamma^2} \varphi(\gamma) = \max_{i,j} \chi^2(s_i \| s_j):$$

$\varphi$ is convex in $q$, so the worst $q$ is a component; $2\varphi/\gamma^2$ is an average of $\varphi''$, which is
convex with $\varphi''(0) = \chi^2(s\|q)$ and $\varphi''(1) = \chi^2(q\|s)$. For two normals it is finite if and only if
the variance of $s_i$ is less than twice that of $s_j$ in every direction.
"""

import dataclasses
import itertools
import math
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import relbo
from relbo.families import AbstractNoise, Diagonal, LocationScale, LocationScaleParams
from relbo.oracles import AbstractOracle, Proposals

_GOLDEN = (math.sqrt(5) - 1) / 2


class LatticeNormal(AbstractNoise):
    """Standard normals in one or two dimensions, drawn not independently but evenly: a lattice with a random shift.

    Errors fall nearly like one over the number of draws. Standard errors that take the draws for independent are far
    too large.
    """

    def init(self, dtype):
        return ()

    def sample(self, key, params, num, dim, dtype):
        shift = jax.random.uniform(key, (dim,), dtype)
        first = (jnp.arange(num) + 0.5) / num
        axes = [first, jnp.arange(num) * _GOLDEN] if dim == 2 else [first]
        spread = jnp.stack(axes, axis=1).astype(dtype) + shift
        return jax.scipy.special.ndtri(jnp.clip(spread % 1.0, 0.25 / num, 1 - 0.25 / num))

    def log_prob(self, params, noise):
        return -0.5 * jnp.sum(noise**2) - 0.5 * noise.shape[0] * jnp.log(2 * jnp.pi)

    def project(self, params):
        return params


FAMILY = LocationScale(LatticeNormal(), Diagonal())


class HullOracle(AbstractOracle):
    r"""The exact oracle: of all components, the one with the best objective, by quadrature.

    With `delta` below 1 it is as bad as the theory allows: the worst component whose duality gap is at least `delta`
    times the largest (for the linear objective).
    """

    locations: Float[Array, "num dim"]
    scales: Float[Array, "num dim"]
    points: Float[Array, "places dim"]
    volume: float = eqx.field(static=True)
    delta: float = eqx.field(static=True, default=1.0)
    starts: relbo.Starts = relbo.Starts(num_residual=0, num_modes=0, num_initial=1)

    def check(self, family):
        del family

    def propose(self, key, door, aim, cloud, modes, most):
        log_p, _ = door.numbers(self.points, "proposals")
        log_p = jnp.asarray(log_p, self.points.dtype)
        params, value = self._best(aim.mixture, aim.objective, log_p, aim.time)
        return Proposals(params, relbo.Estimate(float(value), 0.0, self.points.shape[0]), 0)

    @eqx.filter_jit
    def _best(self, mixture, objective, log_p, iteration):
        """A stack of the one component that is chosen, and its objective."""
        members = jax.vmap(mixture.family.init)(self.locations, self.scales)
        log_q = jax.vmap(mixture.log_prob)(self.points)
        log_s = jax.vmap(lambda one: jax.vmap(lambda z: mixture.family.log_prob(one, z))(self.points))(members)
        values = self.volume * jnp.sum(jnp.exp(log_s) * objective.residual(log_p, log_q, log_s, iteration), axis=1)
        here = self.volume * jnp.sum(jnp.exp(log_q) * (log_p - log_q))
        enough = values - here >= self.delta * (jnp.max(values) - here)
        chosen = jnp.argmin(jnp.where(enough, values, jnp.inf))
        return jax.tree.map(lambda leaf: leaf[chosen][None], members), values[chosen]


@dataclasses.dataclass(frozen=True)
class Hull:
    """Components of the given locations and scales, and places for quadrature in a box around them."""

    locations: np.ndarray
    scales: np.ndarray
    axis: np.ndarray

    @classmethod
    def of(cls, locations: np.ndarray, scales: np.ndarray, dim: int, num_places: int) -> "Hull":
        """All locations from a grid over the axes, each with every scale, the same along all axes."""
        places = np.array(list(itertools.product(locations, repeat=dim)))
        pairs = [(place, np.full(dim, scale)) for place in places for scale in scales]
        reach = np.max(np.abs(locations)) + 7 * np.max(scales)
        return cls(*(np.array(part) for part in zip(*pairs, strict=True)), np.linspace(-reach, reach, num_places))

    @property
    def dim(self) -> int:
        return self.locations.shape[1]

    @property
    def volume(self) -> float:
        return float(self.axis[1] - self.axis[0]) ** self.dim

    @cached_property
    def points(self) -> np.ndarray:
        return np.array(list(itertools.product(self.axis, repeat=self.dim)))

    @cached_property
    def densities(self) -> np.ndarray:
        """Of every component at every place."""
        noise = (self.points[None] - self.locations[:, None]) / self.scales[:, None]
        norm = np.prod(self.scales, axis=1) * (2 * math.pi) ** (self.dim / 2)
        return np.exp(-0.5 * np.sum(noise**2, axis=2)) / norm[:, None]

    def oracle(self, delta: float = 1.0) -> HullOracle:
        arrays = (jnp.asarray(part, jnp.float32) for part in (self.locations, self.scales, self.points))
        return HullOracle(*arrays, self.volume, delta)

    def member(self, index: int) -> LocationScaleParams:
        return FAMILY.init(
            jnp.asarray(self.locations[index], jnp.float32), jnp.asarray(self.scales[index], jnp.float32)
        )

    def weights(self, mixture) -> np.ndarray:
        """The weights of a mixture of these components, the same component in several slots counted together."""
        weights = np.exp(np.asarray(mixture.log_weights, np.float64))
        locations, scales = np.asarray(mixture.params.loc), np.exp(np.asarray(mixture.params.scale))
        far = np.abs(locations[:, None] - self.locations).sum(2) + np.abs(scales[:, None] - self.scales).sum(2)
        nearest = np.argmin(far, axis=1)
        if np.max(far[np.arange(len(nearest)), nearest][weights > 0]) > 1e-4:
            raise ValueError("The mixture has a component that is not of this hull.")
        return np.bincount(nearest, weights, minlength=len(self.locations)) / weights.sum()

    def curvature(self) -> float:
        r"""$C_f$, in closed form."""
        return max(
            chi_square(self.locations[i], self.scales[i], self.locations[j], self.scales[j])
            for i, j in itertools.product(range(len(self.locations)), repeat=2)
        )


@dataclasses.dataclass(frozen=True)
class Problem:
    """Minimise KL over a hull, given the target's normalised log density at the hull's places."""

    hull: Hull
    log_p: np.ndarray

    def value(self, weights: np.ndarray) -> float:
        q = weights @ self.hull.densities
        return float(self.hull.volume * np.sum(q * (np.log(np.maximum(q, 1e-300)) - self.log_p)))

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        """Of every component s, E_s[log q - log p]."""
        q = weights @ self.hull.densities
        return self.hull.volume * self.hull.densities @ (np.log(np.maximum(q, 1e-300)) - self.log_p)

    def gap(self, weights: np.ndarray) -> float:
        """The duality gap: no mixture of the hull has a KL smaller by more than this."""
        gradient = self.gradient(weights)
        return float(weights @ gradient - gradient.min())

    def best(self, accuracy: float = 1e-9) -> tuple[np.ndarray, float]:
        """The best weights and their duality gap, by an interior-point method.

        Over unnormalised mixtures the generalised KL (which adds the masses' difference) has its minimum in the same
        direction, so that there is no constraint but the signs.
        """
        densities, volume = self.hull.densities, self.hull.volume
        weights, barrier = np.full(len(densities), 1 / len(densities)), 1e-2
        for _ in range(200):
            q = weights @ densities
            slope = self.gradient(weights) - barrier / weights
            hessian = volume * (densities / q) @ densities.T + np.diag(barrier / weights**2)
            move = -np.linalg.solve(hessian, slope)
            shrinking = move < 0
            longest = np.min(-weights[shrinking] / move[shrinking], initial=np.inf)
            weights = weights + min(1.0, 0.95 * longest) * move
            if -slope @ move < barrier and longest > 1:
                barrier *= 0.3
            normalised = weights / weights.sum()
            if (gap := self.gap(normalised)) < accuracy:
                break
        return normalised, gap

    def path_curvature(self, weights: np.ndarray, towards: np.ndarray) -> float:
        r"""$\sup_\gamma 2 \mathrm{KL}(q + \gamma (s - q) \| q) / \gamma^2$ for one pair, on a grid of $\gamma$."""
        q, s = weights @ self.hull.densities, towards @ self.hull.densities
        chi = self.hull.volume * np.sum((s - q) ** 2 / q)
        steps = np.logspace(-3, 0, 40)[:, None]
        mixed = (1 - steps) * q + steps * s
        divergences = self.hull.volume * np.sum(mixed * (np.log(mixed) - np.log(q)), axis=1)
        return float(max(chi, np.max(2 * divergences / steps[:, 0] ** 2)))


def chi_square(loc: np.ndarray, scale: np.ndarray, other_loc: np.ndarray, other_scale: np.ndarray) -> float:
    r"""$\chi^2(s \| r) = \int s^2 / r - 1$ of two normals with diagonal covariances."""
    variance, other = np.asarray(scale) ** 2, np.asarray(other_scale) ** 2
    excess = 2 * other - variance
    if np.any(excess <= 0):
        return math.inf
    logs = np.log(other) - 0.5 * np.log(variance * excess) + (np.asarray(loc) - np.asarray(other_loc)) ** 2 / excess
    return math.expm1(float(np.sum(logs)))

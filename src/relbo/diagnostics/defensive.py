r"""Draws that look where the mixture does not: a heavy-tailed companion of every component, and of modes found afresh.

Importance sampling from $q$ alone is blind to what $q$ never visits. Beside $n_1$ draws of $q$ we take $n_2$ draws of a
heavy-tailed mixture $t$, and weigh all of them by the density of the whole sample (the balance heuristic of Veach and
Guibas 1995),

$$ w(z) = \frac{p(z)}{\alpha_1 q(z) + \alpha_2 t(z)}, \qquad \alpha_i = n_i / (n_1 + n_2). $$

The ratios are bounded wherever the tails of $p$ are no heavier than those of $t$ (Hesterberg 1995), and a mode that was
missed, but is found now, gets its draws.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from relbo.diagnostics.modes import DIP
from relbo.families import AbstractFamily, AbstractNoise, Diagonal, LocationScale, LocationScaleParams
from relbo.families.noise import StudentT
from relbo.mixture import Mixture, draw_from, joined, locations_of, log_densities, log_mixture, map_chunks, weights_of
from relbo.model.door import Door
from relbo.model.whitening import Whitened
from relbo.oracles import search_modes
from relbo.posterior.posterior import Posterior
from relbo.runtime.compiling import compiled, host_split

_DF = 2.0  # degrees of freedom: ratios are bounded for every target that has a variance
_MOST_MODES = 16  # the heaviest; more would each get too few draws to be seen
_SPREAD_DRAWS = 256  # a standard deviation to one in twenty
_WAY_POINTS = 16  # a valley narrower than a fifteenth of the way is no gap between modes
_REPEATED = 256  # evaluated twice: a density that is random now and then shows it
UNCOVERED = np.log(10.0)  # less than a tenth of the mass that there is
_NEGLIGIBLE = np.log(1e-3)  # of the mass: below what a fit resolves
_HEAVY_MODE = np.log(0.05)  # of the mass: a flow that lacks so much would not pay
_APART = 2.0  # nats: members whose locations are nearer are one mode


class Heavy(AbstractNoise):
    r"""Half elliptical student-t, half normal with one coordinate, chosen at random, drawn from a student-t.

    The elliptical law is wider in all directions at once, and in many dimensions its draws lie far from where one long
    tail is. The other half looks along one axis at a time, and stays close to the normal in the bulk: its density is
    $\phi(x)\, \frac1d \sum_j t(x_j) / \phi(x_j)$. With two degrees of freedom even a Cauchy tail has ratios with a
    finite mean, and k-hat about a half.
    """

    def init(self, dtype):
        return ()

    def sample(self, key, params, num, dim, dtype):
        normal_key, gamma_key, axis_key, half_key = jax.random.split(key, 4)
        normal = jax.random.normal(normal_key, (num, dim), dtype)
        chi_square = 2 * jax.random.gamma(gamma_key, _DF / 2, (num, 1), dtype)
        stretched = normal * jnp.sqrt(_DF / chi_square)
        axis = jax.random.randint(axis_key, (num, 1), 0, dim)
        everywhere = jax.random.bernoulli(half_key, 0.5, (num, 1))
        return jnp.where(everywhere | (jnp.arange(dim) == axis), stretched, normal)

    def on_host(self, rng, shape, dtype):
        normal, once = rng.standard_normal(shape, dtype), (*shape[:-1], 1)
        stretched = normal * np.sqrt(_DF / rng.chisquare(_DF, once)).astype(dtype)
        axis, everywhere = rng.integers(shape[-1], size=once), rng.random(once) < 0.5
        return np.where(everywhere | (np.arange(shape[-1]) == axis), stretched, normal)

    def log_prob(self, params, noise):
        dim = noise.shape[0]
        student = StudentT(_DF)
        log_normals = -0.5 * noise**2 - 0.5 * jnp.log(2 * jnp.pi)
        log_students = jax.vmap(lambda x: student.log_prob((), x[None]))(noise)
        along_axis = jax.nn.logsumexp(log_students - log_normals) - jnp.log(dim) + jnp.sum(log_normals)
        return jnp.logaddexp(student.log_prob((), noise), along_axis) - jnp.log(2.0)

    def project(self, params):
        return params


@dataclass(frozen=True)
class Sample:
    """Draws of a mixture and of its heavy companion, on the host. The first `num_own` are the mixture's own."""

    points: np.ndarray
    """In whitened coordinates."""
    log_ratio: np.ndarray
    """log p - log q; NaN where the log density is broken (or +inf), -inf outside the support."""
    log_heavy: np.ndarray
    """log t - log q."""
    at_new_mode: np.ndarray
    """Whether a mode found afresh, and not covered by the mixture, has most of t there."""
    num_own: int
    irreproducible: float
    """The largest difference of two evaluations of log p at one point, if it is more than rounding; else 0."""
    num_infinite: int
    """Of the mixture's own draws, those with a log density of +inf."""


def draw(key, posterior: Posterior, num_own: int, num_heavy: int, modes: "NewModes") -> Sample:
    """Draw from the mixture, from its heavy companion and from heavy members at `modes`, and evaluate."""
    own_key, heavy_key = host_split(key, 2)
    mixture = posterior.mixture
    own = draw_from(own_key, mixture, num_own)
    heavy = _heavy_mixture(heavy_key, mixture, modes)
    others = draw_from(heavy_key, heavy, num_heavy)
    # The first draws are evaluated again at the end: at the same points a log density must be the same.
    points = np.concatenate([own, others, own[:_REPEATED]])
    door = posterior.booster.door(posterior.whitened)
    log_p, rounding = door.values(points, "diagnosis")
    num_infinite = int(door.infinite(own[np.isnan(log_p[:num_own])]).sum())
    log_q = log_mixture(log_densities(mixture.family, mixture.params, points), weights_of(mixture))
    parts = log_densities(heavy.family, heavy.params, points)
    weights = np.exp(np.asarray(heavy.log_weights, np.float64))
    slots = np.arange(len(weights)) < mixture.capacity
    at_components = log_mixture(parts, np.where(slots, weights, 0.0))
    at_modes = log_mixture(parts, np.where(slots, 0.0, weights))
    log_heavy = np.logaddexp(at_components, at_modes) - log_q
    num = num_own + num_heavy
    again = difference(log_p[: len(points) - num], log_p[num:], rounding)
    at_new_mode = (at_modes > at_components)[:num]
    return Sample(points[:num], (log_p - log_q)[:num], log_heavy[:num], at_new_mode, num_own, again, num_infinite)


class NewModes(eqx.Module):
    """Members of the family at modes that the mixture lacks, the heaviest first; unused places have weight zero."""

    members: PyTree
    log_weights: np.ndarray

    @property
    def any(self) -> bool:
        return bool(self.log_weights[0] > -np.inf)


def new_modes(key, posterior: Posterior) -> NewModes:
    """Search modes afresh, and keep those that the mixture lacks."""
    door = posterior.booster.door(posterior.whitened)
    return missing_modes(key, door, posterior.mixture, float(posterior.elbo.value))


def missing_modes(key, door: Door, mixture: Mixture, log_z: float) -> NewModes:
    """Search modes afresh, by the programs of the fit, and keep those that the mixture lacks; `log_z` may be rough.

    A mode is covered where q is at least a tenth of p / Z, and not looked at where its mass, by Laplace's
    approximation, is below a thousandth. A point from which log p rises all the way to a component is a tail.
    """
    searches = search_modes(key, door, mixture.family)
    members = joined(*searches)
    # Stack by stack, so that a fit which does this compiles nothing for it.
    locations = np.concatenate([np.asarray(locations_of(mixture.family, stack), np.float64) for stack in searches])
    heights = _heights(door, mixture, members, locations)
    chosen = uncovered(heights, log_z)
    padded = np.resize(chosen, _MOST_MODES) if len(chosen) else np.zeros(_MOST_MODES, int)
    log_weights = np.where(np.arange(_MOST_MODES) < len(chosen), -np.log(max(1, len(chosen))), -np.inf)
    kept = jax.tree.map(lambda leaf: np.asarray(leaf)[padded], members)
    return NewModes(kept, log_weights)


def has_heavy_mode(door: Door, mixture: Mixture, members: PyTree, log_z: float) -> bool:
    """Whether one of some members at modes has a twentieth of the mass, or more, across a valley from the mixture."""
    locations = np.asarray(locations_of(mixture.family, members), np.float64)
    return len(uncovered(_heights(door, mixture, members, locations), log_z, _HEAVY_MODE)) > 0


class Heights(NamedTuple):
    """What is known of each member that a search for modes found."""

    log_p: np.ndarray
    log_q: np.ndarray
    log_peak: np.ndarray
    """The member's own log density at its location."""
    cross: np.ndarray
    """`cross[i, j]`: the log density of member i at the location of j."""
    valley: np.ndarray
    """The lowest log p on the way to the nearest component, or to the heaviest if that way is higher."""


def uncovered(seen: Heights, log_z: float, negligible: float = _NEGLIGIBLE) -> np.ndarray:
    """The members, the heaviest first, that are modes where the mixture has no mass, each apart from those before."""
    log_mass = seen.log_p - seen.log_peak - log_z
    with np.errstate(invalid="ignore"):
        lacking = np.isfinite(seen.log_p) & (seen.log_p - log_z - seen.log_q > UNCOVERED)
        candidate = lacking & (log_mass > negligible) & (seen.valley < seen.log_p - DIP)
    chosen: list[int] = []
    for member in np.argsort(-np.where(candidate, log_mass, -np.inf), kind="stable"):
        apart = all(not seen.cross[other, member] > seen.log_peak[other] - _APART for other in chosen)
        if candidate[member] and apart and len(chosen) < _MOST_MODES:
            chosen.append(int(member))
    return np.array(chosen, int)


def difference(first: np.ndarray, second: np.ndarray, rounding: float) -> float:
    """The largest, if it is far more than rounding explains; else 0."""
    both = np.isfinite(first) & np.isfinite(second)
    difference = np.abs(first[both] - second[both])
    largest = float(difference.max(initial=0.0))
    return largest if largest > 1e-3 + 100 * rounding else 0.0


def _heights(door: Door, mixture: Mixture, members: PyTree, locations: np.ndarray) -> Heights:
    family, weights = mixture.family, weights_of(mixture)
    components = np.asarray(locations_of(family, mixture.params), np.float64)[weights > 0]
    heaviest = components[np.argmax(weights[weights > 0])]
    distances = np.sum((locations[:, None] - components) ** 2, axis=2)
    ends = np.stack([components[np.argmin(distances, axis=1)], np.broadcast_to(heaviest, locations.shape)], axis=1)
    shares = np.linspace(0.0, 1.0, _WAY_POINTS)[:, None]
    ways = locations[:, None, None] + shares * (ends - locations[:, None])[:, :, None]
    log_p = door.numbers(ways.reshape(-1, door.dim), "diagnosis")[0].reshape(ways.shape[:3])
    points = locations.astype(door.dtype)
    cross = log_densities(family, members, points).T
    log_q = log_mixture(log_densities(family, mixture.params, points), weights)
    known = np.where(np.isnan(log_p), np.inf, log_p)  # what is broken is no valley
    return Heights(log_p[:, 0, 0], log_q, np.diagonal(cross), cross, np.max(np.min(known, axis=2), axis=1))


def _heavy_mixture(key, mixture: Mixture, modes: NewModes) -> Mixture:
    """A heavy companion of every component; behind their slots are those of modes, of half the weight."""
    params = joined(mixture.params, modes.members)
    log_weights = np.concatenate([np.asarray(mixture.log_weights), modes.log_weights])
    log_weights = (log_weights - (np.log(2.0) if modes.any else 0.0)).astype(mixture.dtype)
    return Mixture(*_heavy_members(key, mixture.family, params), log_weights)


def _heavy_members(key, family: AbstractFamily, params: PyTree) -> tuple[LocationScale, LocationScaleParams]:
    """The location and scale of every member, with heavy noise; measured on draws if the family is of another kind."""
    if isinstance(family, LocationScale):
        return LocationScale(Heavy(), family.scale, family.box), LocationScaleParams(params.loc, params.scale, ())
    means, log_sds = _spreads(key, family, params)
    return LocationScale(Heavy(), Diagonal()), LocationScaleParams(means, log_sds, ())


@partial(compiled, runs_once=True)
def _spreads(key, family, params):
    draws = jax.vmap(lambda member: family.sample(key, member, _SPREAD_DRAWS))(params)
    return draws.mean(axis=1), jnp.log(jnp.maximum(draws.std(axis=1), 1e-6))


def constrained(posterior: Posterior, points) -> PyTree:
    """Many whitened points in the structure and shapes of the model's parameters."""
    return _constrained(posterior.whitened, jnp.asarray(points), posterior.booster.chunk)


@partial(compiled, runs_once=True)
def _constrained(target: Whitened, points, chunk: int) -> PyTree:
    return map_chunks(target.constrain, points, chunk)

"""What a fit leaves behind."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.mixture import Mixture, draw_from, locations_of, map_chunks
from relbo.model.affine import log_det_of
from relbo.model.whitening import Whitened, unwhitened
from relbo.records.estimate import Estimate
from relbo.records.outcome import Stop
from relbo.records.trace import Record
from relbo.runtime.choices import seed_number, whole_number
from relbo.runtime.compiling import compiled
from relbo.runtime.require import require
from relbo.runtime.tables import html_block, html_line, html_table
from relbo.targets import AbstractTarget
from relbo.targets.table import as_html

_MASS_DRAWS = 16_384  # a share to 0.4 %
_MASS_KEY = 0x5A5  # fixed: the same posterior always has the same density
_MOST_ROUNDS = 100
"""Of rejection: a mixture of which less lies inside the support is no posterior."""


class Posterior(eqx.Module):
    """A fitted mixture, with its target, its trace, and why the fit stopped.

    The mixture lives in whitened coordinates; every method speaks the target's own.
    """

    mixture: Mixture
    whitened: Whitened
    elbo: Estimate
    """As the fit last measured it; `relbo.diagnose` measures it afresh."""
    trace: list[Record]
    stop: Stop = eqx.field(static=True)
    """How the fit ended."""
    booster: Booster
    """The settings of the fit."""
    state: State
    """Where boosting stood before the polish: a fit that is continued goes on from here."""

    @property
    def target(self) -> AbstractTarget:
        """The target that was fitted."""
        return self.booster.target

    @property
    def stop_reason(self) -> str:
        """How the fit ended, in words."""
        return self.stop.sentence

    @property
    def dim(self) -> int:
        return self.whitened.dim

    @property
    def num_components(self) -> int:
        return int(self.mixture.num_components)

    @property
    def weights(self) -> np.ndarray:
        """The weights of the components, largest first."""
        return _sorted_weights(self.mixture)[0]

    @property
    def locations(self) -> np.ndarray:
        """The components' locations in unconstrained coordinates, in the order of `weights`."""
        order = _sorted_weights(self.mixture)[1]
        return unwhitened(self.whitened, locations_of(self.mixture.family, self.mixture.params))[order]

    @property
    def num_evaluations(self) -> int:
        return sum(record.evaluations for record in self.trace)

    @property
    def evaluations(self) -> dict[str, int]:
        """The evaluations of the log density by what they were for, the most first."""
        spent = sum((Counter(record.spent) for record in self.trace), Counter())
        return dict(spent.most_common())

    @property
    def seconds(self) -> float:
        """What the fit took, `compile_seconds` of it for tracing and compiling."""
        return sum(record.seconds for record in self.trace)

    @property
    def compile_seconds(self) -> float:
        return sum(record.compile_seconds for record in self.trace)

    def sample(self, num_draws: int, seed: int = 0) -> PyTree:
        """Named, constrained draws: the structure and shapes of the model's parameters behind an axis of draws."""
        num_draws, seed = whole_number("num_draws", num_draws, 1), seed_number(seed)
        stored = self.target.stored
        if stored is not None and stored.layout is None:
            return stored.stored_values(num_draws, seed)
        draws = self.sample_unconstrained(num_draws, seed=seed)
        return jax.tree.map(np.asarray, self.constrain(draws))

    def constrain(self, draws: Float[Array, "num_draws dim"]) -> PyTree:
        """Unconstrained points in the structure and shapes of the model's parameters, behind an axis of draws."""
        return _constrain(self.target, draws, self.booster.chunk)

    def log_target(self, z: ArrayLike) -> np.ndarray:
        """The target's unnormalised log density at unconstrained points (num, dim), in double precision.

        NaN where the model is broken (+inf included). Evaluated as the fit did, in blocks.
        """
        affine = self.whitened.affine
        u = _whiten(affine, jnp.asarray(z, affine.dtype))
        values, _ = self.booster.door(affine).values(u, "posterior")
        return values - float(log_det_of(affine.family, affine.params))

    def as_guide(self) -> Callable[..., dict[str, Any]]:
        """This posterior as a guide of its NumPyro model: `Predictive(model, guide=posterior.as_guide(), ...)`."""
        require("numpyro", extra="numpyro")
        from relbo.posterior.guide import make_guide

        return make_guide(self.target, self.whitened, self.mixture)

    def sample_unconstrained(self, num_draws: int, *, seed: int = 0) -> Float[Array, "num_draws dim"]:
        """Independent draws in unconstrained coordinates; those where the target's density is zero are rejected."""
        num_draws, key = whole_number("num_draws", num_draws, 1), jax.random.key(seed_number(seed))
        if not self.is_restricted:
            return _sample(self.whitened, self.mixture, key, num_draws)
        if self.target.stored is not None:
            return jnp.asarray(self.target.stored.choose_draws(num_draws, seed).z)
        return self._sample_inside(key, num_draws)

    @property
    def is_restricted(self) -> bool:
        """Whether the fit met points of zero density, so that this is the mixture restricted to the others."""
        return any(record.num_zero for record in self.trace)

    def support_mass(self) -> Estimate:
        """The share of the mixture that lies where the target's density is not zero: what a draw's acceptance is."""
        if not self.is_restricted:
            return Estimate(1.0, 0.0, 0)
        draws = _sample(self.whitened, self.mixture, jax.random.key(_MASS_KEY), _MASS_DRAWS)
        share = float(np.mean(~np.isneginf(self.log_target(draws))))
        return Estimate(share, math.sqrt(share * (1 - share) / _MASS_DRAWS), _MASS_DRAWS)

    def _sample_inside(self, key, num_draws: int) -> Float[Array, "num_draws dim"]:
        """Rejection, as many draws a round as are wanted."""
        kept: list[np.ndarray] = []
        for number in range(_MOST_ROUNDS):
            draws = np.asarray(_sample(self.whitened, self.mixture, jax.random.fold_in(key, number), num_draws))
            kept.append(draws[~np.isneginf(self.log_target(draws))])  # NaN is broken, not outside
            if sum(map(len, kept)) >= num_draws:
                return jnp.asarray(np.concatenate(kept)[:num_draws])
        raise ValueError(
            f"less than one in {_MOST_ROUNDS} draws of the mixture lies where the log density is not -inf. Declare the "
            "supports of the parameters (supports=, constrained distributions) instead of a density that is cut off."
        )

    def log_prob(self, z: ArrayLike) -> Array:
        """The normalised log density at unconstrained points `z` of shape (..., dim); the result has shape (...).

        Where the target's density is zero on part of the space (`is_restricted`), that of the draws: -inf there, and
        higher elsewhere by -log `support_mass()`.
        """
        if isinstance(z, Mapping | str):
            raise ValueError(
                f"z must be an array of unconstrained points, of shape (..., {self.dim}), got {type(z).__name__}. "
                "For named values: posterior.log_prob(posterior.target.unconstrain(values))."
            )
        z = jnp.asarray(z, self.whitened.dtype)
        if z.ndim == 0 or z.shape[-1] != self.dim:
            raise ValueError(f"z must have shape (..., {self.dim}), got {z.shape}.")
        flat = z.reshape(-1, self.dim)
        log_q = _log_prob(self.whitened, self.mixture, flat)
        if self.is_restricted:
            inside = ~np.isneginf(self.log_target(flat))
            log_q = jnp.where(inside, log_q - math.log(self.support_mass().value), -jnp.inf).astype(log_q.dtype)
        return log_q.reshape(z.shape[:-1])

    def _repr_html_(self) -> str:
        """What was fitted and found, and the model's parameters."""
        rows = [
            ("ELBO", str(self.elbo)),
            ("components", str(self.num_components)),
            ("dimensions", str(self.dim)),
            ("stopped because", self.stop_reason),
            ("evaluations", f"{self.num_evaluations:,}"),
            ("seconds", f"{self.seconds:.1f}, {self.compile_seconds:.1f} of them compiling"),
        ]
        return html_block(html_line("Posterior", strong=True), html_table((), rows), as_html(self.target))

    def __repr__(self) -> str:
        num = self.num_components
        size = f"{num} component{'s' if num > 1 else ''} in {self.dim} dimension{'s' if self.dim > 1 else ''}"
        return f"Posterior({size}, ELBO {self.elbo}; the fit stopped because {self.stop_reason})"


def _sample(whitened, mixture, key, num_draws: int) -> Float[Array, "num_draws dim"]:
    return jnp.asarray(unwhitened(whitened, draw_from(key, mixture, num_draws)))


@compiled
def _log_prob(whitened, mixture, points):
    def one(z):
        u = whitened.whiten(z)
        return mixture.log_prob(u) - whitened.log_det(u)

    return map_chunks(one, points)


@partial(compiled, runs_once=True)
def _whiten(whitened, points):
    return map_chunks(whitened.whiten, points)


@partial(compiled, runs_once=True)
def _constrain(target, draws, chunk: int):
    return map_chunks(target.constrain, draws, chunk)


def _sorted_weights(mixture) -> tuple[np.ndarray, np.ndarray]:
    weights = np.exp(np.asarray(mixture.log_weights))
    order = np.argsort(-weights, kind="stable")[: int((weights > 0).sum())]
    return weights[order], order

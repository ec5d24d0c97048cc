"""What every later room may ask of a model, and nothing else."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from relbo.runtime.spreading import rows_here
from relbo.runtime.words import plural
from relbo.targets.layout import Layout
from relbo.targets.table import as_html, as_table

if TYPE_CHECKING:
    from relbo.targets.stored import StoredTarget

_NUMBERS_AT_ONCE = 2**24  # 64 MB in float32


class AbstractTarget(eqx.Module):
    r"""A posterior as an unnormalised density on unconstrained $\mathbb{R}^d$.

    With $T$ the bijection from $\mathbb{R}^d$ onto the model's own parameters, the target is

    $$\log p(z) = \log p_\text{model}(T(z)) + \log |\det J_T(z)|,$$

    known up to a constant $\log Z$. NaN means that the model is broken at $z$; $-\infty$ means zero density.
    A target is a pytree: data are array leaves, so that new data of the same shapes meet the same compiled program;
    everything else is static and hashable.
    """

    dim: eqx.AbstractVar[int]
    """$d$, the number of unconstrained coordinates."""
    dtype: eqx.AbstractVar[np.dtype[Any]]
    """float32 or float64."""
    differentiable: eqx.AbstractVar[bool]
    """False: the target has values only, and the score-function estimator serves it."""
    twice_differentiable: eqx.AbstractVar[bool]
    """True: JAX can take Hessians through `log_density`."""
    initial: eqx.AbstractVar[Float[Array, "num dim"]]
    """Starting points in unconstrained coordinates. The first is the example."""

    @abc.abstractmethod
    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        """log p at one point, Jacobians included. Works under `jit` and `vmap`, and under `grad` if differentiable."""

    @abc.abstractmethod
    def constrain(self, z: Float[Array, " dim"]) -> PyTree:
        """The named, constrained values at one point, in the structure and shapes of the example."""

    @abc.abstractmethod
    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        """The inverse of `constrain`."""

    @abc.abstractmethod
    def coordinate_names(self) -> list[str]:
        """One name for every unconstrained coordinate, such as `["mu", "theta[0]", "theta[1]"]`."""

    def described(self) -> Layout | None:
        """The layout, if names, shapes and supports say all that `constrain` does; None if that takes the model."""
        return None

    @property
    def stored(self) -> "StoredTarget | None":
        """The target itself where it stands in for a model that a file does not hold; None where the model is there."""
        return None

    @property
    def model_kind(self) -> str:
        """The class of the target that was fitted."""
        return type(self).__name__

    # What the tools around a posterior may ask. A target that knows only its density keeps these answers; a front end
    # answers for its model. Names are those of the model; arrays are NumPy's where nothing is traced.

    @property
    def first_index(self) -> int:
        """From where the model's own language counts the entries of an array."""
        return 0

    def supports(self) -> dict[str, str]:
        """Where every parameter lives, in a word or two, as far as that is known."""
        return {}

    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of the axes of every variable that has them: parameters, deterministics, observed data."""
        return {}

    def coords(self) -> dict[str, np.ndarray]:
        """The labels along every named axis."""
        return {}

    def log_likelihood(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """The log likelihood at one point, observation by observation, for every observed variable. Traceable."""
        del z
        return {}

    def observed_data(self) -> dict[str, np.ndarray]:
        return {}

    def constant_data(self) -> dict[str, np.ndarray]:
        return {}

    def predict(self, draws: PyTree, seed: int, /, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """Posterior predictive draws: one for every draw of `constrain`'s values, stacked along a leading axis.

        `args` and `kwargs` replace the data of the model, where the front end can do so.
        """
        raise ValueError(
            f"{type(self).__name__} cannot predict: it knows a log density, and not how data are drawn. Make the "
            "target with relbo.from_numpyro or relbo.from_pymc, or draw from posterior.sample yourself."
        )

    def sample_prior(self, num_draws: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Draws of the parameters from the prior, and predictive draws of the observed variables given them."""
        raise ValueError(f"{type(self).__name__} cannot sample its prior: it knows a log density alone.")

    @property
    def points_at_once(self) -> int:
        """How many points may be evaluated side by side: fewer where there are many data, so that memory is bounded."""
        longest = max((rows_here(leaf) for leaf in jax.tree.leaves(self) if getattr(leaf, "ndim", 0)), default=1)
        return 2 ** int(np.clip(np.log2(_NUMBERS_AT_ONCE / longest), 3, 10))

    def held_data(self) -> PyTree | None:
        """The arrays of data, which may lie on several devices; None if the model is not evaluated by JAX."""
        return None

    def on_host(
        self, batch: tuple[Key[Array, ""], int] | None = None, between: Callable[[], None] | None = None
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
        """Values and gradients at points (num, dim), for a function outside JAX; None for all other targets.

        Where it subsamples, with a `batch`, a key and a number, an estimate on the minibatch drawn with them. `between`
        is called between the parts of a long evaluation, and may raise.
        """
        del batch, between
        return None

    @property
    def streams(self) -> bool:
        """Whether data are read from where they lie whenever the density is evaluated: then `within` bounds memory."""
        return False

    def within(self, max_memory: int) -> "AbstractTarget":
        """The same target for so many bytes of memory, if it is one that streams."""
        del max_memory
        return self

    # Minibatches. A target with many data points may estimate its log density on some of them.

    @property
    def subsamples(self) -> bool:
        """Whether `draw_batch` and `log_density_on` exist: then ascents climb on minibatches."""
        return False

    @property
    def anchor(self) -> Float[Array, " dim"] | None:
        """Where minibatches are compared with all data, if they are: see `minibatch.py`."""
        return None

    def subsample(self, key: Key[Array, ""]) -> "AbstractTarget":
        """What an ascent climbs in one step: the target itself, or an estimate of it on a random minibatch."""
        del key
        return self

    def draw_batch(self, key: Key[Array, ""]) -> PyTree:
        """The indices of a random minibatch. Traceable."""
        raise NotImplementedError

    def log_density_on(self, z: Float[Array, " dim"], batch: PyTree) -> Float[Array, ""]:
        """An unbiased estimate of `log_density(z)` (which always uses all data) on one minibatch. Traceable."""
        raise NotImplementedError

    def __str__(self) -> str:
        """A table of the parameters."""
        return as_table(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({plural(self.dim, 'unconstrained coordinate')}, {self.dtype})"

    def _repr_html_(self) -> str:
        return as_html(self)

    # By identity, so that `jax.jit(target.log_density)` works: Equinox would hash the arrays, which cannot be hashed.
    # Programs that take the target as an argument compare its structure instead, and are shared between equal ones.

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class AbstractLayoutTarget(AbstractTarget):
    """A target whose coordinates are described by a `Layout`: everything but the density itself."""

    layout: eqx.AbstractVar[Layout]

    def constrain(self, z: Float[Array, " dim"]) -> PyTree:
        return self.layout.constrain(z)

    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        return self.layout.unconstrain(params)

    def coordinate_names(self) -> list[str]:
        return self.layout.coordinate_names()

    def described(self) -> Layout | None:
        return self.layout

    def supports(self) -> dict[str, str]:
        return self.layout.supports()


class AbstractWrapper(AbstractTarget):
    """A target made from another: whatever is not said otherwise is the other's answer.

    Said here is what does not depend on the coordinates, and `constrain`, `unconstrain`, `initial` and `log_likelihood`
    for those that keep the coordinates. Minibatches are not passed on: their estimates are the wrapper's own affair.
    """

    target: eqx.AbstractVar[AbstractTarget]

    @property
    def dim(self):
        return self.target.dim

    @property
    def dtype(self):
        return self.target.dtype

    @property
    def differentiable(self):
        return self.target.differentiable

    @property
    def twice_differentiable(self):
        return self.target.twice_differentiable

    @property
    def initial(self):
        return self.target.initial

    @property
    def points_at_once(self) -> int:
        return self.target.points_at_once

    def held_data(self):
        return self.target.held_data()

    def on_host(self, batch=None, between=None):
        return self.target.on_host(batch, between)

    @property
    def streams(self) -> bool:
        return self.target.streams

    def constrain(self, z: Float[Array, " dim"]) -> PyTree:
        return self.target.constrain(z)

    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        return self.target.unconstrain(params)

    def coordinate_names(self) -> list[str]:
        return self.target.coordinate_names()

    @property
    def first_index(self) -> int:
        return self.target.first_index

    def supports(self) -> dict[str, str]:
        return self.target.supports()

    def dims(self) -> dict[str, tuple[str, ...]]:
        return self.target.dims()

    def coords(self) -> dict[str, np.ndarray]:
        return self.target.coords()

    def log_likelihood(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        return self.target.log_likelihood(z)

    def observed_data(self) -> dict[str, np.ndarray]:
        return self.target.observed_data()

    def constant_data(self) -> dict[str, np.ndarray]:
        return self.target.constant_data()

    def predict(self, draws: PyTree, seed: int, /, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        return self.target.predict(draws, seed, *args, **kwargs)

    def sample_prior(self, num_draws: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return self.target.sample_prior(num_draws, seed)

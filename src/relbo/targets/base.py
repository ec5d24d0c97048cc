"""What every later room may ask of a model, and nothing else."""

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.targets.layout import Layout


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

"""The protocol of a linear minimisation oracle: find the component that the mixture misses most."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, ArrayLike, Int, Key, PyTree

from relbo.estimate import Estimate
from relbo.families import AbstractFamily
from relbo.mixture import Mixture
from relbo.objectives import AbstractEstimator, AbstractObjective
from relbo.oracles.starts import Starts
from relbo.precondition import Whitened


class Proposal(eqx.Module):
    """A component that an oracle offers: its parameters, and its objective."""

    params: PyTree
    objective: Estimate
    num_nan: Int[Array, ""]


class AbstractOracle(eqx.Module):
    """Settings of an oracle; `propose` is pure and compiled once per capacity."""

    starts: eqx.AbstractVar[Starts]

    @abstractmethod
    def check(self, family: AbstractFamily) -> None:
        """Raise a ValueError if the oracle cannot serve `family`."""

    @abstractmethod
    def propose(
        self,
        key: Key[Array, ""],
        target: Whitened,
        mixture: Mixture,
        modes: PyTree,
        objective: AbstractObjective,
        estimator: AbstractEstimator,
        iteration: Int[ArrayLike, ""],
    ) -> Proposal:
        """The best component found, given the mixture so far and the modes known."""

    @abstractmethod
    def num_evaluations(self, mixture: Mixture) -> int:
        """Evaluations of the target in one call of `propose`."""

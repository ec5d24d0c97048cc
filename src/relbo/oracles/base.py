"""The protocol of a linear minimisation oracle: find the components that the mixture misses most."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree

from relbo.ascent import AbstractAscent, Aim
from relbo.families import AbstractFamily
from relbo.model.door import Door
from relbo.oracles.cloud import Cloud
from relbo.oracles.starts import Starts
from relbo.records.estimate import Estimate


@dataclass(frozen=True)
class Proposals:
    """Components that an oracle offers, the best first, stacked; the objective of the best."""

    params: PyTree
    objective: Estimate
    num_nan: int

    @property
    def best(self) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], self.params)

    def __len__(self) -> int:
        return jax.tree.leaves(self.params)[0].shape[0]


class AbstractOracle(eqx.Module):
    """Settings of an oracle."""

    starts: eqx.AbstractVar[Starts]

    needs_gradient: ClassVar[bool] = False
    """Whether the log density must be differentiable, whatever the estimator."""

    def first_ascent(self) -> AbstractAscent | None:
        """What fits the first component as the oracle fits those that follow; None where it does not climb."""
        return None

    def with_draws(self, least: int) -> "AbstractOracle":
        """The same oracle with at least so many draws a step, as estimates without gradients need."""
        del least
        return self

    @abstractmethod
    def check(self, family: AbstractFamily) -> None:
        """Raise a ValueError if the oracle cannot serve `family`."""

    @abstractmethod
    def propose(self, key: Key[Array, ""], door: Door, aim: Aim, cloud: Cloud, modes: PyTree, most: int) -> Proposals:
        """At most `most` components, different from each other, given draws of the mixture and the modes known."""

"""What the next iteration needs."""

import equinox as eqx
from jaxtyping import PyTree

from relbo.mixture import Mixture
from relbo.model.whitening import Whitened
from relbo.records.estimate import Estimate


class State(eqx.Module):
    """What the next iteration needs."""

    target: Whitened
    mixture: Mixture
    modes: PyTree
    """Components at the modes found so far: starts for the oracle."""
    memory: PyTree
    """What the step rule remembers."""
    elbo: Estimate
    iteration: int
    explore: int
    """1 where the next iteration looks for modes anew: after a rejection, and while far ones keep turning up. More
    after further rejections: it has looked, and is patient."""
    other: "State | None" = None
    """What boosting had reached before coordinates were learned: kept until it is known which is better."""

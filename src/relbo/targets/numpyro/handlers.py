"""Effect handlers that NumPyro lacks."""

from typing import Any

import numpy as np
from numpyro.distributions import Unit
from numpyro.primitives import Messenger


def is_factor(distribution: Any) -> bool:
    """Whether a site is `numpyro.factor`'s; plates and masks wrap its distribution."""
    return isinstance(innermost(distribution), Unit)


def innermost(distribution: Any) -> Any:
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution


class Rescaled(Messenger):
    """Multiply the scale of the sites inside one plate."""

    def __init__(self, fn, plate: str, factor: float):
        self.plate, self.factor = plate, factor
        super().__init__(fn)

    def process_message(self, msg):
        if msg["type"] == "sample" and self.plate in [frame.name for frame in msg["cond_indep_stack"]]:
            msg["scale"] = self.factor * (1.0 if msg["scale"] is None else msg["scale"])


class Unobserved(Messenger):
    """Let the observed sites (but not the factors) be drawn, in the shape of what was observed.

    A likelihood outside a plate may be narrower than its data: `sample("y", Normal(mu, 1), obs=y)`.
    """

    def process_message(self, msg):
        if msg["type"] == "sample" and msg["is_observed"] and not is_factor(msg["fn"]):
            fn, shape = msg["fn"], np.shape(msg["value"])
            batch_shape = shape[: len(shape) - fn.event_dim]
            if len(fn.batch_shape) < len(batch_shape):
                msg["fn"] = fn.expand(np.broadcast_shapes(fn.batch_shape, batch_shape))
            msg["is_observed"], msg["value"] = False, None

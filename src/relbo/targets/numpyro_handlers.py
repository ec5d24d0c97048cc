"""Effect handlers that NumPyro lacks."""

from numpyro.distributions import Unit
from numpyro.primitives import Messenger


class Rescaled(Messenger):
    """Multiply the scale of the sites inside one plate."""

    def __init__(self, fn, plate: str, factor: float):
        self.plate, self.factor = plate, factor
        super().__init__(fn)

    def process_message(self, msg):
        if msg["type"] == "sample" and self.plate in [frame.name for frame in msg["cond_indep_stack"]]:
            msg["scale"] = self.factor * (1.0 if msg["scale"] is None else msg["scale"])


class Unobserved(Messenger):
    """Let the observed sites (but not the factors) be drawn."""

    def process_message(self, msg):
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], Unit):
            msg["is_observed"], msg["value"] = False, None

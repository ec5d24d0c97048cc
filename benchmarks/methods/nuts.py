"""NumPyro's NUTS, at default settings."""

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

from methods.base import Outcome, Task
from methods.guides import make_model


class WarmupKept(NUTS):
    """NUTS that adapts during the first `adapting` iterations of what its caller takes for sampling.

    So that the gradients of the warm-up can be counted in the same compiled program, which a warm-up apart would
    compile twice.
    """

    def __init__(self, model, adapting: int):
        super().__init__(model)
        self._adapting = adapting

    def init(self, rng_key, num_warmup, *args, **kwargs):
        return super().init(rng_key, self._adapting, *args, **kwargs)


def run(task: Task) -> Outcome:
    settings = task.settings
    num_warmup = settings["num_warmup"]
    mcmc = MCMC(
        WarmupKept(make_model(task.model), num_warmup),
        num_warmup=0,
        num_samples=num_warmup + settings["num_samples"],
        num_chains=settings["num_chains"],
        chain_method=settings["chain_method"],
        progress_bar=False,
    )
    mcmc.run(jax.random.key(task.seed), *task.data, extra_fields=("num_steps", "diverging"))
    chains = np.asarray(mcmc.get_samples(group_by_chain=True)["z"])[:, num_warmup:]
    extra = mcmc.get_extra_fields(group_by_chain=True)
    facts = {"num_divergent": int(extra["diverging"][:, num_warmup:].sum()), "num_chains": len(chains)}
    return Outcome(chains.reshape(-1, chains.shape[-1]), int(extra["num_steps"].sum()), facts=facts)

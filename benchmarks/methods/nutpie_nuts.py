"""nutpie's NUTS, on the models that have a PyMC form."""

import numpy as np
import nutpie

from methods.base import Outcome, Task


def run(task: Task) -> Outcome:
    settings = task.settings
    model = task.model.pymc()
    with task.clock.span():
        compiled = nutpie.compile_pymc_model(model)
    trace = nutpie.sample(
        compiled,
        tune=settings["num_warmup"],
        draws=settings["num_samples"],
        chains=settings["num_chains"],
        cores=1,
        seed=task.seed,
        save_warmup=True,
        progress_bar=False,
    )
    named = {name: _flat(trace.posterior[name]) for name in trace.posterior.data_vars}
    num_gradients = int(trace.sample_stats["n_steps"].sum() + trace.warmup_sample_stats["n_steps"].sum())
    facts = {"num_divergent": int(trace.sample_stats["diverging"].sum()), "num_chains": settings["num_chains"]}
    return Outcome(task.model.from_pymc(named), num_gradients, facts=facts)


def _flat(values) -> np.ndarray:
    """Chains and draws on one axis."""
    array = np.asarray(values)
    return array.reshape(-1, *array.shape[2:])

"""One of several processes that run fits together: `python mesh_worker.py PLAN.json`, started by `mesh_crew.py`.

The plan says how the processes come together, and which fits they make, one after the other; what each finds is written
to a file. A plan with one process makes the same fits alone.
"""

import json
import os
import pathlib
import sys

import numpy as np

import fault_worker

ROWS, DIM = 240, 3
SETTINGS = {
    "default": {"seed": 3},
    "lean": {**fault_worker.LEAN, "seed": 3, "max_components": 8},
    "first": {"seed": 3, "max_components": 1, "precondition": "affine"},
}


def data_of(model: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    chances = 1 / (1 + np.exp(-X @ np.linspace(-1, 1.5, DIM)))
    data = {"X": X, "y": (rng.random(ROWS) < chances).astype(np.float32)}
    return data | ({"group": np.arange(ROWS) % 3} if model == "plate" else {})


def logistic(beta, X, y):
    """Two modes of unequal weight, far enough apart that one normal does not do."""
    import jax.numpy as jnp

    eta = X @ beta
    prior = jnp.logaddexp(-0.5 * jnp.sum((beta - 1.5) ** 2) / 0.16, -0.4 - 0.5 * jnp.sum((beta + 1.5) ** 2) / 0.16)
    return prior + 0.03 * jnp.sum(y * eta - jnp.logaddexp(0.0, eta))


def plate(X, y, group):
    import numpyro
    import numpyro.distributions as dist

    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0.0, sd))
    slope = numpyro.sample("slope", dist.Normal(np.zeros(DIM), 2.0).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ slope + effect[group]), obs=y)


def make_target(model: str, data: dict):
    import relbo

    if model == "plate":
        return relbo.from_numpyro(plate, data["X"], data["y"], data["group"])
    return relbo.from_log_density(logistic, np.zeros(DIM, np.float32), args=(data["X"], data["y"]))


def spread(data: dict) -> dict:
    """As a process would that reads its own rows alone."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import relbo

    sharding = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))
    mine = relbo.local_rows(ROWS)
    return {name: jax.make_array_from_process_local_data(sharding, array[mine]) for name, array in data.items()}


def run(job: dict, process: int, processes: int) -> None:
    """One fit. `how` is "read" (each process its own rows), "data" or "points" (what `shard` says)."""
    import jax

    import relbo

    data, settings = data_of(job["model"]), dict(SETTINGS[job["settings"]])
    if processes > 1 and job["how"] == "read":
        data = spread(data)
    elif processes > 1:
        settings |= {"mesh": jax.make_mesh((jax.device_count(),), ("data",)), "shard": job["how"]}
    if job.get("seeds"):
        settings["seed"] = process
    if job.get("checkpoint"):
        settings["checkpoint"] = job["checkpoint"]
    try:
        posterior = relbo.fit(make_target(job["model"], data), progress_bar=False, **settings)
    except (ValueError, RuntimeError) as error:
        pathlib.Path(f"{job['out']}.{process}.error").write_text(f"{type(error).__name__}: {error}")
        if isinstance(error, RuntimeError):
            raise
        return
    draws = np.asarray(posterior.sample_unconstrained(50, seed=1))
    found = {"weights": posterior.weights, "locations": posterior.locations, "draws": draws}
    found["elbo"] = posterior.elbo.value
    if job.get("save"):
        relbo.save(posterior, job["save"])
        found["log_z"] = relbo.diagnose(posterior, num_draws=200).log_z.value
    np.savez(f"{job['out']}.{process}.npz", **found)


def main(plan: dict) -> None:
    import jax

    import relbo

    jax.config.update("jax_compilation_cache_dir", plan["cache"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if plan["processes"] > 1:
        relbo.distributed.init(f"127.0.0.1:{plan['port']}", plan["processes"], plan["process"], timeout=plan["timeout"])
    for job in plan["jobs"]:
        run(job, plan["process"], plan["processes"])


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main(json.loads(pathlib.Path(sys.argv[1]).read_text()))

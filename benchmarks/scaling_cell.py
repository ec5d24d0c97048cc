"""One measurement of `make scaling`, in a process of its own: `python scaling_cell.py AXIS SIZE METHOD LIMIT`.

Prints a line of JSON. `cold_cpu` are the CPU seconds of a fit with its compilation, `run_cpu` those of a second one in
the same process, whose programs are compiled already; a fit that took long is not made twice.
"""

import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import scaling_models as models
from clock import CompileClock, Usage

_LONG = 20.0
"""CPU seconds after which a first fit is not repeated."""
SVI_STEPS = 2000
NUTS_ITERATIONS = 200
K_DIM = 100
"""Dimensions in which components are counted."""
PROCESS_ROWS = 200_000


def measured(run: Callable[[], Any]) -> tuple[Any, dict]:
    begun = Usage.now()
    with CompileClock() as compiling:
        found = run()
    cold = Usage.now().since(begun)
    facts = {"cold_cpu": cold.cpu, "cold_wall": cold.wall, "compile": compiling.seconds}
    if cold.cpu > _LONG:
        return found, facts
    begun = Usage.now()
    found = run()
    warm = Usage.now().since(begun)
    return found, facts | {"run_cpu": warm.cpu, "run_wall": warm.wall}


def fitted(target: Any, **settings: Any) -> dict:
    import relbo

    posterior, facts = measured(lambda: relbo.fit(target, progress_bar=False, **settings))
    told = {"evaluations": posterior.num_evaluations, "components": posterior.num_components}
    return facts | told | {"elbo": posterior.elbo.value, "elbo_std_err": posterior.elbo.std_err}


def gradient_seconds(log_density: Callable, args: tuple, target: Any) -> dict:
    """Of one value and gradient, in blocks as large as a fit's."""
    import jax
    import jax.numpy as jnp

    from relbo.model.blocks import block_of

    block = block_of(target)
    run = jax.jit(jax.vmap(jax.value_and_grad(log_density), in_axes=(0, *(None for _ in args))))
    points = jnp.asarray(0.1 * np.random.default_rng(2).normal(size=(block, target.dim)), jnp.float32)
    jax.block_until_ready(run(points, *args))
    begun, calls = Usage.now(), 0
    while (used := Usage.now().since(begun)).cpu < 1.0:
        jax.block_until_ready(run(points, *args))
        calls += 1
    return {"gradient_cpu": used.cpu / calls / block, "block": block}


def rows_in_memory(num_rows: int, num_columns: int = models.COLUMNS) -> dict:
    import jax.numpy as jnp

    import relbo

    data = tuple(map(jnp.asarray, models.logistic_data(num_rows, num_columns)))
    target = relbo.from_log_density(models.logistic, jnp.zeros(num_columns), args=data)
    before = _peak()
    facts = fitted(target)
    return facts | {"beyond_data": _peak() - before} | gradient_seconds(models.logistic, data, target)


def rows_streamed(num_rows: int) -> dict:
    import jax.numpy as jnp

    import relbo

    size = 4 * num_rows * (models.COLUMNS + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (num_rows, models.COLUMNS))
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (num_rows,))
        for start, some_x, some_y in models.logistic_blocks(num_rows, models.COLUMNS):
            x[start : start + len(some_x)], y[start : start + len(some_x)] = some_x, some_y
        rows = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}
        target = relbo.from_rows(models.log_prior, models.log_likelihood, jnp.zeros(models.COLUMNS), rows)
        return fitted(target, max_memory=max(size // 10, 2**22))


def dimensions(dim: int) -> dict:
    import jax.numpy as jnp

    import relbo

    data = (jnp.asarray(models.counts_data(dim)),)
    target = relbo.from_log_density(models.counts, jnp.zeros(dim), args=data)
    return fitted(target, max_components=2) | gradient_seconds(models.counts, data, target)


def components(num: int) -> dict:
    """One iteration of boosting on a mixture that has so many."""
    import jax
    import jax.numpy as jnp

    import relbo
    from relbo.boosting.state import State
    from relbo.mixture import empty_mixture
    from relbo.model.whitening import identity_map

    target = relbo.from_log_density(models.bent, jnp.zeros(K_DIM))
    booster = relbo.make_booster(target, precondition="none")
    whitened = identity_map(target, "none")
    mixture = empty_mixture(booster.family, K_DIM, num + 1, np.float32)
    for slot, mean in enumerate(0.3 * np.random.default_rng(3).normal(size=(num, K_DIM))):
        params = booster.family.init(jnp.asarray(mean, jnp.float32), jnp.eye(K_DIM))
        mixture = mixture.place(slot, params, np.float32(-np.log(num)))
    modes = booster.find_modes(jax.random.key(0), booster.door(whitened))
    state = State(whitened, mixture, modes, booster.step_rule.init(), relbo.Estimate(-1e3, 0.0, 0), 0, 0)
    (_, record), facts = measured(lambda: booster.step(jax.random.key(1), state, num + 1))
    return facts | {"evaluations": record.evaluations, "components": record.num_components}


def svi(model: Callable, *args: Any) -> dict:
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    tool = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO())

    def run():
        result = tool.run(jax.random.key(0), SVI_STEPS, *args, progress_bar=False)
        return float(np.mean(np.asarray(result.losses)[-100:]))

    loss, facts = measured(run)
    return facts | {"elbo": -loss, "evaluations": SVI_STEPS}


def nuts(model: Callable, *args: Any) -> dict:
    """As many iterations, half of them to warm up, of one chain."""
    import jax
    from numpyro.infer import MCMC, NUTS

    half = NUTS_ITERATIONS // 2
    chain = MCMC(NUTS(model), num_warmup=half, num_samples=half, num_chains=1, progress_bar=False)

    def run():
        chain.run(jax.random.key(0), *args, extra_fields=("num_steps",))
        return int(np.sum(np.asarray(chain.get_extra_fields()["num_steps"])))

    steps, facts = measured(run)
    return facts | {"steps_after_warmup": steps}


def together(num: int) -> dict:
    """The same fit by so many processes on this machine, each with its share of the rows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "member", str(num), str(port)]
    begun, wall = Usage.now(), time.perf_counter()
    crew = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(num)]
    told = [process.communicate()[0] for process in crew]
    if any(process.returncode for process in crew):
        raise RuntimeError(f"exit codes {[process.returncode for process in crew]}")
    facts = [json.loads(each.splitlines()[-1]) for each in told]
    sums = {name: sum(each[name] for each in facts) for name in ("cold_cpu", "run_cpu") if name in facts[0]}
    return facts[0] | sums | {"all_cpu": Usage.now().since(begun).cpu, "all_wall": _since(wall)}


def member(num: int, port: str, rank: int) -> dict:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    import relbo

    data = models.logistic_data(PROCESS_ROWS, models.COLUMNS)
    if num > 1:
        relbo.distributed.init(f"127.0.0.1:{port}", num, rank)
        mine = relbo.local_rows(PROCESS_ROWS)
        spread = NamedSharding(jax.make_mesh((num,), ("data",)), PartitionSpec("data"))
        data = tuple(jax.make_array_from_process_local_data(spread, part[mine]) for part in data)
    target = relbo.from_log_density(models.logistic, jnp.zeros(models.COLUMNS), args=data)
    facts = fitted(target)
    return facts | (_all_reduce(num) if num > 1 else {})


def _all_reduce(num: int) -> dict:
    """Wall seconds of a sum over processes as large as that of an evaluation."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((num,), ("data",))
    spread, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    part = np.ones((1, 8, models.COLUMNS + 1), np.float32)
    parts = jax.make_array_from_process_local_data(spread, part)
    run = jax.jit(lambda each: each.sum(0), out_shardings=whole)
    jax.block_until_ready(run(parts))
    seconds = []
    for _ in range(200):
        begun = time.perf_counter()
        jax.block_until_ready(run(parts))
        seconds.append(_since(begun))
    return {"all_reduce": float(np.median(seconds)), "all_reduce_bytes": part.nbytes}


def _peak() -> int:
    """The largest resident set so far, in bytes (Linux counts in kilobytes, macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _since(begun: float) -> float:
    return time.perf_counter() - begun


MEASURE: dict[tuple[str, str], Callable[[int], dict]] = {
    ("rows", "relbo"): rows_in_memory,
    ("rows", "relbo, streaming"): rows_streamed,
    ("rows", "SVI"): lambda num: svi(models.numpyro_logistic, *models.logistic_data(num, models.COLUMNS)),
    ("rows", "NUTS"): lambda num: nuts(models.numpyro_logistic, *models.logistic_data(num, models.COLUMNS)),
    ("rows of 100", "relbo"): lambda num: rows_in_memory(num, 100),
    ("rows of 100", "NUTS"): lambda num: nuts(models.numpyro_logistic, *models.logistic_data(num, 100)),
    ("dimensions", "relbo"): dimensions,
    ("dimensions", "SVI"): lambda dim: svi(models.numpyro_counts, models.counts_data(dim)),
    ("dimensions", "NUTS"): lambda dim: nuts(models.numpyro_counts, models.counts_data(dim)),
    ("components", "relbo"): components,
    ("processes", "relbo"): together,
}


def main() -> None:
    if sys.argv[1] == "member":
        print(json.dumps(member(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
        return
    axis, size, method, limit = sys.argv[1:]
    seconds = int(float(limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    load = os.getloadavg()[0]
    print(json.dumps(MEASURE[axis, method](int(size)) | {"load": load}))


if __name__ == "__main__":
    main()

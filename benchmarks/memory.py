"""Peak memory and time of the first iterations of a fit to many rows, with and without a memory limit.

    python benchmarks/memory.py [--rows 300000] [--columns 20] [--limits 250MB 1GB]

Every line is a process of its own: peak memory is that of a process. "none" evaluates all points at once, whatever they
take; "default" is what `relbo.fit` does when nothing is said. Memory is counted from when the data are in place.
"""

import argparse
import dataclasses
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import relbo


def log_density(beta, x, y):
    logits = x @ beta
    return jnp.sum(y * logits - jax.nn.softplus(logits)) - jnp.sum(beta**2) / 2


def logistic_regression(num_rows: int, num_columns: int):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    beta = 0.3 * rng.normal(size=num_columns)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ beta))).astype(np.float32)
    return relbo.from_log_density(log_density, jnp.zeros(num_columns), args=(x, y))


def peak() -> int:
    """Bytes; Linux counts in kilobytes, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(limit: str, num_rows: int, num_columns: int) -> None:
    target = logistic_regression(num_rows, num_columns)
    before = peak()
    booster = relbo.make_booster(
        target,
        oracle=relbo.NaturalOracle(num_steps=5),
        refine=False,
        precondition=relbo.Preconditioner(num_steps=5),
        max_memory=None if limit in ("none", "default") else limit,
    )
    if limit == "none":
        booster = dataclasses.replace(booster, points_at_once=None)
    begun = time.perf_counter()
    state, _ = booster.init(jax.random.key(0))
    state, _ = booster.step(jax.random.key(1), state)
    seconds, used = time.perf_counter() - begun, peak() - before
    at_once = booster.door(state.target).block
    print(f"{limit:>8}  {at_once:>6}  {used / 1e6:8.0f} MB  {seconds:6.1f} s  {state.elbo.value:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--limits", nargs="*", default=["250MB", "500MB", "default", "none"])
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.rows, options.columns)
        return
    print(f"{'limit':>8}  {'points':>6}  {'peak':>11}  {'time':>8}  ELBO")
    for limit in options.limits:
        size = ["--rows", str(options.rows), "--columns", str(options.columns)]
        subprocess.run([sys.executable, __file__, "--only", limit, *size], check=True)


if __name__ == "__main__":
    main()

"""A small fit in a process of its own, to be killed: started by tests/storage/test_killed.py through a fork server."""

import hashlib
import json
import os

import jax
import jax.numpy as jnp

import relbo
from relbo.storage.container import unpack

LEAN = {
    "family": "mean_field_normal",
    "objective": "relbo",
    "oracle": relbo.GradientOracle(
        num_steps=5,
        num_draws=4,
        num_restarts=1,
        starts=relbo.Starts(num_residual=0, num_modes=0, num_initial=0, num_random=1),
    ),
    "refine": False,
    "precondition": "none",
    "estimator": "reparameterized",
    "step": "fixed",
    "stop": (),
    "max_components": 25,
}
DEFAULT = {"stop": (), "max_components": 6}
SETTINGS = {"lean": LEAN, "default": DEFAULT}


def log_density(x):
    return jnp.sum(jnp.log1p(x**2) - 0.5 * x**2)  # two modes


def run(name: str, path: str, result: str, cache: str) -> None:
    """Fit with a checkpoint at `path`, and leave the digest of the finished file in `result`."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    target = relbo.from_log_density(log_density, jnp.zeros(1))
    relbo.fit(target, seed=3, checkpoint=path, **SETTINGS[name])
    with open(f"{result}.tmp", "w") as file:
        file.write(digest(path))
    os.replace(f"{result}.tmp", result)


def digest(path: str) -> str:
    """Of everything in a file but the clock."""
    with open(path, "rb") as file:
        header, arrays = unpack(file.read(), path)
    for record in header["trace"]:
        for clock in ("seconds", "compile_seconds"):
            record.pop(clock)
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()

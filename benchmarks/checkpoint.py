"""What checkpoints cost: fits with and without, in turns, at 30 components and 1,000 dimensions.

    python benchmarks/checkpoint.py [--dim 1000] [--components 30] [--repeats 3] [--family mean_field_normal]

Prints the median time of a fit with and without a checkpoint, and, more precise on a noisy machine, the time that went
into writing as a share of the rest of the same fit. The bar is 5 %.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp

import relbo
from relbo.storage.checkpoint import Checkpoint


def log_density(z):
    """Two separated normals of correlated neighbors: enough to do for every component."""
    steps = jnp.diff(z, prepend=0.0)
    return jnp.logaddexp(-0.5 * jnp.sum((steps - 0.1) ** 2), -0.5 * jnp.sum((steps + 0.1) ** 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=1000)
    parser.add_argument("--components", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--family", default="normal")
    given = parser.parse_args()
    target = relbo.from_log_density(log_density, jnp.zeros(given.dim))
    settings = {"max_components": given.components, "stop": (), "min_improvement": -float("inf"), "progress_bar": False}
    settings["family"] = given.family
    relbo.fit(target, **{**settings, "max_components": 2})  # compiles
    writing = 0.0
    write = Checkpoint.write

    def timed(self, posterior, about, best):
        nonlocal writing
        jax.block_until_ready(posterior.mixture.log_weights)
        begun = time.perf_counter()
        write(self, posterior, about, best)
        writing += time.perf_counter() - begun

    Checkpoint.write = timed
    plain, checked, shares = [], [], []
    for repeat in range(given.repeats):
        begun = time.perf_counter()
        relbo.fit(target, **settings)
        plain.append(time.perf_counter() - begun)
        with tempfile.TemporaryDirectory() as folder:
            path, writing, begun = pathlib.Path(folder) / "fit.ckpt", 0.0, time.perf_counter()
            posterior = relbo.fit(target, checkpoint=path, **settings)
            checked.append(time.perf_counter() - begun)
            size = path.stat().st_size / 1e6
        shares.append(writing / (checked[-1] - writing))
        print(f"{repeat}: {plain[-1]:.1f} s without, {checked[-1]:.1f} s with, of which {writing:.2f} s writing")
    num = posterior.num_components
    print(f"{given.dim} dimensions, {num} components, {len(posterior.trace)} iterations, a file of {size:.1f} MB")
    print(f"with / without: {statistics.median(checked) / statistics.median(plain):.3f}")
    print(f"writing / the rest of the fit: {statistics.median(shares):.2%} (bar 5 %)")


if __name__ == "__main__":
    main()

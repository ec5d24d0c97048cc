"""What a door costs, and whether all doors lead to the same posterior.

    python benchmarks/door_cost.py [--x64] [--fits] [--repeats 15]

First the cost of one gradient inside a compiled loop, logistic regression 5,000 x 20, as a ratio to the same density
written in JAX by hand: a scan of dependent steps, doors taking turns, the fastest of many repeats. Then, with --fits,
default fits of three models through four doors: means and sds beside those of the JAX door, in Monte Carlo errors.
"""

import argparse
import time

import jax
import numpy as np

import relbo
from door_models import LOGISTIC, MODELS

NUM_STEPS = 300
BARS = {"NumPyro": 1.1, "PyMC": 1.6, "Stan": 1.7}


def gradient_loop(target):
    value_and_grad = jax.value_and_grad(target.log_density)

    def step(z, _):
        value, gradient = value_and_grad(z)
        return z + 1e-9 * gradient, value  # each step waits for the one before

    return jax.jit(lambda z: jax.lax.scan(step, z, length=NUM_STEPS)).lower(target.initial[0]).compile()


def gradients(repeats: int) -> None:
    targets = {name: door.target() for name, door in LOGISTIC.doors.items()}
    loops = {name: (gradient_loop(target), target.initial[0]) for name, target in targets.items()}
    fastest = dict.fromkeys(loops, np.inf)
    for _ in range(repeats):
        for name, (loop, start) in loops.items():
            begun = time.perf_counter()
            jax.block_until_ready(loop(start))
            fastest[name] = min(fastest[name], (time.perf_counter() - begun) / NUM_STEPS)
    print(f"one gradient, logistic 5,000 x 20, {targets['JAX'].dtype}")
    for name, seconds in fastest.items():
        ratio, bar = seconds / fastest["JAX"], BARS.get(name)
        print(f"  {name:8} {1e6 * seconds:8.1f} us  ratio {ratio:.2f}" + (f"  (bar {bar})" if bar else ""))


def fits(num_draws: int = 20_000) -> None:
    for model_name, model in MODELS.items():
        found = {}
        for name, door in model.doors.items():
            target = door.target()
            begun = time.perf_counter()
            posterior = relbo.fit(target, seed=0, progress_bar=False)
            chart = door.chart or model.chart
            z = posterior.sample_unconstrained(num_draws, seed=1)
            draws = np.asarray(jax.jit(jax.vmap(lambda at, t=target, c=chart: c(t.constrain(at))))(z))
            draws = draws.astype(np.float64)
            found[name] = draws.mean(0), draws.std(0)
            seconds = time.perf_counter() - begun
            print(
                f"{model_name}, {name}: ELBO {posterior.elbo}, {posterior.num_components} components, {seconds:.0f} s"
            )
        mean, sd = found["JAX"]
        for name, (other_mean, other_sd) in found.items():
            shift = np.abs(other_mean - mean) / (sd * np.sqrt(2 / num_draws))
            stretch = np.abs(other_sd / sd - 1)
            print(
                f"  {name:8} means differ by at most {shift.max():.1f} Monte Carlo errors "
                f"({(np.abs(other_mean - mean) / sd).max():.4f} sd), sds by {stretch.max():.2%}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x64", action="store_true", help="in float64")
    parser.add_argument("--fits", action="store_true", help="also fit every model through every door")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    gradients(options.repeats)
    if options.fits:
        fits()

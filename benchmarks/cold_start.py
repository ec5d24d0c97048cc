"""From `import` to the first draw, eight schools (centred): relbo against NumPyro's own AutoMultivariateNormal SVI.

Every run is a fresh Python process, and the kinds take turns, so that a busy machine slows all alike:

- `svi`: NumPyro's SVI with AutoMultivariateNormal, 2,000 steps of Adam, one posterior draw;
- `relbo cold`: `relbo.fit` at default settings on the same model, one draw, the persistent compilation cache off;
- `relbo warm`: the same with JAX's persistent compilation cache, filled by a run that is not counted.

Seconds are taken inside the process, from before the first import to after the draw. Run by
`python benchmarks/cold_start.py --repeats 5`. Nothing fails here: machines differ, and the ratios are what to read.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

KINDS = ("svi", "relbo cold", "relbo warm")
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def draw_once(kind: str) -> float:
    """In a process of its own: seconds until one draw of eight schools is there."""
    begun = time.perf_counter()
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)

    def model(sigma, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)

    if kind == "svi":
        from numpyro.infer import SVI, Trace_ELBO
        from numpyro.infer.autoguide import AutoMultivariateNormal

        guide = AutoMultivariateNormal(model)
        svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
        result = svi.run(jax.random.key(0), 2000, sigma, y, progress_bar=False)
        draw = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(1,))
    else:
        import relbo

        target = relbo.from_numpyro(model, sigma, y=y)
        draw = relbo.fit(target, progress_bar=False).sample(1)
    np.asarray(draw["mu"])
    return time.perf_counter() - begun


def measure(kind: str, cache: str) -> float:
    """Seconds of one fresh process."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    if kind == "relbo warm":
        environment |= CACHE | {"JAX_COMPILATION_CACHE_DIR": cache}
    command = [sys.executable, __file__, "--one", kind]
    return float(subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds from import to the first draw, eight schools.")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(draw_once(options.one))
        return
    with tempfile.TemporaryDirectory() as cache:
        measure("relbo warm", cache)
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(options.repeats):
            for kind in KINDS:
                seconds[kind].append(measure(kind, cache))
    print(f"{'':12} {'median s':>9} {'to svi':>7}  all")
    for kind, values in seconds.items():
        ratio = statistics.median(values) / statistics.median(seconds["svi"])
        print(f"{kind:12} {statistics.median(values):9.1f} {ratio:7.2f}  {' '.join(f'{v:.1f}' for v in values)}")


if __name__ == "__main__":
    main()

"""What every method is measured against: `python benchmarks/posteriors/reference.py [NAME ...]` writes references/.

Closed forms where they exist, quadrature where few coordinates are left once the others are integrated out, importance
sampling for regressions of many rows, and otherwise long NUTS runs with log Z by bridge sampling; in double precision.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # `posteriors` and `targets`, as the other benchmarks see them

import jax
import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtr

from posteriors import MODELS, REFERENCES, Model, Reference
from posteriors.anchors import normals_of
from posteriors.bridge import log_z as bridged_log_z
from posteriors.charts import CHARTS, Chart, plain_chart
from posteriors.grids import GRIDS
from posteriors.importance import weigh
from posteriors.quadrature import integrate
from targets import MissingData

NUM_CHAINS = 8
DRAWS = {
    "gp_poisson": (2000, 10_000),
    "horseshoe": (2000, 8000),
}
"""Warm-up and kept draws of a chain, where other than (1000, 4000)."""
CAREFUL = {"gp_poisson", "horseshoe", "stochastic_volatility"}
"""Posteriors with narrow places: smaller steps."""
NUM_PAIRS = {"logistic_10000": 10_000, "logistic_100000": 10_000}
"""Importance sampling from the normal at the mode, for what is dear to evaluate and nearly normal."""
LOG_Z_TOLERANCE = 0.01


def refer(model: Model) -> Reference:
    if model.name in CLOSED_FORMS:
        return CLOSED_FORMS[model.name](model)
    if model.name in GRIDS:
        return _by_quadrature(model)
    if model.name in NUM_PAIRS:
        return _by_importance(model)
    return _by_sampling(model)


# Closed forms


def _exact(model: Model, mean, variance, mode_mass=None) -> Reference:
    zeros = [0.0] * model.dim
    sd = np.sqrt(variance).tolist()
    mean = np.asarray(mean).tolist()
    return Reference(model.name, model.dim, 0.0, 0.0, "exact", mean, sd, zeros, zeros, mode_mass, None, None, "exact")


def _normals(model: Model, mode_mass) -> Reference:
    facts = normals_of(model.name)
    weights, means = facts["weights"], facts["means"]
    mean = weights @ means
    variance = weights @ (np.diagonal(facts["covariances"], axis1=1, axis2=2) + (means - mean) ** 2)
    return _exact(model, mean, variance, mode_mass)


def _two_modes(model: Model) -> Reference:
    left = 0.4 * ndtr(2.0) + 0.6 * ndtr(-2.0)
    return _normals(model, [float(left), float(1 - left)])


CLOSED_FORMS = {
    "two_modes": _two_modes,
    "banana": lambda model: _exact(model, [0.0, 0.0], [100.0, 1.0 + 0.03**2 * 2 * 100.0**2]),
    "funnel": lambda model: _exact(model, np.zeros(10), [9.0, *np.full(9, np.exp(4.5))]),
    "ten_normals": lambda model: _normals(model, [0.1] * 10),
}

# Quadrature


def _by_quadrature(model: Model) -> Reference:
    found = integrate(GRIDS[model.name](model, model.data()))
    how = f"quadrature, {found.num_points:,} points"
    zeros = [0.0] * model.dim
    error = max(found.halved_change, 1e-6)
    mean, sd = found.mean.tolist(), found.sd.tolist()
    return Reference(model.name, model.dim, found.log_z, error, how, mean, sd, zeros, zeros, None, None, None, how)


# Importance sampling


def _by_importance(model: Model) -> Reference:
    num_pairs = NUM_PAIRS[model.name]
    found = weigh(model.log_density, model.data(), model.dim, num_pairs)
    how = f"importance sampling from the normal at the mode, {num_pairs:,} pairs"
    return Reference(
        model.name,
        model.dim,
        found.log_z,
        found.log_z_std_err,
        how,
        found.mean.tolist(),
        found.sd.tolist(),
        found.mean_mcse.tolist(),
        found.sd_mcse.tolist(),
        None,
        found.ess,
        None,
        how,
    )


# Sampling


def _by_sampling(model: Model) -> Reference:
    chart, data = CHARTS.get(model.name, plain_chart)(model), model.data()
    warmup, kept = DRAWS.get(model.name, (1000, 4000))
    chains = _sample(chart, data, warmup, kept, 0.98 if model.name in CAREFUL else 0.9)
    log_densities = jax.jit(
        lambda points, data: jax.lax.map(lambda u: chart.log_density(u, *data), points, batch_size=64)
    )
    log_z, std_err = bridged_log_z(lambda points: np.asarray(log_densities(points, data)), chains)
    draws = chart.to_model(chains.reshape(-1, chart.dim), data)
    moments = _moments(draws.reshape(len(draws), NUM_CHAINS, kept, model.dim))
    mode_mass = None if model.mode_of is None else _masses(model, draws)
    return Reference(
        model.name,
        model.dim,
        log_z + chart.log_copies if std_err <= LOG_Z_TOLERANCE else None,
        std_err,
        f"warp-III bridge sampling, {NUM_CHAINS} folds",
        **moments,
        mode_mass=mode_mass,
        how=f"NUTS {NUM_CHAINS} x ({warmup} + {kept})",
    )


def _sample(chart: Chart, data: tuple, warmup: int, kept: int, target_accept: float) -> np.ndarray:
    """Draws of u, (chains, draws, dim)."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(*data):
        u = numpyro.sample("u", dist.ImproperUniform(dist.constraints.real, (), (chart.dim,)))
        numpyro.factor("log_density", chart.log_density(u, *data))

    kernel = NUTS(model, target_accept_prob=target_accept, dense_mass=chart.dim <= 100)
    mcmc = MCMC(
        kernel, num_warmup=warmup, num_samples=kept, num_chains=NUM_CHAINS, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    starts = _ascend(chart, data) + 0.1 * np.random.default_rng(0).standard_normal((NUM_CHAINS, chart.dim))
    mcmc.run(jax.random.key(0), *data, init_params={"u": starts}, extra_fields=("diverging", "num_steps"))
    fields = mcmc.get_extra_fields()
    print(f"  divergences {int(fields['diverging'].sum())}, steps {float(fields['num_steps'].mean()):.1f}", flush=True)
    return np.asarray(mcmc.get_samples(group_by_chain=True)["u"])


def _ascend(chart: Chart, data: tuple) -> np.ndarray:
    """A few steps uphill: far from the mass, a first leap of NUTS can end where the density overflows, and stay."""
    value_and_grad = jax.jit(jax.value_and_grad(lambda u, data: -chart.log_density(u, *data)))

    def objective(u):
        value, gradient = value_and_grad(u, data)
        return float(value), np.asarray(gradient)

    return minimize(objective, chart.start, jac=True, method="L-BFGS-B", options={"maxiter": 30}).x


def _moments(draws: np.ndarray) -> dict:
    """From (copies, chains, draws, dim): each draw counts with all its copies."""
    import arviz as az

    values = draws.mean(axis=0)
    mean = values.mean(axis=(0, 1))
    squares = ((draws - mean) ** 2).mean(axis=0)
    sd = np.sqrt(squares.mean(axis=(0, 1)))
    first, second = az.convert_to_dataset({"x": draws[0]}), az.convert_to_dataset({"x": squares})
    symmetric = az.convert_to_dataset({"x": values})
    return {
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        "mean_mcse": az.mcse(symmetric)["x"].values.tolist(),
        "sd_mcse": (az.mcse(second)["x"].values / (2 * sd)).tolist(),
        "ess_min": float(min(az.ess(first)["x"].min(), az.ess(second)["x"].min())),
        "r_hat_max": float(max(az.rhat(first)["x"].max(), az.rhat(second)["x"].max())),
    }


def _masses(model: Model, draws: np.ndarray) -> list[float]:
    labels = model.mode_of(draws.reshape(-1, model.dim))
    return (np.bincount(labels, minlength=model.num_modes) / labels.size).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all if none is given")
    names = parser.parse_args().names or list(MODELS)
    jax.config.update("jax_enable_x64", True)
    REFERENCES.mkdir(exist_ok=True)
    for name in names:
        began = time.perf_counter()
        try:
            found = refer(MODELS[name])
        except MissingData as missing:
            print(f"{name}: left out, {missing}", flush=True)
            continue
        (REFERENCES / f"{name}.json").write_text(json.dumps(asdict(found), indent=1) + "\n")
        print(
            f"{name}: log Z {found.log_z} +- {found.log_z_std_err:.2g}, least ESS {found.ess_min}, "
            f"greatest r-hat {found.r_hat_max}, {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""References: long NUTS by NumPyro or nutpie, integration on a grid, and closed forms."""

from collections.abc import Callable
from typing import Any

import numpy as np

from unseen.base import Moments, Values, columns

WARMUP, DRAWS, CHAINS = 600, 1500, 4
TARGET_ACCEPT = 0.85
"""Small steps: some of the models have narrow places."""
LONGER = (1, 4, 16)
"""Times as long: chains that have not converged are run anew."""
MOST_R_HAT = 1.015


def nuts(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Callable[[Values], Values]], Moments]:
    """NumPyro's NUTS on a NumPyro model."""
    vectorized = kwargs.pop("vectorized", False)

    def run(view, times):
        import jax
        from numpyro.infer import MCMC, NUTS

        with jax.enable_x64(True):
            kernel = NUTS(model, target_accept_prob=TARGET_ACCEPT)
            mcmc = MCMC(
                kernel,
                num_warmup=times * WARMUP,
                num_samples=times * DRAWS,
                num_chains=CHAINS,
                chain_method="vectorized" if vectorized else "sequential",
                progress_bar=False,
            )
            mcmc.run(jax.random.key(1), *args, extra_fields=("diverging",), **kwargs)
            draws = mcmc.get_samples(group_by_chain=True)
            num_divergent = int(mcmc.get_extra_fields()["diverging"].sum())
        return of_chains(draws, view, f"NumPyro's NUTS, {num_divergent} divergent")

    return lambda view: until_converged(lambda times: run(view, times))


def nutpie(model: Callable[[], Any]) -> Callable[[Callable[[Values], Values]], Moments]:
    """nutpie's NUTS on a PyMC model."""

    def run(view, times):
        import nutpie

        compiled = nutpie.compile_pymc_model(model())
        trace = nutpie.sample(
            compiled,
            tune=times * WARMUP,
            draws=times * DRAWS,
            chains=CHAINS,
            cores=1,
            seed=1,
            target_accept=TARGET_ACCEPT,
            progress_bar=False,
        )
        draws = {name: np.asarray(trace.posterior[name]) for name in trace.posterior.data_vars}
        num_divergent = int(trace.sample_stats["diverging"].sum())
        return of_chains(draws, view, f"nutpie's NUTS, {num_divergent} divergent")

    return lambda view: until_converged(lambda times: run(view, times))


def until_converged(run: Callable[[int], Moments]) -> Moments:
    """Moments of chains so many `times` as long as it takes."""
    for times in LONGER:
        found = run(times)
        if found.r_hat < MOST_R_HAT:
            break
    return found


def of_chains(draws: Values, view: Callable[[Values], Values], how: str) -> Moments:
    """Moments of draws by chain, (chains, draws, ...), with the errors that effective sample sizes give."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    num_chains, num_draws = np.shape(next(iter(draws.values())))[:2]
    flat = {name: np.asarray(value).reshape(-1, *np.shape(value)[2:]) for name, value in draws.items()}
    names, matrix = columns(view(flat))
    by_chain = matrix.reshape(num_chains, num_draws, -1)
    mean, sd = matrix.mean(axis=0), matrix.std(axis=0)
    squares = ((by_chain - mean) / sd) ** 2
    mean_error = sd / np.sqrt(effective_sample_size(by_chain))
    sd_error = 0.5 * sd * squares.std(axis=(0, 1)) / np.sqrt(effective_sample_size(squares))
    r_hat = float(np.max(split_gelman_rubin(by_chain)))
    return Moments(names, mean, mean_error, sd, sd_error, f"{how}, {num_chains} x {num_draws} draws", r_hat)


def exact(how: str, **numbers: tuple[float, float]) -> Callable[[Callable[[Values], Values]], Moments]:
    """Mean and sd by name, known without error to speak of."""

    def run(view):
        table = np.array(list(numbers.values()))
        zero = np.zeros(len(table))
        return Moments(list(numbers), table[:, 0], zero, table[:, 1], zero, how)

    return run


def on_grid(log_density: Callable[[Values], np.ndarray], **axes: np.ndarray):
    """Integrals by sums over a product of even grids; `log_density` takes arrays by name, in the model's own space."""

    def run(view):
        grids = dict(zip(axes, np.meshgrid(*axes.values(), indexing="ij"), strict=True))
        with np.errstate(all="ignore"):
            log_p = log_density(grids)
        log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
        weights = np.exp(log_p - log_p.max())
        weights = (weights / weights.sum()).ravel()
        names, matrix = columns(view({name: grid.ravel() for name, grid in grids.items()}))
        mean = weights @ matrix
        sd = np.sqrt(weights @ (matrix - mean) ** 2)
        zero = np.zeros(len(names))
        return Moments(names, mean, zero, sd, zero, f"sums over a grid of {weights.size} points")

    return run


def improper(log_density: Callable[..., Any], supports: dict[str, tuple[Any, tuple[int, ...]]], *args: Any):
    """A plain JAX log density as a NumPyro model: every parameter without prior, the density as a factor."""

    def model():
        import numpyro
        import numpyro.distributions as dist

        params = {
            name: numpyro.sample(name, dist.ImproperUniform(support, (), shape))
            for name, (support, shape) in supports.items()
        }
        numpyro.factor("density", log_density(params, *args))

    return model

"""The compared systems on one posterior: earlier boosting methods, a flow, NUTS, and the default of this library.

Bayesian logistic regression on chemreact10 (the embedded breast-cancer data where that is not at hand). Every boosted
system gets the same number of iterations, and where it climbs by gradients the same number of steps and draws for its
first component and for each that follows; what has only one component, or is a flow, gets all these steps in one go.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoIAFNormal

import relbo
from experiments import logistic
from experiments.data import Classification
from experiments.runs import timed_fit

DEFAULT, FLOW, TRUTH = "relbo, default", "normalising flow (IAF)", "NUTS"


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every system may spend, and on how many draws it is measured."""

    iterations: int = 8
    first_steps: int = 8000
    num_steps: int = 500
    num_draws: int = 4
    elbo_draws: int = 2000
    score_draws: int = 500
    nuts_warmup: int = 300
    nuts_draws: int = 500

    @property
    def all_steps(self) -> int:
        """Of a boosted system: the first component, and one in every iteration."""
        return self.first_steps + self.iterations * self.num_steps


QUICK = Budget(
    iterations=1, first_steps=50, num_steps=50, elbo_draws=400, score_draws=200, nuts_warmup=100, nuts_draws=100
)


# The systems


def compared(name: str, target, data: Classification, budget: Budget, seed: int) -> dict[str, Any]:
    """One system with one seed."""
    if name == TRUTH:
        return nuts(target, data, budget)
    return {"system": name, "seed": seed, **systems(budget)[name](target, data, budget, seed)}


def systems(budget: Budget) -> dict[str, Callable[..., dict[str, Any]]]:
    """Every row of the table but the truth: what fits it, given target, data, budget and seed.

    The authors' three earlier systems are those of Locatello et al. 2018 (AISTATS, two step rules) and Dresdner et al.
    """
    boosted = {
        "the paper, fixed step": relbo.paper("fixed"),
        "the paper, line search": relbo.paper("line_search"),
        "the paper, fully corrective": relbo.paper("fully_corrective"),
        "Guo et al. 2016": relbo.preset("guo2016"),
        "Miller et al. 2016": relbo.preset("miller2016"),
        "Locatello et al. 2018 (AISTATS), fixed step": relbo.preset("locatello2018_fixed"),
        "Locatello et al. 2018 (AISTATS), norm-corrective": relbo.preset("locatello2018_norm_corrective"),
        "Dresdner et al. 2021, adaptive step": relbo.preset("dresdner2021"),
    }
    limit = {"max_components": budget.iterations + 1}
    alone = with_steps(relbo.paper("fixed"), budget.all_steps, budget.num_draws) | {"max_components": 1}
    return {
        "BBVI": boosting(alone),
        **{
            name: boosting(in_iterations(settings, budget), first(settings, budget))
            for name, settings in boosted.items()
        },
        FLOW: flow,
        DEFAULT: boosting(limit),
    }


def in_iterations(settings: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """An earlier system held to the budget: a number of iterations, whatever becomes of the components."""
    rules = {"stop": relbo.MaxIterations(budget.iterations), "max_components": budget.iterations + 1}
    return with_steps(settings, budget.num_steps, budget.num_draws) | rules


def first(settings: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """The fit of its first component alone, from far away, which takes more steps than the others."""
    return with_steps(settings, budget.first_steps, budget.num_draws) | {"max_components": 1}


def with_steps(settings: dict[str, Any], num_steps: int, num_draws: int) -> dict[str, Any]:
    """The same oracle with so many gradient steps for a component, if it takes any."""
    oracle = settings["oracle"]
    if isinstance(oracle, relbo.JointOracle):
        oracle = dataclasses.replace(oracle, num_steps=num_steps, num_draws=num_draws)
    elif not isinstance(oracle, relbo.LaplaceOracle):
        ascent = dataclasses.replace(oracle.ascent, num_steps=num_steps, num_draws=num_draws)
        oracle = dataclasses.replace(oracle, ascent=ascent)
    return settings | {"oracle": oracle}


def boosting(settings: dict[str, Any], first: dict[str, Any] | None = None) -> Callable[..., dict[str, Any]]:
    """A fit by relbo with these settings (and `first` for the first component), and all that is measured of it."""

    def fitted(target, data: Classification, budget: Budget, seed: int) -> dict[str, Any]:
        start, begun = timed_fit(target, seed=seed, **first) if first else (None, 0.0)
        posterior, seconds = timed_fit(target, seed=seed, start=start, **settings)
        seconds += begun
        elbo = logistic.elbo(posterior, budget.elbo_draws, seed=1000 + seed)
        draws = posterior.sample_unconstrained(budget.elbo_draws, seed=1000 + seed)
        log_z = relbo.diagnose(posterior, seed=seed).log_z if settings.keys() == {"max_components"} else None
        return {
            "elbo": elbo,
            **measured(draws, data, budget),
            "components": posterior.num_components,
            "largest_weight": float(np.max(posterior.weights)),
            "seconds": seconds,
            "evaluations": posterior.num_evaluations,
            "trace": [record.elbo.value for record in posterior.trace if record.kind != "polish"],
            "step_sizes": [record.step_size for record in posterior.trace if record.kind != "polish"],
            "log_z": log_z,
        }

    return fitted


def flow(target, data: Classification, budget: Budget, seed: int) -> dict[str, Any]:
    """NumPyro's inverse autoregressive flow, trained on the ELBO by Adam with a learning rate that falls."""

    def model():
        point = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (target.dim,)))
        numpyro.factor("log_density", target.log_density(point))

    begun = time.process_time()
    guide = AutoIAFNormal(model, init_loc_fn=numpyro.infer.init_to_value(values={"w": jnp.zeros(target.dim)}))
    schedule = optax.cosine_decay_schedule(0.01, budget.all_steps, alpha=0.01)
    svi = SVI(model, guide, optax.adam(schedule), Trace_ELBO(num_particles=budget.num_draws))
    params = svi.run(jax.random.key(seed), budget.all_steps, progress_bar=False).params
    jax.block_until_ready(params)
    seconds = time.process_time() - begun
    transform, base = guide.get_transform(params), guide.get_base_dist()

    @jax.jit
    def draw(key):
        noise = base.sample(key)
        point = transform(noise)
        log_q = base.log_prob(noise) - transform.log_abs_det_jacobian(noise, point)
        return point, target.log_density(point) - log_q

    keys = jax.random.split(jax.random.key(1000 + seed), budget.elbo_draws)
    draws, ratios = (np.asarray(x) for x in jax.lax.map(draw, keys, batch_size=200))
    return {
        "elbo": mean_of(ratios),
        **measured(draws, data, budget),
        "components": 1,
        "seconds": seconds,
        "evaluations": budget.all_steps * budget.num_draws,
    }


def nuts(target, data: Classification, budget: Budget) -> dict[str, Any]:
    """Four chains of NumPyro's NUTS, begun near the mode's neighbourhood at zero: the truth of the comparison."""
    begun = time.process_time()
    kernel = NUTS(potential_fn=lambda point: -target.log_density(point))
    settings = {"num_warmup": budget.nuts_warmup, "num_samples": budget.nuts_draws, "num_chains": 4}
    mcmc = MCMC(kernel, **settings, chain_method="vectorized", progress_bar=False)
    starts = 0.01 * jax.random.normal(jax.random.key(1), (4, target.dim))
    mcmc.run(jax.random.key(0), init_params=starts, extra_fields=("num_steps", "diverging"))
    chains = np.asarray(mcmc.get_samples(group_by_chain=True))
    seconds = time.process_time() - begun
    draws = np.random.default_rng(0).permutation(chains.reshape(-1, target.dim))
    return {
        "system": TRUTH,
        "seed": 0,
        **measured(draws, data, budget),
        "smallest_ess": float(np.min(effective_sample_size(chains))),
        "divergences": int(np.sum(mcmc.get_extra_fields()["diverging"])),
        "seconds": seconds,
        "evaluations": int(np.sum(mcmc.get_extra_fields()["num_steps"])),  # those of the warm-up are not counted
    }


# What is measured


def measured(draws: np.ndarray, data: Classification, budget: Budget) -> dict[str, Any]:
    draws = np.asarray(draws, np.float64)
    moments = {"mean": draws.mean(0), "sd": draws.std(0, ddof=1)}
    return moments | logistic.scores(draws[: budget.score_draws], data)


def mean_of(values) -> relbo.Estimate:
    values = np.asarray(values, np.float64)
    return relbo.Estimate(values.mean(), values.std(ddof=1) / np.sqrt(values.size), values.size)

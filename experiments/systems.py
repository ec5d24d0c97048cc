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
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoIAFNormal

import relbo
from experiments import logistic
from experiments.data import Classification, breast_cancer, find, load_classification
from experiments.report import Options, Report, Table
from experiments.runs import Runs, timed_fit

DEFAULT, FLOW, TRUTH = "relbo, default", "normalising flow (IAF)", "NUTS"
COLUMNS = [
    "system", "components of", "ELBO", "KL to the truth", "train log-lik", "test AUROC", "error of means",
    "error of sds", "components", "seconds", "evaluations",
]  # fmt: skip
FAMILIES = {
    "Guo et al. 2016": "full normal",
    "Miller et al. 2016": "low-rank normal",
    "Locatello et al. 2018 (AISTATS), fixed step": "truncated mean-field normal",
    "Locatello et al. 2018 (AISTATS), norm-corrective": "truncated mean-field normal",
    DEFAULT: "full normal",
    FLOW: "3 autoregressive flows",
    TRUTH: "draws",
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every system may spend, and on how many draws it is measured."""

    iterations: int = 10
    first_steps: int = 10_000
    num_steps: int = 1000
    num_draws: int = 4
    elbo_draws: int = 2000
    score_draws: int = 500
    nuts_warmup: int = 500
    nuts_draws: int = 1000

    @property
    def all_steps(self) -> int:
        """Of a boosted system: the first component, and one in every iteration."""
        return self.first_steps + self.iterations * self.num_steps


QUICK = Budget(
    iterations=1, first_steps=50, num_steps=50, elbo_draws=400, score_draws=200, nuts_warmup=100, nuts_draws=100
)


def run(options: Options, runs: Runs) -> Report:
    path = find(options, "chemreact10.npz")
    data = ten_features(options) if path is None else load_classification(path)
    budget, seeds = QUICK if options.quick else Budget(), options.seed_range(3, quick=1)
    key = {"data": data.digest, "budget": dataclasses.asdict(budget)}
    target = logistic.make_target(data)
    truth = runs.once(key | {"system": TRUTH}, lambda: nuts(target, data, budget))
    results = [truth]
    for seed in seeds:
        for name, fitted in systems(budget).items():
            result = runs.once(
                key | {"system": name, "seed": seed},
                lambda name=name, fitted=fitted, seed=seed: (
                    {"system": name, "seed": seed} | fitted(target, data, budget, seed)
                ),
            )
            print(f"  {name}, seed {seed}: ELBO {result['elbo']['value']:.2f}, {result['seconds']:.0f} s", flush=True)
            results.append(result)
    log_z = next(result["log_z"] for result in results if result["system"] == DEFAULT)
    tables = [table(data, results, truth, log_z)]
    settings = {"data": data.name, "rows": len(data.y_train), "seeds": list(seeds), **dataclasses.asdict(budget)}
    remarks = REMARKS if path is not None else ["scikit-learn's data: chemreact10.npz was not at hand.", *REMARKS[:1]]
    return Report(
        f"The compared systems on {data.name}", settings, tables, results, picture(results, truth, log_z), remarks
    )


def ten_features(options: Options) -> Classification:
    """The breast-cancer data, with its first ten features: as many as chemreact10 has."""
    whole = breast_cancer(options)
    return dataclasses.replace(whole, x_train=whole.x_train[:, :10], x_test=whole.x_test[:, :10])


# The systems


def systems(budget: Budget) -> dict[str, Callable[..., dict[str, Any]]]:
    """Every row of the table but the truth: what fits it, given target, data, budget and seed."""
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

    begun = time.perf_counter()
    guide = AutoIAFNormal(model, init_loc_fn=numpyro.infer.init_to_value(values={"w": jnp.zeros(target.dim)}))
    schedule = optax.cosine_decay_schedule(0.01, budget.all_steps, alpha=0.01)
    svi = SVI(model, guide, optax.adam(schedule), Trace_ELBO(num_particles=budget.num_draws))
    params = svi.run(jax.random.key(seed), budget.all_steps, progress_bar=False).params
    jax.block_until_ready(params)
    seconds = time.perf_counter() - begun
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
    begun = time.perf_counter()
    kernel = NUTS(potential_fn=lambda point: -target.log_density(point))
    settings = {"num_warmup": budget.nuts_warmup, "num_samples": budget.nuts_draws, "num_chains": 4}
    mcmc = MCMC(kernel, **settings, chain_method="vectorized", progress_bar=False)
    starts = 0.01 * jax.random.normal(jax.random.key(1), (4, target.dim))
    mcmc.run(jax.random.key(0), init_params=starts, extra_fields=("num_steps", "diverging"))
    chains = np.asarray(mcmc.get_samples(group_by_chain=True))
    seconds = time.perf_counter() - begun
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


def errors(result: dict[str, Any], truth: dict[str, Any]) -> tuple[float, float]:
    """The largest error of a posterior mean and of a standard deviation, in standard deviations of the truth."""
    sd = np.asarray(truth["sd"])
    means, sds = (np.abs(np.asarray(result[name]) - np.asarray(truth[name])) / sd for name in ("mean", "sd"))
    return float(means.max()), float(sds.max())


def table(data: Classification, results, truth, log_z) -> Table:
    """A row for every system: means over the seeds, with the spread of seeds beside the measurement's own error."""
    names = list(dict.fromkeys(result["system"] for result in results if result["system"] != TRUTH))
    rows = [row(name, [result for result in results if result["system"] == name], truth, log_z) for name in names]
    own_error = 1 / np.sqrt(truth["smallest_ess"])
    last = [
        TRUTH, FAMILIES[TRUTH], f"log Z {both(log_z)}", "-", digits(truth["train_ll"], 5),
        digits(truth["test_auroc"], 4), f"{own_error:.3f} (chance)", f"{own_error:.3f} (chance)", "-",
        f"{truth['seconds']:.0f}", f"{truth['evaluations']:,}",
    ]  # fmt: skip
    size = f"{len(data.y_train):,} rows x {data.x_train.shape[1]}"
    return Table(f"{data.name}, {size}; means over the seeds (lowest to highest)", COLUMNS, [*rows, last])


def row(name: str, mine: list[dict[str, Any]], truth, log_z) -> list[str]:
    elbos = [result["elbo"]["value"] for result in mine]
    std_err = np.sqrt(np.mean([result["elbo"]["std_err"] ** 2 for result in mine]) / len(mine))
    elbo = relbo.Estimate(float(np.mean(elbos)), float(std_err), 0)
    kl = relbo.Estimate(log_z["value"] - elbo.value, float(np.hypot(std_err, log_z["std_err"])), 0)
    spread = f" ({log_z['value'] - max(elbos):.3g} to {log_z['value'] - min(elbos):.3g})" if len(mine) > 1 else ""
    mean_errors, sd_errors = zip(*(errors(result, truth) for result in mine), strict=True)
    return [
        name, FAMILIES.get(name, "mean-field normal"), str(elbo), f"{kl}{spread}",
        digits(np.mean([result["train_ll"] for result in mine]), 5),
        digits(np.mean([result["test_auroc"] for result in mine]), 4),
        f"{np.mean(mean_errors):.3g}", f"{np.mean(sd_errors):.3g}",
        span([result["components"] for result in mine]), span([round(result["seconds"]) for result in mine]),
        f"{np.mean([result['evaluations'] for result in mine]):,.0f}",
    ]  # fmt: skip


def both(estimate: dict[str, float]) -> str:
    return str(relbo.Estimate(estimate["value"], estimate["std_err"], 0))


def digits(value: float, num: int) -> str:
    return f"{value:.{num}f}"


def span(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


# The picture

LEAST = 1e-3
"""Nats below which a divergence is not told from zero: log p is in single precision."""


def picture(results, truth, log_z) -> Figure:
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = list(dict.fromkeys(result["system"] for result in results if result["system"] != TRUTH))
    for index, name in enumerate(names):
        colour = "black" if name == DEFAULT else f"C{index % 10}"
        mine = [result for result in results if result["system"] == name]
        style = {"color": colour, "marker": "os^"[index // 10], "markersize": 3.5, "linewidth": 1.2}
        for number, result in enumerate(mine):
            trace = result.get("trace") or [result["elbo"]["value"]]
            values = np.maximum(log_z["value"] - np.asarray(trace, float), LEAST)
            if len(values) == 1:
                left.axhline(values[0], color=colour, linewidth=0.8, linestyle=":" if index % 2 else "--")
            left.plot(range(len(values)), values, **style, alpha=0.8, label=name if number == 0 else None)
        found = np.array([errors(result, truth) for result in mine])
        right.plot(found[:, 0], np.full(len(mine), -index - 0.15), "o", color=colour)
        right.plot(found[:, 1], np.full(len(mine), -index + 0.15), "^", color=colour, markerfacecolor="none")
    left.set(yscale="log", xlabel="iteration", ylabel="KL to the posterior, nats", title="Divergence, every seed")
    figure.legend(*left.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=4)
    right.axvline(1 / np.sqrt(truth["smallest_ess"]), color="grey", linewidth=0.8)
    right.set(
        xscale="log",
        xlabel="posterior standard deviations (grey: the error of NUTS itself)",
        title="Largest error of a mean (o) and of an sd (^)",
    )
    right.set_xticks([0.02, 0.05, 0.1, 0.2], ["0.02", "0.05", "0.1", "0.2"])
    right.xaxis.set_minor_formatter(NullFormatter())
    right.set_yticks([-index for index in range(len(names))], names, fontsize=8)
    return figure


REMARKS = [
    "Held equal for all earlier systems: no whitening, no refinement, the number of iterations, and the number of Adam "
    "steps and draws for the first component and for each that follows, at the learning rate of the presets. BBVI and "
    "the flow get the steps of all components in one go. Guo et al. take no Adam steps: their first normal comes from "
    "our natural gradients. Seconds include compilation, on two cores shared with other work. Evaluations of NUTS are "
    "those after warm-up. Errors of means and standard deviations are from 2,000 draws, so that 0.05 is chance.",
    "On chemreact10 this posterior is a correlated normal of standard deviations near 0.013. The default finds it with "
    "one component and stops there, because the duality gap is zero: boosting has nothing to add, and says so.",
    "Once the first component has converged, the linear objective of the paper and of Locatello et al. has its optimum "
    "far away: line search, full correction, the adaptive and the norm-corrective step give such components no weight, "
    "and their rows equal their first component. The fixed step must give them weight; its best iterate is the first.",
    "The squared L2 norm of a normal in ten dimensions goes with the inverse tenth power of its scale: from scale 1, "
    "where components begin, to 0.013, where they belong, it grows by a factor of 10^19. No smoothness constant fits "
    "both; here it is found anew in every iteration by backtracking, the most that the rule can be given.",
    "log p is summed in single precision, whose spacing near -16,632 is 0.002: divergences below that are rounding, "
    "and may come out negative. log Z, in the row of NUTS, is by importance weights of the default's draws "
    "(relbo.diagnose), so the default's divergence is not checked independently; its means and deviations are.",
]

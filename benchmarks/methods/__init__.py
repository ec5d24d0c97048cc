"""The methods of the comparison, and all their settings: the same for every model."""

from methods.base import Method

RATES = (1e-2, 1e-3)
"""Of every stochastic method that needs a learning rate: both are run and paid for, the better ELBO is kept."""

_STEPS = {"num_steps": 10_000, "num_particles": 16}
_ADAM = {"optimiser": "Adam, cosine decay to 0", "learning_rates": RATES, **_STEPS}
_START = {"start": "origin"}
_LONG = {"num_chains": 4, "num_warmup": 1000, "num_samples": 1000}
_NUMPYRO = {"chain_method": "vectorized"}
"""Cheaper on one core than one chain after the other, in the median over models."""

_ROWS = (
    Method("relbo", "relbo", "boosting", {"settings": "defaults", "start": "origin"}, num_seeds=3),
    Method("auto_normal", "NumPyro AutoNormal", "guides", {"guide": "AutoNormal", **_ADAM, **_START}),
    Method(
        "auto_mvn",
        "NumPyro AutoMultivariateNormal",
        "guides",
        {"guide": "AutoMultivariateNormal", **_ADAM, **_START},
        num_seeds=3,
    ),
    Method(
        "auto_low_rank",
        "NumPyro AutoLowRankMultivariateNormal",
        "guides",
        {"guide": "AutoLowRankMultivariateNormal", **_ADAM, **_START},
    ),
    Method("auto_iaf", "NumPyro AutoIAFNormal", "guides", {"guide": "AutoIAFNormal", **_ADAM}),
    Method(
        "pathfinder",
        "BlackJAX multi-path Pathfinder",
        "pathfinder",
        {"num_paths": 16, "start": "uniform on (-2, 2)", "num_elbo_draws": 50, "max_iterations": 100},
    ),
    Method(
        "pymc_advi",
        "PyMC ADVI",
        "advi",
        {"method": "advi", "optimiser": "PyMC's adagrad_window", "learning_rates": RATES, **_STEPS},
        needs_pymc=True,
    ),
    Method(
        "pymc_full_rank",
        "PyMC full-rank ADVI",
        "advi",
        {"method": "fullrank_advi", "optimiser": "PyMC's adagrad_window", "learning_rates": RATES, **_STEPS},
        needs_pymc=True,
    ),
    Method(
        "flow",
        "flowjax spline coupling flow",
        "flow",
        {**_ADAM, "num_layers": 8, "num_knots": 8, "interval": 4.0, "width": 50, "max_gradient_norm": 10.0},
    ),
    Method("nuts", "NumPyro NUTS 4 x (1000 + 1000)", "nuts", {**_LONG, **_NUMPYRO}, variational=False, num_seeds=3),
    Method(
        "nuts_short",
        "NumPyro NUTS 1 x (500 + 500)",
        "nuts",
        {"num_chains": 1, "num_warmup": 500, "num_samples": 500, **_NUMPYRO},
        variational=False,
        num_seeds=3,
    ),
    Method("nutpie", "nutpie 4 x (1000 + 1000)", "nutpie_nuts", {**_LONG}, variational=False, needs_pymc=True),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}

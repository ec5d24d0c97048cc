"""A tour of relbo in about five minutes: the paper's two-mode example and a logistic regression, with a figure.

Plain variational inference fits one component; boosting adds more until they no longer pay. Both are measured against
targets whose log Z is known, so that KL(q || p) = log Z - ELBO is a number and not a hope. Run by `make demo`.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer

import relbo

plt.switch_backend("Agg")

FIGURE = Path(__file__).parent / "two_modes.png"
NUM_DRAWS = 20_000

# The paper's two modes, normalised: log Z = 0.
WEIGHTS, MEANS, SCALES = np.array([0.4, 0.6]), np.array([-1.0, 1.0]), np.array([0.5, 0.5])

# log Z of the breast-cancer posterior with all rows, known to +- 0.01 from long runs of other methods.
BREAST_CANCER_LOG_Z = -77.57
PRIOR_SCALE = 10.0
HELD_OUT_SHARE = 0.2
SPLIT_SEED = 0
SPLIT_MAX_COMPONENTS = 8

# Plain VI gets what it needs to converge, so that boosting is not compared with a fit stopped too early. No whitening
# for mean field: in coordinates whitened by a full covariance a diagonal normal would be a full one. One start, because
# there is no second component to look for, and `diagnose` runs the oracle again for the gap.
ONE_START = {"num_restarts": 1, "starts": relbo.Starts(num_residual=0, num_modes=0, num_initial=1)}
PLAIN = {
    "plain VI, mean field": {
        "family": "mean_field_normal",
        "precondition": "none",
        "oracle": relbo.GradientOracle(num_steps=20_000, num_draws=16, **ONE_START),
        "max_components": 1,
    },
    "plain VI, full normal": {
        "oracle": relbo.NaturalOracle(num_steps=2000, num_draws=256, **ONE_START),
        "max_components": 1,
    },
}


@dataclass(frozen=True)
class Fit:
    """A fitted posterior and what the tables say of it."""

    name: str
    posterior: relbo.Posterior
    diagnosis: relbo.Diagnosis
    log_z: float | None
    seconds: float
    held_out_rows: np.ndarray | None = None
    """The log predictive density of each held-out row."""

    @property
    def kl(self) -> relbo.Estimate:
        elbo = self.diagnosis.elbo
        return relbo.Estimate(self.log_z - elbo.value, elbo.std_err, elbo.num_draws)


COLUMNS: dict[str, Callable[[Fit], str]] = {
    "ELBO": lambda fit: str(fit.diagnosis.elbo),
    "KL to target": lambda fit: str(fit.kl),
    "k-hat": lambda fit: f"{fit.diagnosis.k_hat:.2f}",
    "held-out log-lik": lambda fit: str(row_estimate(fit.held_out_rows)),
    "components": lambda fit: str(fit.posterior.num_components),
    "seconds": lambda fit: f"{fit.seconds:.1f}",
}


ALL_ROWS_NOTE = f"""\
log Z = {BREAST_CANCER_LOG_Z} +- 0.01. Both plain fits run until they are near the best that one component can do,
which is a KL of about 71.0 for a diagonal normal and 1.34 for a full one. log Z is known for all rows
only, hence a second set of fits, with {HELD_OUT_SHARE:.0%} of the rows held out and boosting stopped at
{SPLIT_MAX_COMPONENTS} components to save time.
"""
HELD_OUT_NOTE = """\
Held-out log-lik: log predictive density of a held-out row, mean +- standard error over rows. All
methods meet the same rows, so compare them row by row, in nats a row:"""
LAST_NOTE = """
Seconds include compilation. k-hat below 0.7: importance weights can correct the draws and estimate
log Z; above it, the tails of the fit are too light for that."""


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    begun = time.perf_counter()
    show_two_modes(console)
    show_breast_cancer(console)
    say(f"{LAST_NOTE} Done in {time.perf_counter() - begun:.0f} s.")


def show_two_modes(console: Console) -> None:
    say("The paper's two modes, 0.4 N(-1, 0.5^2) + 0.6 N(1, 0.5^2) in one dimension.")
    fits = fit_two_modes()
    console.print(table("Two modes", fits, "ELBO", "KL to target", "k-hat", "components", "seconds"))
    draw_two_modes(fits, FIGURE)
    say(f"Figure written to {FIGURE}\n")


def show_breast_cancer(console: Console) -> None:
    say("Bayesian logistic regression on scikit-learn's breast-cancer data, 31 weights.")
    full, split = fit_breast_cancer()
    console.print(table("All rows", full, "ELBO", "KL to target", "k-hat", "components", "seconds"))
    say(ALL_ROWS_NOTE)
    title = f"Training rows only, {HELD_OUT_SHARE:.0%} held out"
    console.print(table(title, split, "ELBO", "k-hat", "held-out log-lik", "components", "seconds"))
    say(HELD_OUT_NOTE)
    *plain, boosted = split
    for fit in plain:
        say(f"  {boosted.name} less {fit.name}: {row_estimate(boosted.held_out_rows - fit.held_out_rows)}")


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def table(title: str, fits: list[Fit], *columns: str) -> Table:
    """One row for each fit."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    made.add_column("method")
    for column in columns:
        made.add_column(column, justify="right")
    for fit in fits:
        made.add_row(fit.name, *(COLUMNS[column](fit) for column in columns))
    return made


def run_fit(name: str, target, log_z: float | None = None, **settings) -> Fit:
    """Fit, time it, and measure it on fresh draws."""
    say(f"  {name} ...", end=" ")
    begun = time.perf_counter()
    posterior = relbo.fit(target, seed=0, progress_bar=False, **settings)
    seconds = time.perf_counter() - begun
    diagnosis = relbo.diagnose(posterior, num_draws=NUM_DRAWS, seed=1)
    say(f"{seconds:.1f} s, ELBO {diagnosis.elbo}, stopped because {posterior.stop_reason}")
    return Fit(name, posterior, diagnosis, log_z, seconds)


# The two modes


def two_modes_log_density(z, weights, means, scales):
    """The log density of a mixture of normals at one number."""
    return logsumexp(norm.logpdf(z, means, scales), b=weights)


def fit_two_modes() -> list[Fit]:
    """Plain VI, the paper's three variants, and relbo's default."""
    target = relbo.from_log_density(two_modes_log_density, jnp.zeros(()), args=(WEIGHTS, MEANS, SCALES))
    methods = {
        "plain VI (BBVI)": relbo.paper("fixed") | {"max_components": 1},
        "paper, fixed step": relbo.paper("fixed"),
        "paper, line search": relbo.paper("line_search"),
        "paper, fully corrective": relbo.paper("fully_corrective"),
        "relbo's default": {},
    }
    return [run_fit(name, target, 0.0, **settings) for name, settings in methods.items()]


# The logistic regression


def logistic_log_density(weights, features, signs):
    """Log likelihood of labels -1 and 1, and a N(0, 10^2) prior on every weight."""
    return row_log_likelihood(weights, features, signs).sum() + norm.logpdf(weights, 0.0, PRIOR_SCALE).sum()


def row_log_likelihood(weights, features, signs):
    return log_sigmoid(signs * (features @ weights))


def fit_breast_cancer() -> tuple[list[Fit], list[Fit]]:
    """One diagonal normal, one full normal, and boosted full normals: on all rows, and on the training rows."""
    features, signs = breast_cancer_rows()
    is_test = np.random.default_rng(SPLIT_SEED).permutation(len(signs)) < HELD_OUT_SHARE * len(signs)
    train_features, test_features = features[~is_test], features[is_test]
    train_scale = column_scale(train_features)
    say(" All rows:")
    target = logistic_target(features / column_scale(features), signs)
    full = [
        run_fit(name, target, BREAST_CANCER_LOG_Z, **settings)
        for name, settings in {**PLAIN, "boosted (default)": {}}.items()
    ]
    say(" Training rows:")
    train = logistic_target(train_features / train_scale, signs[~is_test])
    test = (test_features / train_scale, signs[is_test])
    boosted = {f"boosted, at most {SPLIT_MAX_COMPONENTS}": {"max_components": SPLIT_MAX_COMPONENTS}}
    split = [held_out(run_fit(name, train, **settings), *test) for name, settings in {**PLAIN, **boosted}.items()]
    return full, split


def breast_cancer_rows() -> tuple[np.ndarray, np.ndarray]:
    """A column of ones and the thirty features, unscaled; labels -1 and 1."""
    data = load_breast_cancer()
    return np.column_stack([np.ones(len(data.target)), data.data]), np.where(data.target == 1, 1.0, -1.0)


def column_scale(features: np.ndarray) -> np.ndarray:
    """The standard deviation of each column, one for the intercept."""
    scale = features.std(axis=0)
    return np.where(scale > 0, scale, 1.0)


def logistic_target(features: np.ndarray, signs: np.ndarray):
    return relbo.from_log_density(logistic_log_density, jnp.zeros(features.shape[1]), args=(features, signs))


def held_out(fit: Fit, features: np.ndarray, signs: np.ndarray) -> Fit:
    """The fit with log E_q[likelihood] of each held-out row."""
    draws = jnp.asarray(fit.posterior.sample(NUM_DRAWS, seed=2))
    by_draw = jax.vmap(row_log_likelihood, (0, None, None))(draws, jnp.asarray(features), jnp.asarray(signs))
    rows = logsumexp(by_draw, axis=0) - np.log(NUM_DRAWS)
    return replace(fit, held_out_rows=np.asarray(rows, np.float64))


def row_estimate(rows: np.ndarray) -> relbo.Estimate:
    """The mean over rows, with the standard error over rows."""
    return relbo.Estimate(float(rows.mean()), float(rows.std(ddof=1) / np.sqrt(len(rows))), len(rows))


# The figure

COLORS = ["#D55E00", "#E69F00", "#009E73", "#CC79A7", "#0072B2"]  # Okabe and Ito: colour-blind readers tell them apart
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.frameon": False,
}


def draw_two_modes(fits: list[Fit], path: Path) -> None:
    """Small multiples after the paper's Figure 1: the target behind each approximation, and the KLs side by side."""
    grid = np.linspace(-3.2, 3.2, 801)
    target = np.exp(jax.vmap(lambda z: two_modes_log_density(z, WEIGHTS, MEANS, SCALES))(grid))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 3, figsize=(10, 5.8), layout="constrained")
        for panel, fit, color in zip(panels.flat, fits, COLORS, strict=False):
            _draw_density(panel, grid, target, fit, color)
        _draw_kls(panels.flat[-1], fits)
        title = "Plain VI blurs two modes; boosted VI resolves them\n"
        figure.suptitle(title + "target: 0.4 N(\N{MINUS SIGN}1, 0.5²) + 0.6 N(1, 0.5²)", x=0.01, ha="left")
        figure.savefig(path, dpi=200)
        plt.close(figure)


def _draw_density(panel, grid: np.ndarray, target: np.ndarray, fit: Fit, color: str) -> None:
    density = np.exp(fit.posterior.log_prob(grid[:, None]))
    panel.fill_between(grid, target, facecolor="0.87", edgecolor="0.5", linewidth=1, label="target p")
    panel.plot(grid, density, color=color, linewidth=2.2, label="fit q")
    number = fit.posterior.num_components
    panel.set_title(f"{fit.name}: {number} component{'s' if number > 1 else ''}")
    panel.set(xlim=(grid[0], grid[-1]), ylim=(0, 0.62), xlabel="z", ylabel="density")
    panel.legend(loc="upper left", ncols=2, borderaxespad=0)


def _draw_kls(panel, fits: list[Fit]) -> None:
    """Dots with two standard errors on a log scale; a KL that cannot be told from zero is an arrow at its bound."""
    left, right = 1e-5, 2.0
    for row, (fit, color) in enumerate(zip(fits, COLORS, strict=True)):
        value, bound = fit.kl.value, max(fit.kl.value + 2 * fit.kl.std_err, 2 * left)
        if value > 2 * fit.kl.std_err:
            panel.errorbar(value, row, xerr=2 * fit.kl.std_err, fmt="o", markersize=7, color=color, capsize=3)
            label = f"{fit.name}: {value:.3f}"
        else:
            panel.annotate("", (left, row), (bound, row), arrowprops={"arrowstyle": "->", "color": color, "lw": 2})
            panel.plot(bound, row, "|", color=color, markersize=10, markeredgewidth=2)
            label = f"{fit.name}: below {bound:.5f}"
        panel.text(left * 1.15, row - 0.38, label, va="center")
    panel.set(xscale="log", xlim=(left, right), ylim=(len(fits) - 0.5, -0.8), yticks=[])
    panel.set(title="KL(q || p): smaller is better", xlabel="nats, \N{PLUS-MINUS SIGN} two standard errors")
    panel.grid(axis="x", color="0.9")
    panel.set_axisbelow(True)


if __name__ == "__main__":
    main()

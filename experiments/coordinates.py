"""Learned coordinates: Neal's funnel as the model has it, and as boosting sees it behind a flow. Not in the paper."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from matplotlib.figure import Figure

import relbo
from experiments.report import Options, Report, Table
from experiments.runs import Piece, Runs, timed_fit

_DIM, _QUICK_DIM = 10, 3
_QUICK_COMPONENTS = 3
_WIDTH = 3.0  # of v
_NUM_SHOWN, _NUM_MEASURED = 2000, 20_000
_KINDS = {"affine": "an affine map", "flow": "a flow behind it"}
REMARKS = [
    "This is not in the paper. All fits have relbo's default settings, but for the coordinates.",
    "log Z is known to be 0, so KL(q || p) is minus the ELBO, on draws that no fit has seen.",
    "The draws in the figure are exact ones of the funnel, taken to the coordinates in which each fit was boosted: "
    "where they are those of a standard normal (circles: one, two and three standard deviations), one component is "
    "enough. What lies beyond the frames is not drawn.",
]


def run(options: Options, runs: Runs) -> Report:
    dim = _QUICK_DIM if options.quick else _DIM
    others = {"max_components": _QUICK_COMPONENTS} if options.quick else {}
    target = relbo.from_log_density(funnel, jnp.zeros(dim))
    exact = exact_draws(dim, _NUM_SHOWN)
    pieces = runs.all(
        [
            Piece({"kind": kind, "seed": seed, "dim": dim, **others}, _piece, (target, kind, seed, exact, others))
            for kind in _KINDS
            for seed in options.seed_range(3)
        ]
    )
    rows = [
        [_KINDS[p["kind"]], p["seed"], relbo.Estimate(p["kl"], p["std_err"], _NUM_MEASURED), p["components"],
         f"{p['evaluations']:,}"]
        for p in pieces
    ]  # fmt: skip
    table = Table(f"Funnel in {dim} dimensions", ["coordinates", "seed", "KL, nats", "components", "evaluations"], rows)
    first = {p["kind"]: p for p in reversed(pieces)}
    results = [{name: value for name, value in piece.items() if name != "draws"} for piece in pieces]
    settings = {"dim": dim, "precondition": list(_KINDS), "others": others or "defaults"}
    return Report("Learned coordinates", settings, [table], results, draw(exact, first), REMARKS)


def funnel(z):
    """v ~ N(0, 3^2), and all others given v ~ N(0, e^v)."""
    return norm.logpdf(z[0], 0.0, _WIDTH) + jnp.sum(norm.logpdf(z[1:], 0.0, jnp.exp(z[0] / 2)))


def exact_draws(dim: int, num: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    v = _WIDTH * rng.standard_normal((num, 1))
    return np.concatenate([v, np.exp(v / 2) * rng.standard_normal((num, dim - 1))], axis=1)


def _piece(target, kind: str, seed: int, exact: np.ndarray, others: dict[str, Any]) -> dict[str, Any]:
    posterior, seconds = timed_fit(target, seed=seed, precondition=kind, **others)
    draws = posterior.sample_unconstrained(_NUM_MEASURED, seed=seed + 1000)
    ratios = np.asarray(posterior.log_prob(draws), np.float64) - posterior.log_target(draws)
    whitened = jax.jit(jax.vmap(posterior.whitened.whiten))(jnp.asarray(exact, posterior.whitened.dtype))
    return {
        "kind": kind,
        "seed": seed,
        "kl": float(ratios.mean()),
        "std_err": float(ratios.std() / np.sqrt(len(ratios))),
        "components": posterior.num_components,
        "evaluations": posterior.num_evaluations,
        "seconds": seconds,
        "draws": np.round(np.asarray(whitened)[:, :2], 4).tolist(),
    }


def draw(exact: np.ndarray, pieces: dict[str, dict[str, Any]]) -> Figure:
    """The first two coordinates: the model's, those behind the affine map, and the learned ones."""
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    panels = figure.subplots(1, 3)
    _scatter(panels[0], exact[:, :2], ("$v$", "$x_1$"), (10.0, 40.0))
    titles = ["the model's coordinates\nexact draws"]
    shown = {"affine": ("behind the affine map", 20.0), "flow": ("behind a learned flow", 6.5)}
    for axes, (kind, (where, wide)) in zip(panels[1:], shown.items(), strict=True):
        piece = pieces[kind]
        _scatter(axes, np.asarray(piece["draws"]), ("$u_1$", "$u_2$"), (wide, wide))
        _circles(axes)
        num = piece["components"]
        titles.append(f"{where}\nKL {piece['kl']:.3f} nats, {num} component{'s' * (num > 1)}")
    for axes, letter, title in zip(panels, "abc", titles, strict=True):
        axes.set_title(f"$\\bf{{{letter}}}$  {title}", loc="left", fontsize=10)
        axes.set_box_aspect(1)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _scatter(axes, points: np.ndarray, labels: tuple[str, str], limits: tuple[float, float]) -> None:
    axes.scatter(points[:, 0], points[:, 1], s=3, color="#0072B2", alpha=0.5, linewidths=0)
    wide, high = limits
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(-wide, wide), ylim=(-high, high))


def _circles(axes) -> None:
    """One, two and three standard deviations of a standard normal."""
    angle = np.linspace(0.0, 2 * np.pi, 200)
    for radius in (1.0, 2.0, 3.0):
        axes.plot(radius * np.cos(angle), radius * np.sin(angle), color="#D55E00", linewidth=0.9)

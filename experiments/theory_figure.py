"""The figure of the theory's experiment: eight panels."""

import numpy as np
from matplotlib.figure import Figure

from experiments import convergence, failures
from experiments.palette import COLOURS, tidy

_CURVES = {
    "fixed": ("fixed step", "-"),
    "fixed_half": ("fixed step, $\\delta = 1/2$", ":"),
    "line_search": ("line search", "-"),
    "fully_corrective": ("fully corrective", "-"),
    "adaptive": ("adaptive", "-"),
    "away": ("away", "--"),
    "pairwise": ("pairwise", "--"),
}
_FLOOR = convergence.FLOOR
_EDGES = (1e-6, 1e6)


def draw(curves: dict, facts: dict, fits: dict, bends: list[dict]) -> Figure:
    figure = Figure(figsize=(14.5, 7.2), layout="constrained")
    grid = figure.subplots(2, 4)
    for axes, name in zip(grid[0], ("1-d", "2-d"), strict=False):
        _draw_curves(axes, name, curves, facts)
    _draw_gaps(grid[0, 2], curves, fits)
    _draw_bends(grid[0, 3], bends)
    _draw_profiles(grid[1, 0])
    _draw_fits(grid[1, 1], "symmetric modes", fits)
    _draw_fits(grid[1, 2], "one component", fits)
    _draw_wide(grid[1, 3], curves)
    titles = [
        "primal error, 1-d", "primal error, 2-d", "duality gap and primal error", "Theorem 2: curvature and step",
        "symmetric modes: second component", "symmetric modes", "one component is enough",
        "variances of ratio 4: $C_f$ infinite",
    ]  # fmt: skip
    for axes, letter, title in zip(grid.flat, "abcdefgh", titles, strict=True):
        tidy(axes, letter, title)
    return figure


def _draw_bends(axes, bends: list[dict]):
    """2 KL / gamma^2 over gamma, with its limit where there is one; dotted what the proof takes for the limit."""
    shades = [COLOURS[name] for name in ("fully_corrective", "line_search", "fixed", "pairwise", "default")]
    for bend, colour in zip(bends, shades, strict=True):
        axes.plot(bend["gamma"], bend["value"], color=colour, linewidth=1.8)
        axes.plot([1e-15, 3e-12], [bend["limit_of_the_proof"]] * 2, color=colour, linestyle=":", linewidth=1.4)
        axes.annotate(
            f"r = {bend['ratio']:g}", (bend["gamma"][-3], bend["value"][-3]), xytext=(-5, 3),
            textcoords="offset points", ha="right", fontsize=8, color=colour,
        )  # fmt: skip
    axes.text(
        1e-6, 0.02, "dotted: $\\int (s - q)^2$, the proof's limit", fontsize=7.5, color="0.3", va="center", ha="center"
    )
    axes.set(xscale="log", yscale="log", xlabel="step $\\gamma$ (smaller to the right)", xlim=(1.5, 1e-15))
    axes.set_ylabel("2 KL / $\\gamma^2$ for q = N(0, 1), s = N(0, r)")


def _draw_wide(axes, curves: dict):
    found = {variant: curve for (name, variant), curve in curves.items() if name == "1-d, wide" and variant in COLOURS}
    if not found:
        axes.text(0.5, 0.5, "not in a quick run", transform=axes.transAxes, ha="center", color="0.5")
        return
    for variant, curve in found.items():
        errors = np.maximum(curve["error"], _FLOOR)
        axes.plot(np.arange(len(errors)) + 1, errors, color=COLOURS[variant], linewidth=1.6, label=_CURVES[variant][0])
    axes.legend(frameon=False, fontsize=7.5, loc="lower left")
    steps = np.arange(2, 32)
    axes.plot(steps, 0.3 * (steps / 2.0) ** (-1 / 3), color="0.4", linestyle=":", linewidth=1)
    axes.text(31, 0.16, "the bound: $t^{-1/3}$", fontsize=7.5, ha="right", va="bottom")
    axes.set(xscale="log", yscale="log", xlabel="t + 1", ylabel="KL($q_t$ || p) - f*, nats")


def _draw_curves(axes, name: str, curves: dict, facts: dict):
    if name not in facts:
        axes.text(0.5, 0.5, "not in a quick run", transform=axes.transAxes, ha="center", color="0.5")
        return
    for variant, (label, style) in _CURVES.items():
        curve, colour = curves.get((name, variant)), COLOURS[variant.removesuffix("_half")]
        if curve is None:
            continue
        errors = np.maximum(curve["error"], _FLOOR)
        steps = np.arange(len(errors)) + 1
        axes.plot(steps, errors, color=colour, linestyle=style, linewidth=1.4, label=label)
        if variant in ("fixed", "line_search"):
            axes.plot(steps, curve["own_bound"], color=colour, linestyle=(0, (1, 1)), linewidth=2.6, alpha=0.4)
        if variant == "fixed":
            rule = convergence.variants(1)["fixed"]
            bound = convergence.theorem_bound(rule, errors[0], facts[name]["curvature"], len(errors) - 1)
            axes.plot(steps, bound, color="black", linestyle="--", linewidth=1.2)
    axes.plot([], [], color="black", linestyle="--", linewidth=1.2, label="bound of Theorem 1")
    axes.plot([], [], color="0.5", linestyle=(0, (1, 1)), linewidth=2.6, alpha=0.6, label="bound by the curvature met")
    axes.set(xscale="log", yscale="log", xlabel="t + 1", ylabel="KL($q_t$ || p) - f*, nats")
    axes.set(ylim=(_FLOOR, 5 * facts[name]["curvature"]))
    if name == "1-d":
        handles, labels = axes.get_legend_handles_labels()
        where = {"loc": "outside upper left", "ncols": 5, "title": "a, b:", "alignment": "left"}
        axes.figure.legend(handles, labels, frameon=False, fontsize=8, title_fontsize=8, handlelength=2.6, **where)


def _draw_gaps(axes, curves: dict, fits: dict):
    for (name, _), curve in curves.items():
        if name == "1-d, wide":
            continue
        errors, gaps = np.array(curve["error"]), np.array(curve["gap"])
        above = errors > convergence.FLOOR
        axes.plot(errors[above], gaps[above], ".", color="0.35", markersize=3, alpha=0.6)
    for (_, system, _), fit in fits.items():
        kl, gap, _ = failures.gap_points(fit).T
        axes.plot(
            kl, np.clip(gap, 1.3 * _EDGES[0], _EDGES[1] / 1.3), "+", color=COLOURS[system], markersize=5, alpha=0.7
        )
    axes.plot([1e-7, 1e3], [1e-7, 1e3], color="black", linewidth=1)
    axes.plot([], [], ".", color="0.35", label="exact, over the hull (a, b)")
    for system, label in failures.SYSTEMS.items():
        axes.plot([], [], "+", color=COLOURS[system], label=f"recorded: {label}")
    axes.set(xscale="log", yscale="log", xlim=(1e-6, 1e3), ylim=_EDGES)
    axes.set(xlabel="primal error, nats", ylabel="duality gap, nats (edges: beyond)")
    axes.legend(frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(0, 0.96))


def _draw_profiles(axes):
    places = np.linspace(-2.2, 2.2, 89)
    found = failures.profiles(places)
    density = 0.5 * (np.exp(-2 * (places - 1) ** 2) + np.exp(-2 * (places + 1) ** 2)) / np.sqrt(np.pi / 2)
    axes.fill_between(places, -1 + 0.8 * density, -1, color="0.88", linewidth=0, label="target (not to scale)")
    axes.axhline(0, color="0.6", linewidth=0.7)
    axes.plot(places, found["RELBO"], color=COLOURS["blue"], label="RELBO, $\\lambda = 1/\\sqrt{2}$")
    axes.plot(places, found["finite step"], color=COLOURS["default"], label="finite step, $\\gamma = 1/3$")
    axes.set(xlabel="location of the second component", ylabel="objective relative to the middle, nats", ylim=(-1, 1))
    axes.legend(frameon=False, fontsize=7.5, loc="upper right")


def _draw_fits(axes, target: str, fits: dict):
    for system in failures.SYSTEMS:
        colour = COLOURS[system]
        found = [fit["kl"] for key, fit in fits.items() if key[:2] == (target, system)]
        for kl in found:
            axes.plot(np.maximum(kl, _FLOOR), color=colour, linewidth=0.6, alpha=0.4)
        if found:
            shortest = min(len(kl) for kl in found)
            middle = np.median(np.maximum([kl[:shortest] for kl in found], _FLOOR), axis=0)
            style = {"default": "o-", "fully_corrective": "--"}.get(system, "-")
            axes.plot(middle, style, color=colour, linewidth=2, markersize=3, label=failures.SYSTEMS[system])
    axes.set(xlabel="iteration", ylabel="KL(q || p), nats", yscale="log", ylim=(0.6 * _FLOOR, None))
    if target == "symmetric modes":
        axes.legend(frameon=False, fontsize=7.5, loc="lower right")

"""Two masts measure how far away a phone is: a posterior of two crescents, its exact answer, and the README's picture.

    python demo/two_masts.py docs/_static/two_masts.png

draws the picture anew. Needs the extra demo.
"""

import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo

MASTS = np.array([[-0.6, 0.0], [0.6, 0.0]])
DISTANCES = np.array([2.3, 2.1])
NOISE = 0.3
AXIS = np.linspace(-5.0, 5.0, 401)
CELL = float(AXIS[1] - AXIS[0]) ** 2
SHOWN = (-3.6, 3.6)

DARK, TARGET_COLORS, FIT_COLORS = "#08306b", "Greys", "Blues"


def phone(masts, distances):
    """Where is it? The prior leans a little to the north."""
    place = numpyro.sample("place", dist.Normal(jnp.array([0.0, 0.3]), 1.5).to_event(1))
    away = jnp.sqrt(jnp.sum((place - masts) ** 2, axis=-1))
    numpyro.sample("distance", dist.Normal(away, NOISE), obs=distances)


def make_target():
    return relbo.from_numpyro(phone, MASTS, DISTANCES)


def grid() -> np.ndarray:
    """Points (num, 2) that cover all of the mass."""
    return np.stack(np.meshgrid(AXIS, AXIS), axis=-1).reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Truth:
    """What a grid knows in two dimensions: the density there, log Z, and P(north of the line between the masts)."""

    density: np.ndarray
    log_z: float
    north: float


def truth(target) -> Truth:
    points = grid()
    log_p = np.asarray(jax.jit(jax.vmap(target.log_density))(jnp.asarray(points)), np.float64)
    peak = log_p.max()
    log_z = float(peak + np.log(np.sum(np.exp(log_p - peak)) * CELL))
    density = np.exp(log_p - log_z)
    return Truth(density, log_z, float(density[points[:, 1] > 0].sum() * CELL))


def divergence(exact: Truth, posterior: relbo.Posterior) -> float:
    """KL(q || p) in nats, by the grid: no Monte Carlo error."""
    log_q = np.asarray(posterior.log_prob(grid()), np.float64)
    with np.errstate(divide="ignore"):
        log_p = np.log(exact.density)
    seen = np.exp(log_q) > 1e-12
    return float(np.sum(np.exp(log_q[seen]) * (log_q[seen] - log_p[seen])) * CELL)


def draw(exact: Truth, fits: dict[str, relbo.Posterior], path: pathlib.Path) -> None:
    """The posterior, and beside it every fit with its distance from it."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"font.size": 10, "axes.titlesize": 11}):
        figure, panels = plt.subplots(
            1, 1 + len(fits), figsize=(3.4 * (1 + len(fits)), 3.7), layout="constrained", sharey=True
        )
        _draw_density(panels[0], exact.density, TARGET_COLORS, "the posterior", "by a grid: exact")
        for panel, (name, posterior) in zip(panels[1:], fits.items(), strict=True):
            density = np.exp(np.asarray(posterior.log_prob(grid())))
            note = f"KL to the posterior: {divergence(exact, posterior):.4f} nats"
            _draw_density(panel, density, FIT_COLORS, name, note)
        panels[0].set_ylabel("north")
        panels[0].annotate("mast", MASTS[0], (0, -16), textcoords="offset points", ha="center", fontsize=9)
        figure.savefig(path, dpi=130, bbox_inches="tight")
        plt.close(figure)


def _draw_density(panel, density: np.ndarray, colors: str, title: str, note: str) -> None:
    levels = np.linspace(0.02, 1.0, 12) * density.max()
    panel.contourf(AXIS, AXIS, density.reshape(len(AXIS), -1), levels=levels, cmap=colors, vmin=-0.25 * density.max())
    for mast, distance in zip(MASTS, DISTANCES, strict=True):
        angle = np.linspace(0, 2 * np.pi, 200)
        circle = mast + distance * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        panel.plot(*circle.T, color="0.45", linewidth=0.8, linestyle=(0, (4, 4)))
    panel.plot(*MASTS.T, "^", color=DARK, markersize=7)
    panel.set_title(title, loc="left", fontweight="bold")
    panel.text(0.03, 0.03, note, transform=panel.transAxes, fontsize=9)
    panel.set(xlim=SHOWN, ylim=SHOWN, aspect="equal", xlabel="east", xticks=(-2, 0, 2), yticks=(-2, 0, 2))


def fit_both(target) -> dict[str, relbo.Posterior]:
    """Plain variational inference with a full covariance, and boosted."""
    return {
        "one normal": relbo.fit(target, seed=0, max_components=1, progress_bar=False),
        "boosted": relbo.fit(target, seed=0, progress_bar=False),
    }


def main(path: pathlib.Path) -> None:
    target = make_target()
    single, boosted = fit_both(target).values()
    names = {"one normal": single, f"relbo: a mixture of {boosted.num_components}": boosted}
    draw(truth(target), names, path)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

"""Importance ratios and k-hat: how far the mixture's tails can be trusted."""

import numpy as np

from relbo.diagnostics import Diagnosis
from relbo.diagnostics.psis import k_hat_limit, num_tail, psis
from relbo.plots.canvas import QUIET, Axes, legend_beside, one_axes, short
from relbo.posterior.posterior import Posterior
from relbo.views.palette import BAD, FIT
from relbo.views.ratios import log_ratios

_FEWEST = 25  # with fewer there is no tail to show
_MOST_PARAMETERS = 20  # rows that are legible, the worst


def ratios(posterior: Posterior, axes: Axes | None = None, *, num_draws: int = 4000, seed: int = 0) -> Axes:
    """A histogram of log p - log q at draws of the mixture, shifted so that p = q is at zero.

    A narrow peak at zero is a good fit. The largest ratios, in another colour, are the tail that k-hat is fitted to:
    a tail that reaches far to the right means that the posterior has mass where the mixture has little.
    """
    axes = one_axes(axes, 7.0)
    values = log_ratios(posterior, num_draws, seed)
    finite = values[np.isfinite(values)]
    if len(finite) < _FEWEST:
        raise ValueError(f"only {len(finite)} of {len(values)} draws have a finite log density: there is no picture.")
    _, k_hat = psis(finite)
    shifted = finite - (np.logaddexp.reduce(finite) - np.log(len(finite)))
    threshold = np.sort(shifted)[-num_tail(len(shifted)) - 1]
    edges = np.linspace(*_range(shifted), 61)
    counts, _ = np.histogram(np.clip(shifted, edges[0], edges[-1]), edges)
    tail, _ = np.histogram(shifted[shifted > threshold], edges)
    axes.stairs(counts, edges, fill=True, color=FIT, alpha=0.75, label="draws")
    axes.stairs(
        tail, edges, fill=True, color=BAD, hatch="///", ec="white", label=f"the {num_tail(len(shifted))} largest"
    )
    axes.axvline(0, color="black", lw=1, ls="--", label="p = q")
    limit = k_hat_limit(len(shifted))
    judged = "good" if k_hat < limit else "too large"
    axes.set_title(f"k-hat {k_hat:.2f}: {judged} (limit {limit:.2f})", fontsize=11)
    axes.set_xlabel("log p − log q − log Z (nats)")
    axes.set_ylabel("draws, log scale")
    axes.set_yscale("log")
    axes.set_ylim(0.7, None)
    legend_beside(axes)
    return axes


def _range(shifted: np.ndarray) -> tuple[float, float]:
    """All of the right end, where the trouble is; on the left, draws far out are put into the last bar."""
    low = max(float(shifted.min()), float(np.quantile(shifted, 0.005)) - 1.0)
    return min(low, -0.05), max(float(shifted.max()), 0.05)


def k_hats(diagnosis: Diagnosis, axes: Axes | None = None) -> Axes:
    """k-hat of the weighted mean and variance of parameters, the worst first, twenty at the most.

    Left of the dashed line importance weights can mend the moment; right of it they cannot.
    """
    checks = [check for check in diagnosis.parameters if np.isfinite(check.k_hat_variance)]
    checks = sorted(checks, key=lambda check: -max(check.k_hat_mean, check.k_hat_variance))[:_MOST_PARAMETERS]
    axes = one_axes(axes, 7.0, 1.3 + 0.26 * max(len(checks), 3))
    if not checks:
        axes.text(0.5, 0.5, "no tail could be fitted", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return axes
    places = np.arange(len(checks))
    first, second = (np.array([getattr(each, name) for each in checks]) for name in ("k_hat_mean", "k_hat_variance"))
    limit = diagnosis.defensive.k_hat_limit
    axes.hlines(places, np.minimum(first, second), np.maximum(first, second), color="0.8", lw=1.5, zorder=1)
    axes.plot(first, places, "o", mec=FIT, mfc="none", mew=1.6, ms=9, label="mean")
    axes.plot(second, places, "D", color=BAD, ms=4.5, label="variance")
    axes.axvline(limit, color=QUIET, ls="--", lw=1.2, label=f"limit {limit:.2f}")
    axes.set_xlim(min(0.0, first.min(), second.min()) - 0.05, max(limit, first.max(), second.max()) + 0.1)
    axes.set_yticks(places, [short(check.name) for check in checks])
    axes.set_ylim(len(checks) - 0.4, -0.6)
    axes.set_xlabel("k-hat")
    legend_beside(axes)
    return axes

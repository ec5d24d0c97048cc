"""Pictures of ranks: histograms, and differences of distribution functions with simultaneous bands."""

from typing import TYPE_CHECKING, Any

import numpy as np

from relbo._require import require
from relbo.calibration.ranks import uniforms

if TYPE_CHECKING:
    from relbo.calibration.result import Calibration

BAND = 0.99
_NUM_POINTS = 100
_NUM_SAMPLES = 2000


def plot_ranks(calibration: "Calibration", num_quantities: int) -> Any:
    """One column for each of the worst quantities: the histogram above, the distribution function below."""
    pyplot = require("matplotlib.pyplot", extra="plots")
    worst = calibration.worst[:num_quantities]
    levels = uniforms(calibration.ranks, calibration.num_draws, calibration.seed)
    figure, axes = pyplot.subplots(
        2,
        len(worst),
        figsize=(2.9 * len(worst) + 0.6, 5.0),
        squeeze=False,
        sharex=True,
        sharey="row",
        layout="constrained",
    )
    points, low, high = ecdf_band(len(levels))
    for column, test in enumerate(worst):
        own = levels[:, calibration.names.index(test.name)]
        top, bottom = axes[:, column]
        top.set_title(f"{test.name}\np = {calibration.p_values[test.name]:.2g}", fontsize=10)
        _histogram(top, own)
        bottom.fill_between(points, low, high, color="0.87", lw=0)
        bottom.axhline(0, color="0.5", lw=0.8)
        bottom.plot(points, np.searchsorted(np.sort(own), points, side="right") / len(own) - points, color="C0")
        bottom.set_xlabel("rank / number of draws")
    axes[0, 0].set_ylabel("fits")
    axes[1, 0].set_ylabel("ECDF - uniform")
    figure.suptitle(f"{len(levels)} fits: {'calibrated' if calibration.passed else 'not calibrated'}", fontsize=11)
    return figure


def _histogram(axes: Any, levels: np.ndarray) -> None:
    """Bars, and the band that each bar of uniform ranks stays in with probability 0.99."""
    from scipy.special import bdtr

    num_bins = int(np.clip(len(levels) // 8, 5, 20))
    counts, edges = np.histogram(levels, num_bins, (0, 1))
    cumulative = bdtr(np.arange(len(levels) + 1.0), len(levels), 1 / num_bins)
    low, high = np.searchsorted(cumulative, [(1 - BAND) / 2, (1 + BAND) / 2])
    axes.axhspan(low, high, color="0.87", lw=0)
    axes.axhline(len(levels) / num_bins, color="0.5", lw=0.8)
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color="C0", alpha=0.75, edgecolor="white")


def ecdf_band(num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points in (0, 1), and the band around zero that an ECDF of `num` uniforms leaves anywhere once in a hundred.

    Every point has the same share in the risk (Säilynoja, Bürkner and Vehtari 2022): the pointwise level is the
    one at which one in a hundred simulated samples leaves the band somewhere.
    """
    from scipy.special import bdtr

    points = np.arange(1, _NUM_POINTS) / _NUM_POINTS
    samples = np.sort(np.random.default_rng(0).random((_NUM_SAMPLES, num)), axis=1)
    counts = np.stack([np.searchsorted(sample, points, side="right") for sample in samples])
    below, above = bdtr(counts, num, points), 1 - bdtr(counts - 1.0, num, points)
    above = np.where(counts == 0, 1.0, above)
    risk = np.quantile(2 * np.minimum(below, above).min(axis=1), 1 - BAND)
    table = bdtr(np.arange(num + 1.0)[:, None], num, points)
    low = (table < risk / 2).sum(axis=0)
    high = (table < 1 - risk / 2).sum(axis=0)
    return points, low / num - points, high / num - points

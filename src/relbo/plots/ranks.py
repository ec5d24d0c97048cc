"""Ranks of a calibration: histograms, and differences of distribution functions with simultaneous bands."""

from typing import Any

import numpy as np
from scipy.special import bdtr

from relbo.calibration import Calibration
from relbo.calibration.ranks import uniforms
from relbo.plots.canvas import QUIET, Axes, many_axes, short
from relbo.views.palette import FIT

BAND = 0.99  # one ordinary plot in a hundred leaves it
_GROUND = "0.87"
_NUM_POINTS = 100  # of a curve from 0 to 1
_NUM_SAMPLES = 2000  # of which the band is a quantile of one in a hundred


def ranks(calibration: Calibration, axes: Any = None, *, num_quantities: int = 4) -> np.ndarray:
    """The worst quantities of a calibration, one column each: an array (2, n) of Axes.

    Above the histogram of the ranks, with the band that a bar of uniform ranks leaves once in a hundred; below the
    empirical distribution function minus the uniform one, with the band that uniform ranks leave anywhere once in
    a hundred. A slope: the draws are too high or too low. A U, or an S below: too narrow; the reverse: too wide.
    """
    worst = calibration.worst[:num_quantities]
    levels = uniforms(calibration.ranks, calibration.num_draws, calibration.seed)
    grid = many_axes(axes, 2, len(worst), 2.9, 2.4, sharex=True, sharey="row")
    points, low, high = ecdf_band(len(levels))
    for column, test in enumerate(worst):
        own = levels[:, calibration.names.index(test.name)]
        top, bottom = grid[:, column]
        top.set_title(f"{short(test.name, 24)}\np = {calibration.p_values[test.name]:.2g}", fontsize=10)
        _histogram(top, own)
        bottom.fill_between(points, low, high, color=_GROUND, lw=0)
        bottom.axhline(0, color=QUIET, lw=0.8)
        bottom.plot(points, np.searchsorted(np.sort(own), points, side="right") / len(own) - points, color=FIT)
        bottom.set_xlabel("rank / number of draws")
    grid[0, 0].set_ylabel("fits")
    grid[1, 0].set_ylabel("ECDF − uniform")
    return grid


def _histogram(axes: Axes, levels: np.ndarray) -> None:
    """Bars, and the band that each bar of uniform ranks stays in with probability 0.99."""
    num_bins = int(np.clip(len(levels) // 8, 5, 20))
    counts, edges = np.histogram(levels, num_bins, (0, 1))
    cumulative = bdtr(np.arange(len(levels) + 1.0), len(levels), 1 / num_bins)
    low, high = np.searchsorted(cumulative, [(1 - BAND) / 2, (1 + BAND) / 2])
    axes.axhspan(low, high, color=_GROUND, lw=0)
    axes.axhline(len(levels) / num_bins, color=QUIET, lw=0.8)
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=FIT, alpha=0.75, edgecolor="white")
    axes.grid(visible=False)


def ecdf_band(num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points in (0, 1), and the band around zero that an ECDF of `num` uniforms leaves anywhere once in a hundred.

    Every point has the same share in the risk (Säilynoja, Bürkner and Vehtari 2022): the pointwise level is the
    one at which one in a hundred simulated samples leaves the band somewhere.
    """
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

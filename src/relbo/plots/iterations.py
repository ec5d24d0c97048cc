"""How a fit went: ELBO, duality gap and weights, iteration by iteration."""

import numpy as np

from relbo.diagnostics import Diagnosis
from relbo.plots.canvas import QUIET, Axes, one_axes
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.views.palette import BAD, COLOURS, FIT

_ERRORS = 2.0
"""Bands and bars reach so many standard errors to either side."""


def elbo(posterior: Posterior, axes: Axes | None = None, *, diagnosis: Diagnosis | None = None) -> Axes:
    """The ELBO after every iteration, in nats, with a band of two standard errors.

    Iterations that were rejected, because they did not improve the mixture, are hollow. With a `diagnosis` a line shows
    log Z, which the ELBO climbs towards.
    """
    trace = _checked(posterior)
    axes = one_axes(axes)
    where = np.arange(len(trace))
    value, error = _numbers([record.elbo for record in trace])
    axes.fill_between(where, value - error, value + error, color=FIT, alpha=0.25, lw=0, label="± 2 standard errors")
    axes.plot(where, value, color=FIT, lw=1.6, label="ELBO")
    _marks(axes, where, value, trace)
    if diagnosis is not None:
        _log_z(axes, diagnosis.log_z)
    _iterations(axes, len(trace))
    axes.set_ylabel("ELBO (nats)")
    axes.legend(frameon=False, loc="lower right")
    return axes


def gap(posterior: Posterior, axes: Axes | None = None) -> Axes:
    """The duality gap before every iteration, in nats, with bars of two standard errors.

    It bounds what further components could gain, as far as the oracle finds the best of them. The true gap is never
    negative: values below zero are noise, or an oracle that found nothing to add. The scale is linear near zero, and
    logarithmic beyond.
    """
    trace = _checked(posterior)
    axes = one_axes(axes)
    known = [(place, record.gap) for place, record in enumerate(trace) if record.gap is not None]
    if known:
        where = np.array([place for place, _ in known])
        value, error = _numbers([each for _, each in known])
        axes.fill_between(where, value - error, value + error, color=COLOURS[1], alpha=0.25, lw=0)
        axes.errorbar(where, value, error, color=COLOURS[1], marker="o", ms=4, lw=1.4, capsize=2)
        axes.set_yscale("symlog", linthresh=_linear_part(value, error))
    else:
        axes.text(0.5, 0.5, "not measured: the fit has one iteration", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
    axes.axhline(0, color=QUIET, lw=0.8)
    _iterations(axes, len(trace))
    axes.set_ylabel("duality gap (nats)")
    return axes


def weights(posterior: Posterior, axes: Axes | None = None) -> Axes:
    """The weights of the components after every iteration, as stacked bars: the oldest component is at the bottom."""
    columns = [np.asarray(record.weights, np.float64) for record in _checked(posterior)]
    axes = one_axes(axes)
    most = max(len(column) for column in columns)
    table = np.stack([np.pad(column, (0, most - len(column))) for column in columns], axis=1)
    import matplotlib

    shades = matplotlib.colormaps["cividis"](np.linspace(0.05, 0.95, most))
    bottom = np.cumsum(table, axis=0) - table
    for layer, shade, below in zip(table, shades, bottom, strict=True):
        axes.bar(np.arange(len(columns)), layer, 0.86, bottom=below, color=shade, edgecolor="white", linewidth=0.5)
    _iterations(axes, len(columns))
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    axes.set_ylabel("weight")
    axes.set_title("oldest component at the bottom", fontsize=10, color=QUIET)
    return axes


def _checked(posterior: Posterior) -> list[Record]:
    if not posterior.trace:
        raise ValueError("this posterior has no trace: it was not made by relbo.fit, and there is nothing to draw.")
    return posterior.trace


def _numbers(estimates: list[Estimate]) -> tuple[np.ndarray, np.ndarray]:
    value = np.array([float(each.value) for each in estimates])
    return value, _ERRORS * np.array([float(each.std_err) for each in estimates])


def _marks(axes: Axes, where: np.ndarray, value: np.ndarray, trace: list[Record]) -> None:
    kept = np.array([record.accepted for record in trace])
    axes.plot(where[kept], value[kept], "o", color=FIT, ms=5)
    if not kept.all():
        axes.plot(where[~kept], value[~kept], "o", mec=FIT, mfc="white", ms=5, label="rejected")


def _log_z(axes: Axes, log_z: Estimate) -> None:
    value, error = float(log_z.value), _ERRORS * float(log_z.std_err)
    if np.isfinite([value, error]).all():
        axes.axhspan(value - error, value + error, color=BAD, alpha=0.2, lw=0)
        axes.axhline(value, color=BAD, lw=1.2, ls="--", label="log Z")


def _linear_part(value: np.ndarray, error: np.ndarray) -> float:
    """Up to here the scale is linear: about the noise of the smallest gaps, a round number."""
    noise = float(np.median(error[np.isfinite(error)])) if np.isfinite(error).any() else 0.0
    return 10.0 ** np.clip(np.ceil(np.log10(max(noise, 1e-6))), -3, 1)


def _iterations(axes: Axes, num: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(-0.6, max(num, 2) - 0.4)
    axes.set_xlabel("iteration")

"""What a finished fit warns of, one line each: `diagnose` says more, but not everybody asks it."""

import logging

import jax
import numpy as np

from relbo.diagnostics.defensive import difference
from relbo.mixture import draw_each
from relbo.posterior.posterior import Posterior
from relbo.runtime.warn import warn

_COARSE = 0.01
"""Nats, and standard deviations: a last digit that is worth more is warned of."""
_LEAST_ZERO = 0.01  # of the draws: less hardly moves the ELBO
_NUM_REPEATED = 16  # a density that is random is so nearly everywhere
_NUM_SOUGHT = 1024  # to meet again what one draw in a hundred met


def caution(posterior: Posterior) -> None:
    """Warn of rounding, of draws with a broken or a zero density, and of a density that is random."""
    _of_rounding(posterior)
    _of_coordinates(posterior)
    _of_zero_density(posterior)
    try:  # what follows evaluates the model at a few points more, which are not of the trace
        _of_broken_draws(posterior)
        _of_noise(posterior)
    except (Exception, KeyboardInterrupt):  # a spent budget, or a model that failed: no reason to lose the fit
        logging.getLogger("relbo").debug("the finished fit could not be looked at", exc_info=True)


def _of_rounding(posterior: Posterior) -> None:
    """Where a log density is so large that its last digit is more than what is left to improve."""
    unit = posterior.trace[-1].rounding
    if unit > _COARSE:
        warn(
            f"A log density of {posterior.elbo.value:.3g} is rounded to {unit:.2g} nats, and smaller differences were "
            "noise to this fit: the errors that it states contain that. The model computes in float32 where relbo asks "
            "for float64 (or the device has none). Look for casts to float32, or subtract a constant row by row."
        )


_X64 = 'Compute in float64: jax.config.update("jax_enable_x64", True) before the target is made.'


def _of_coordinates(posterior: Posterior) -> None:
    """Where a parameter is so far from zero, or so exactly known, that float32 cannot tell its draws apart."""
    dtype = posterior.target.dtype
    if dtype != np.float32:
        return
    loc, sd = np.abs(np.asarray(posterior.whitened.params.loc, np.float64)), _widths(posterior)
    coarse = np.finfo(dtype).eps * loc / np.maximum(sd, np.finfo(float).tiny)
    worst = int(np.argmax(coarse))
    if coarse[worst] > _COARSE:
        name = posterior.target.coordinate_names()[worst]
        warn(
            f"{name} is about {loc[worst]:.3g} with a standard deviation of {sd[worst]:.2g}: float32 rounds it to "
            f"{coarse[worst]:.2g} standard deviations. Shift and scale it in the model, or compute in float64. {_X64}"
        )


def _of_zero_density(posterior: Posterior) -> None:
    last = posterior.trace[-1]
    share = last.num_zero / max(1, last.elbo.num_draws)
    if share > _LEAST_ZERO:
        warn(
            f"The log density is -inf in about {share:.0%} of the mixture: sample rejects such draws, and the ELBO is "
            "that of what is left. Declare the support instead (supports=, a constrained distribution): a mixture fits "
            "an edge that it need not find."
        )


def _of_broken_draws(posterior: Posterior) -> None:
    last = posterior.trace[-1]
    if not last.nan_fraction > 0 or posterior.stop.kind == "broken":  # which was said already
        return
    door = posterior.booster.door(posterior.whitened)
    draws = _draws(posterior, _NUM_SOUGHT)
    broken = np.isnan(door.numbers(draws, "checks")[0])
    if door.infinite(draws[broken]).any():
        warn(
            "The log density is +inf at some draws, which were left out: a model that is infinite somewhere has no "
            "posterior. Look there for a scale of zero, log(0) or a division by zero."
        )
        return
    warn(
        f"{max(last.nan_fraction, 1e-4):.2g} of the draws had a NaN log density and were left out, as if there were "
        "nothing. Look at the model there, for overflow, log(0) or inf - inf."
    )


def _of_noise(posterior: Posterior) -> None:
    door = posterior.booster.door(posterior.whitened)
    draws = _draws(posterior, _NUM_REPEATED)
    (first, rounding), (second, _) = (door.values(draws, "checks") for _ in range(2))
    by = difference(first, second, rounding)
    if by > 0:
        warn(
            f"The log density is random: twice at one point it differed by {by:.2g} nats. Fix the randomness (a seed, "
            "the number of particles): neither ELBO nor verdict hold for a density that changes."
        )


def _widths(posterior: Posterior) -> np.ndarray:
    """The standard deviation of every coordinate, by the affine map."""
    return posterior.whitened.family.scale.widths(posterior.whitened.params.scale)


def _draws(posterior: Posterior, num: int) -> np.ndarray:
    """Of every component, by the program that measures iterations."""
    each = -(-num // posterior.num_components)
    draws = draw_each(jax.random.key(0), posterior.mixture, each)
    return draws.reshape(-1, draws.shape[-1])

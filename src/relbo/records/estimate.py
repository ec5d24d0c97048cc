"""A Monte Carlo number and its standard error, which never travel apart."""

import math

import equinox as eqx
from jaxtyping import Array, Float

from relbo.runtime.plain import plain


class Estimate(eqx.Module):
    """`value` estimated from `num_draws` draws with standard error `std_err`."""

    value: Float[Array, ""] | float
    std_err: Float[Array, ""] | float
    num_draws: int = eqx.field(static=True)

    def __str__(self) -> str:
        return format_estimate(float(self.value), float(self.std_err))


@plain.register
def _(value: Estimate):
    return {"value": plain(float(value.value)), "std_err": plain(float(value.std_err))}


def format_estimate(value: float, std_err: float) -> str:
    """Round as a person would: two figures of the error, the value to the same place.

    >>> format_estimate(-77.98312, 0.0123)
    '-77.983 +- 0.012'
    """
    if not math.isfinite(value) or not math.isfinite(std_err):
        return f"{value:.4g} +- {std_err:.2g}"
    if std_err <= 0:
        return f"{value:.6g} +- 0"
    places = max(0, 1 - math.floor(math.log10(std_err)))
    return f"{value:.{places}f} +- {std_err:.{places}f}"

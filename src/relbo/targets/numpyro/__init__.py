"""NumPyro models as targets. The framework is imported when the door is opened."""

from collections.abc import Callable
from typing import Any

from relbo.runtime.require import require
from relbo.targets.base import AbstractTarget


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> AbstractTarget:
    """A target from a NumPyro model and the arguments it is called with, data included.

    Latent sites may have any continuous support; discrete ones with finitely many values are summed out (extra
    `enumeration`). Deterministics, factors, masks, reparameterisations, plates and improper priors work as in NumPyro.
    Arrays among the arguments, and pandas' Series and DataFrames as arrays, are traced, so fitting the model on new
    data of the same shapes compiles nothing; everything else (sizes, flags) is static. A plate with `subsample_size`
    makes the ascents of a fit climb on minibatches; what is measured and reported always uses all data.

    Raises:
        ValueError: for a model without continuous latents, with discrete ones that cannot be summed out, with
            continuous ones inside a subsampled plate, with `param` sites, or without a point of finite density.

    >>> import numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> from_numpyro(model, np.ones(5)).coordinate_names()
    ['mu']
    """
    require("numpyro", extra="numpyro")
    from relbo.targets.numpyro.target import read_target

    return read_target(model, args, kwargs)

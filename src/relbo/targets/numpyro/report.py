"""Why a NumPyro model has no density: which sites, and which of their observations."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpyro
from numpyro.distributions import constraints

from relbo.targets.numpyro.handlers import innermost, is_factor
from relbo.targets.numpyro.sites import Facts
from relbo.targets.search import name_entries, name_nan

Trace = dict[str, Any]


def report(trace: Callable[[], Trace], facts: Facts, arguments: Mapping[str, Any]) -> str:
    """Sentences about the sites of one trace whose log probability is not finite, and about NaN in the arguments.

    The trace is made of concrete values, so that NumPyro's own checks and warnings speak as well.
    """
    sentences = [name_nan((name, np.asarray(value)) for name, value in arguments.items())]
    try:
        sites = trace()
    except ValueError as error:  # of the parameters of a distribution, which NumPyro checks when it makes one
        sentences.append(f"NumPyro says: {str(error).splitlines()[0]}")
        with numpyro.validation_enabled(False):
            sites = trace()
    # Given discrete latents that were drawn, not summed out, only what is impossible for all of them is told.
    kinds = ("observed",) if facts.enumerated else ("latent", "observed", "factor")
    sentences += [_describe(site.name, sites[site.name], facts.enumerated) for site in facts.of_kind(*kinds)]
    return " ".join(filter(None, sentences))


def _describe(name: str, site: Trace, support_alone: bool) -> str:
    """What is wrong at one site, or nothing."""
    fn, value = site["fn"], np.asarray(site["value"])
    kind = type(innermost(fn)).__name__
    log_probs = np.asarray(fn.log_prob(site["value"]))
    bad = ~np.isfinite(log_probs)
    if not bad.any():
        return ""
    if is_factor(fn):
        return f"The factor {name!r} is {name_entries(name, log_probs, bad)}."
    noun = "observations" if site["is_observed"] else "values"
    value = np.broadcast_to(value, log_probs.shape + value.shape[value.ndim - fn.event_dim :])
    outside = bad & ~np.broadcast_to(np.asarray(fn.support(value)), bad.shape)
    count = f"of {bad.size} " if bad.size > 1 else ""
    if outside.any():
        return (
            f"At the site {name!r} {outside.sum()} {count}{noun} lie outside the support {fn.support!r} of its "
            f"distribution, {kind}: {name_entries(name, value, outside)}."
        )
    if support_alone:
        return ""
    which = "NaN" if np.isnan(log_probs).any() else "-inf" if (log_probs == -np.inf).any() else "+inf"
    return (
        f"At the site {name!r} ({kind}) the log probability of {bad.sum()} {count}{noun} is {which}: "
        f"{name_entries(name, value, bad)}{_parameters(fn)}."
    )


def _parameters(fn: Any) -> str:
    """The parameters of a distribution that lie outside of their domain, if it says so."""
    base = innermost(fn)
    given = {name: np.asarray(vars(base)[name]) for name in base.arg_constraints if name in vars(base)}
    words = []
    for name, value in given.items():
        domain = base.arg_constraints[name]
        inside = np.isfinite(value) if constraints.is_dependent(domain) else np.asarray(domain(value))
        if not inside.all():
            words.append(name_entries(name, value, ~inside))
    return f", given the parameters {'; '.join(words)}" if words else ""

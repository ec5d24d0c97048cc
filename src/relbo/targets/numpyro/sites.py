"""What a NumPyro model holds: one abstract trace of it, read into static facts.

The trace is made by `jax.eval_shape`: nothing is computed and nothing compiled, where NumPyro's own `initialize_model`
compiles dozens of tiny programs. What cannot be fitted is refused here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from numpyro import handlers
from numpyro.distributions import Delta, biject_to
from numpyro.infer import init_to_uniform

from relbo.runtime.require import require
from relbo.runtime.words import shorten
from relbo.targets.arguments import UNTRACEABLE, Arguments, check_call
from relbo.targets.numpyro.handlers import innermost, is_factor


@dataclass(frozen=True)
class Site:
    """A site of the model. `flat_shape` is the shape of the unconstrained coordinates of a continuous latent."""

    name: str
    kind: str
    """"latent", "discrete", "deterministic", "observed" or "factor"."""
    shape: tuple[int, ...]
    flat_shape: tuple[int, ...]
    event_dim: int
    plates: tuple[tuple[str, int], ...]
    """Names of the plates around it, and the batch axes (negative) that they own."""

    @property
    def size(self) -> int:
        return math.prod(self.flat_shape)

    def axis_names(self) -> tuple[str, ...]:
        """A name for every axis: the plate's, or ArviZ's own habit where there is none."""
        names = [f"{self.name}_dim_{axis}" for axis in range(len(self.shape))]
        for plate, dim in self.plates:
            axis = len(self.shape) - self.event_dim + dim
            if 0 <= axis < len(self.shape):
                names[axis] = plate
        return tuple(names)


@dataclass(frozen=True)
class Plate:
    name: str
    size: int
    batch_size: int

    @property
    def subsampled(self) -> bool:
        return self.batch_size < self.size


@dataclass(frozen=True)
class Facts:
    """Everything about a model that does not depend on the values of its data. Hashable."""

    sites: tuple[Site, ...]
    plates: tuple[Plate, ...]
    needs_key: bool
    """Whether running the model draws random numbers even with all continuous latents given."""

    def of_kind(self, *kinds: str) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.kind in kinds)

    @property
    def latents(self) -> tuple[Site, ...]:
        return self.of_kind("latent")

    @property
    def subsampled(self) -> tuple[Plate, ...]:
        return tuple(plate for plate in self.plates if plate.subsampled)

    @property
    def enumerated(self) -> bool:
        return any(site.kind == "discrete" for site in self.sites)

    @property
    def plate_nesting(self) -> int:
        """How many batch axes plates own, which enumeration has to keep clear of."""
        return max((-dim for site in self.sites for _, dim in site.plates), default=0)

    def deterministics(self) -> tuple[str, ...]:
        """Those that hang on continuous latents alone: with discrete ones, those that come before the first of them."""
        names = []
        for site in self.sites:
            if site.kind == "discrete":
                break
            if site.kind == "deterministic":
                names.append(site.name)
        return tuple(names)


def read_model(model: Callable[..., Any], arguments: Arguments, arrays: list[Array]) -> Facts:
    """What the model holds, having checked that it can be fitted.

    Raises:
        ValueError: for a model that has nothing to infer, or something that cannot be inferred.
    """
    facts = read_sites(model, arguments, arrays)
    _check(facts)
    return facts


def read_sites(model: Callable[..., Any], arguments: Arguments, arrays: list[Array]) -> Facts:
    """What the model holds, from one abstract trace with these arguments."""
    facts: list[Facts] = []
    check_call("the model", model, *arguments.fill(arrays))

    def look(arrays: list[Array]) -> None:
        args, kwargs = arguments.fill(arrays)
        seeded = handlers.substitute(handlers.seed(model, jax.random.key(0)), substitute_fn=init_to_uniform)
        facts.append(_read_trace(handlers.trace(seeded).get_trace(*args, **kwargs)))

    try:
        jax.eval_shape(look, arrays)
    except (*UNTRACEABLE, TypeError) as error:
        error.add_note(
            "(Arrays among the model's arguments are traced by JAX. If the model needs one as plain numbers, for the "
            "size of a plate, np.unique or np.isnan, bind it: "
            "relbo.from_numpyro(functools.partial(model, group=group), y). A data frame arrives as an array, without "
            "the names of its columns: pass those that the model uses.)"
        )
        raise
    return facts[0]


def _read_trace(trace: dict[str, Any]) -> Facts:
    sites, plates, needs_key = [], [], False
    for name, site in trace.items():
        if site["type"] == "plate":
            size, batch_size = site["args"]
            plates.append(Plate(name, size, size if batch_size is None else batch_size))
        elif site["type"] in ("sample", "deterministic"):
            sites.append(_read_site(name, site))
        elif site["type"] == "param":
            raise ValueError(
                f"the model has a numpyro.param site, {name!r}: a value to optimise, which has no posterior. Give it a "
                "prior (numpyro.sample), or pass it as data."
            )
        needs_key |= site["type"] in ("prng_key", "control_flow")
    needs_key |= any(site.kind == "discrete" for site in sites)
    return Facts(tuple(sites), tuple(plates), needs_key)


def _read_site(name: str, site: dict[str, Any]) -> Site:
    frames = tuple((frame.name, frame.dim) for frame in site["cond_indep_stack"])
    shape = tuple(np.shape(site["value"]))
    if site["type"] == "deterministic":
        return Site(name, "deterministic", shape, (), 0, frames)
    fn = site["fn"]
    if site["is_observed"]:
        return Site(name, "factor" if is_factor(fn) else "observed", shape, (), fn.event_dim, frames)
    if fn.support.is_discrete:
        _check_enumerable(name, fn)
        return Site(name, "discrete", shape, (), fn.event_dim, frames)
    if isinstance(innermost(fn), Delta):
        raise ValueError(
            f"the latent site {name!r} is a point mass (Delta), which has no density to fit. Write "
            f"numpyro.deterministic({name!r}, value) instead."
        )
    return Site(name, "latent", shape, tuple(biject_to(fn.support).inverse_shape(shape)), fn.event_dim, frames)


def _check_enumerable(name: str, fn: Any) -> None:
    if fn.has_enumerate_support:
        require("funsor", extra="enumeration")
        return
    raise ValueError(
        f"the latent site {name!r} is discrete ({type(fn).__name__}) and has no finite set of values to sum over. "
        "Marginalise it by hand (numpyro.factor), or replace it by a bounded distribution such as Categorical."
    )


def _check(facts: Facts) -> None:
    if not facts.latents:
        described = ", ".join(f"{site.name} ({site.kind})" for site in facts.sites) or "nothing"
        raise ValueError(
            f"the model has no continuous latent sites, so there is nothing to infer; it has {described}. Did you pass "
            "values for all of them, or condition on them?"
        )
    subsampled = {plate.name for plate in facts.subsampled}
    for site in facts.of_kind("latent", "deterministic", "discrete"):
        inside = [plate for plate, _ in site.plates if plate in subsampled]
        if inside and site.kind == "latent":
            raise ValueError(
                f"the continuous latent site {site.name!r} lies inside the subsampled plate {inside[0]!r}: a minibatch "
                "would hold other parameters every time. Move it out of the plate, marginalise it, or drop "
                "subsample_size."
            )
        if subsampled and not inside and site.kind == "discrete":
            raise ValueError(
                f"the discrete site {site.name!r} lies outside the subsampled plate "
                f"{shorten(sorted(subsampled))}, so a minibatch gives no unbiased log density. Drop subsample_size."
            )
    if facts.enumerated and len(subsampled) > 1:
        raise ValueError(
            f"enumeration goes with one subsampled plate, and the model has {shorten(sorted(subsampled))}. "
            "Drop subsample_size of all but one."
        )

"""A NumPyro model, unchanged."""

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer.util as util
from jaxtyping import Array, Float, Key, PyTree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import Predictive

from relbo.runtime.compiling import compiled
from relbo.runtime.require import require
from relbo.targets.arguments import Arguments, plain_data_named, split_arguments
from relbo.targets.base import AbstractTarget
from relbo.targets.layout import Layout, entry_names, read_example
from relbo.targets.numpyro.data import bound, describe, is_data, same
from relbo.targets.numpyro.handlers import Rescaled, Unobserved
from relbo.targets.numpyro.report import report
from relbo.targets.numpyro.sites import Facts, read_model, read_sites
from relbo.targets.search import find_starts
from relbo.targets.supports import name_support, support_words

_SEED = 0  # for the draws of a model that draws although all its continuous latents are given; they change no density


class NumPyroTarget(AbstractTarget):
    r"""$\log p(z)$ of a NumPyro model: its log joint density plus $\log|\det J|$ of NumPyro's own bijections.

    Made by `from_numpyro`. The model and what is known of its sites are static; arrays among the arguments are leaves.
    Discrete latents are summed out. With subsampled plates, `log_density` uses all data and `log_density_on` some.
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    model: Callable[..., Any] = eqx.field(static=True)
    facts: Facts = eqx.field(static=True)
    arguments: Arguments = eqx.field(static=True)
    arrays: list[Array]

    def __init__(self, model, facts: Facts, arguments: Arguments, arrays: list[Array], initial=None):
        self.model, self.facts, self.arguments, self.arrays = model, facts, arguments, arrays
        self.dim = sum(site.size for site in facts.latents)
        self.dtype = np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
        self.differentiable = self.twice_differentiable = True
        self.initial = jnp.zeros((1, self.dim), self.dtype) if initial is None else initial

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return self._log_density(z, self._all_rows(), corrected=False)

    def held_data(self) -> list[Array]:
        return self.arrays

    def draw_batch(self, key: Key[Array, ""]) -> dict[str, Array]:
        plates = self.facts.subsampled
        keys = jax.random.split(key, len(plates))
        # With replacement: unbiased as well, and a permutation of all rows costs more than the gradient.
        return {p.name: jax.random.randint(k, (p.batch_size,), 0, p.size) for p, k in zip(plates, keys, strict=True)}

    def log_density_on(self, z: Float[Array, " dim"], batch: dict[str, Array]) -> Float[Array, ""]:
        return self._log_density(z, batch, corrected=self.facts.enumerated)

    @property
    def subsamples(self) -> bool:
        return bool(self.facts.subsampled)

    def _log_density(self, z, batch: dict[str, Array], corrected: bool) -> Float[Array, ""]:
        params = self._split(z)
        args, kwargs = self.arguments.fill(self.arrays)

        def density(model) -> Array:
            if self.facts.enumerated:
                model = _enumerated(model, self.facts.plate_nesting)
            with _quiet():
                return -util.potential_energy(model, args, kwargs, params, enum=self.facts.enumerated)

        model = self._fixed(self.model, batch)
        if not corrected:
            return jnp.asarray(density(model), self.dtype)
        # NumPyro scales a minibatch before it sums over the discrete values, which is biased. So the plate is left
        # unscaled, and what it adds to the rest of the model is scaled afterwards.
        (plate,) = self.facts.subsampled
        scale = plate.size / batch[plate.name].shape[0]
        inside = lambda site: plate.name in [frame.name for frame in site.get("cond_indep_stack", ())]  # noqa: E731
        prior = density(handlers.block(model, hide_fn=inside))
        total = density(Rescaled(model, plate.name, 1 / scale))
        return jnp.asarray(prior + scale * (total - prior), self.dtype)

    def constrain(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """Latent sites, then the deterministic ones that do not hang on discrete latents."""
        args, kwargs = self.arguments.fill(self.arrays)
        model = self._fixed(self.model, self._all_rows())
        with _quiet():
            values = util.constrain_fn(model, args, kwargs, self._split(z), return_deterministic=True)
        names = [*(site.name for site in self.facts.latents), *self.facts.deterministics()]
        return {name: values[name] for name in names}

    def latents_with_log_det(self, z: Float[Array, " dim"]) -> dict[str, tuple[Array, Array]]:
        """The value of every latent site, and log |det J| of its bijection for every element of its batch."""
        flat, values = self._split(z), self._split_constrained(z)
        trace, latents = self._trace(values), {}
        for name, value in values.items():
            bijection = biject_to(trace[name]["fn"].support)
            log_det = bijection.log_abs_det_jacobian(flat[name], value)
            batch_ndim = jnp.ndim(value) - trace[name]["fn"].event_dim
            latents[name] = value, jnp.sum(log_det, axis=tuple(range(batch_ndim, jnp.ndim(log_det))))
        return latents

    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        given = self._latent_values(params)
        args, kwargs = self.arguments.fill(self.arrays)
        model = self._fixed(self.model, self._all_rows())
        with _quiet():
            flat = util.unconstrain_fn(model, args, kwargs, given)
        return jnp.concatenate([jnp.reshape(flat[site.name], (site.size,)) for site in self.facts.latents])

    def coordinate_names(self) -> list[str]:
        return [name for site in self.facts.latents for name in entry_names(site.name, site.flat_shape)]

    def described(self) -> Layout | None:
        """From the supports of the sites at one point; checked at others, for supports may hang on other sites."""
        if self.facts.deterministics():
            return None
        trace = self._trace(self._split_constrained(self.initial[0]))
        supports = {site.name: support_words(trace[site.name]["fn"].support) for site in self.facts.latents}
        example = OrderedDict(self._split_constrained(self.initial[0]))  # a dict would be sorted by name
        try:
            layout, _ = read_example(example, supports)
        except (TypeError, ValueError):
            return None
        points = self.initial[:1] + jnp.linspace(-2, 2, 7, dtype=self.dtype)[:, None] * jnp.cos(jnp.arange(self.dim))
        here, there = jax.vmap(self.constrain)(points), jax.vmap(layout.constrain)(points)
        same = all(np.array_equal(here[name], there[name], equal_nan=True) for name in here)
        return layout if same and layout.dim == self.dim else None

    def supports(self) -> dict[str, str]:
        named: dict[str, str] = {}

        def look(z) -> None:
            trace = self._trace(self._split_constrained(z))
            named.update({site.name: name_support(trace[site.name]["fn"].support) for site in self.facts.latents})

        jax.eval_shape(look, self.initial[0])
        return named

    def dims(self) -> dict[str, tuple[str, ...]]:
        sites = self.facts.of_kind("latent", "deterministic", "observed")
        return {site.name: site.axis_names() for site in sites if site.shape}

    def coords(self) -> dict[str, np.ndarray]:
        return {plate.name: np.arange(plate.size) for plate in self.facts.plates}

    def log_likelihood(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """Of every observed site. None with discrete latents, which tie the observations of a plate together."""
        if self.facts.enumerated:
            return {}
        trace = self._trace(self._split_constrained(z))
        sites = {site.name: trace[site.name] for site in self.facts.of_kind("observed")}
        return {name: site["fn"].log_prob(site["value"]) for name, site in sites.items()}

    def observed_data(self) -> dict[str, np.ndarray]:
        names = [site.name for site in self.facts.of_kind("observed")]
        values = _observed(self)
        return {name: np.asarray(values[name]) for name in names}

    def constant_data(self) -> dict[str, np.ndarray]:
        """The arrays among the arguments, by the names of the model's signature, except those that are observed."""
        args, kwargs = self.arguments.fill(self.arrays)
        observed = list(self.observed_data().values())
        named = bound(self.model, args, kwargs)
        arrays = {name: np.asarray(value) for name, value in named.items() if is_data(value)}
        return {name: value for name, value in arrays.items() if not any(same(value, seen) for seen in observed)}

    def predict(self, draws: PyTree, seed: int, /, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """Draws of the observed sites. Without arguments, of the data that were fitted; else of `model(*args, ...)`."""
        values = {site.name: jnp.asarray(draws[site.name]) for site in self.facts.latents}
        observed = [site.name for site in self.facts.of_kind("observed")]
        arguments, arrays, facts = self.arguments, self.arrays, self.facts
        if args or kwargs:
            arguments, arrays = split_arguments(args, kwargs)
            facts = read_sites(self.model, arguments, arrays)
        args, kwargs = arguments.fill(arrays)
        model = _at_rows(Unobserved(self.model), _all_rows(facts))
        try:
            with _quiet():
                predicted = Predictive(model, values, return_sites=observed)(jax.random.key(seed), *args, **kwargs)
        except (TypeError, ValueError) as error:
            error.add_note("(raised by the model, run for prediction with the arguments given to predict.)")
            raise
        return {name: np.asarray(value) for name, value in predicted.items()}

    def sample_prior(self, num_draws: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        args, kwargs = self.arguments.fill(self.arrays)
        model = _at_rows(Unobserved(self.model), self._all_rows())
        observed = [site.name for site in self.facts.of_kind("observed")]
        names = [*(site.name for site in self.facts.latents), *self.facts.deterministics()]
        sampler = Predictive(model, num_samples=num_draws, return_sites=[*names, *observed])
        try:
            with _quiet():
                drawn = sampler(jax.random.key(seed), *args, **kwargs)
        except NotImplementedError as error:
            raise ValueError(
                "the prior cannot be sampled: a distribution of the model has no sampler (an improper one has none). "
                "Leave prior draws out."
            ) from error
        arrays = {name: np.asarray(value) for name, value in drawn.items()}
        return {name: arrays[name] for name in names}, {name: arrays[name] for name in observed}

    def with_data(self, *args: Any, **kwargs: Any) -> "NumPyroTarget":
        """The same model on other data of the same shapes: fitting it compiles nothing anew."""
        arguments, arrays = split_arguments(args, kwargs)
        described = [describe(self.arguments, self.arrays), describe(arguments, arrays)]
        if arguments != self.arguments or described[0] != described[1]:
            raise ValueError(
                f"with_data takes arguments like those of the fit, {described[0]}, got {described[1]}. "
                "Make a new target with relbo.from_numpyro for data of another shape."
            )
        return _with_starts(NumPyroTarget(self.model, self.facts, arguments, arrays))

    def _split(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        z = jnp.asarray(z, self.dtype)
        if z.shape != (self.dim,):
            raise ValueError(f"expected one point of shape ({self.dim},), got {z.shape}. Use jax.vmap for a batch.")
        ends = np.cumsum([site.size for site in self.facts.latents])
        pairs = zip(self.facts.latents, ends, strict=True)
        return {site.name: z[end - site.size : end].reshape(site.flat_shape) for site, end in pairs}

    def _split_constrained(self, z) -> dict[str, Array]:
        values = self.constrain(z)
        return {site.name: values[site.name] for site in self.facts.latents}

    def _latent_values(self, params: PyTree) -> dict[str, Array]:
        given = {}
        for site in self.facts.latents:
            if site.name not in params:
                raise ValueError(
                    f"params has no {site.name!r}; it takes {', '.join(s.name for s in self.facts.latents)}."
                )
            if jnp.shape(params[site.name]) != site.shape:
                shape = jnp.shape(params[site.name])
                raise ValueError(f"{site.name!r} must have shape {site.shape}, got {shape}. Use jax.vmap for a batch.")
            given[site.name] = jnp.asarray(params[site.name], self.dtype)
        return given

    def _trace(self, values: dict[str, Array]) -> dict[str, Any]:
        args, kwargs = self.arguments.fill(self.arrays)
        model = handlers.substitute(self._fixed(self.model, self._all_rows()), data=values)
        with _quiet():
            return handlers.trace(model).get_trace(*args, **kwargs)

    def _all_rows(self) -> dict[str, Array]:
        return _all_rows(self.facts)

    def _fixed(self, model, batch: dict[str, Array]):
        """The model with its subsampled plates at these indices, and its other randomness at a fixed seed."""
        if self.facts.needs_key:
            model = handlers.seed(model, jax.random.key(_SEED))
        return _at_rows(model, batch)


def read_target(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NumPyroTarget:
    """What `from_numpyro` returns."""
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model, a function, got {type(model).__name__}.")
    arguments, arrays = split_arguments(args, kwargs)
    with plain_data_named(args, kwargs):
        return _with_starts(NumPyroTarget(model, read_model(model, arguments, arrays), arguments, arrays))


def _with_starts(target: NumPyroTarget) -> NumPyroTarget:
    initial = find_starts(target, "the model's log density", lambda: _report(target))
    return NumPyroTarget(target.model, target.facts, target.arguments, target.arrays, initial)


def _report(target: NumPyroTarget) -> str:
    """What is wrong with the sites at the origin. On concrete values, so that NumPyro can warn by itself."""
    args, kwargs = target.arguments.fill(target.arrays)
    named = bound(target.model, args, kwargs)

    def trace() -> dict[str, Any]:
        return target._trace(target._split_constrained(target.initial[0]))

    return report(trace, target.facts, {name: value for name, value in named.items() if is_data(value)})


@partial(compiled, runs_once=True)
def _observed(target: NumPyroTarget) -> dict[str, Array]:
    trace = target._trace(target._split_constrained(target.initial[0]))
    return {site.name: jnp.asarray(trace[site.name]["value"]) for site in target.facts.of_kind("observed")}


def _all_rows(facts: Facts) -> dict[str, Array]:
    return {plate.name: jnp.arange(plate.size) for plate in facts.subsampled}


def _at_rows(model, batch: dict[str, Array]):
    return handlers.substitute(model, data=batch) if batch else model


def _enumerated(model, plate_nesting: int):
    funsor = require("numpyro.contrib.funsor", extra="enumeration")
    return funsor.enum(funsor.config_enumerate(model), -plate_nesting - 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without NumPyro's warning that a subsampled plate was given all its rows, which is what we mean."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subsample_size does not match")
        yield

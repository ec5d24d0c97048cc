"""A PyMC model as a target: its log density in JAX, its names and axes, and its own forward sampling."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from relbo.runtime.require import require
from relbo.runtime.words import shorten
from relbo.targets.base import AbstractTarget
from relbo.targets.checks import check_at_example, has_hessian
from relbo.targets.layout import Layout, read_example
from relbo.targets.pymc.data import put, readable_errors, replace_data
from relbo.targets.pymc.graphs import Graphs, graphs_of
from relbo.targets.pymc.report import report
from relbo.targets.search import NUM_TRIED, Tries, from_prior, uniform
from relbo.targets.starts import NUM_DRAWS, starting_points

_SUPPORTS = {None: "real", "log": "positive", "logodds": "unit interval"}
"""Of PyMC's transforms, by their names; the others are named after where they lead."""


@dataclass(frozen=True)
class Dim:
    """A dim of the model, with its labels if it has any."""

    name: str
    length: int
    labels: tuple[Any, ...] | None

    def coords(self) -> np.ndarray:
        return np.arange(self.length) if self.labels is None else np.array(self.labels)


class PyMCTarget(AbstractTarget):
    """The posterior of a PyMC model. Made by `from_pymc`.

    The coordinates are PyMC's unconstrained values, in the order of `model.free_RVs`. `pm.Data` and other shared
    variables are array leaves, copied from the model; arrays written into the model are constants of the program.
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    layout: Layout = eqx.field(static=True)
    graphs: Graphs = eqx.field(static=True)
    labeled: tuple[Dim, ...] = eqx.field(static=True)
    num_rows: tuple[int, ...] = eqx.field(static=True)
    data: tuple[Array, ...]

    def __init__(
        self,
        graphs: Graphs,
        layout: Layout,
        initial: Float[Array, "num dim"],
        data: tuple[Array, ...],
        *,
        twice_differentiable: bool,
    ):
        self.dim, self.dtype = layout.dim, layout.dtype
        self.differentiable, self.twice_differentiable = True, twice_differentiable
        self.initial, self.layout, self.graphs, self.data = initial, layout, graphs, data
        self.labeled = _read_dims(graphs)
        self.num_rows = tuple(int(num) for num in graphs.num_rows())

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        (value,) = self.graphs.log_density(self._values(z), self.data)
        return jnp.asarray(value, self.dtype)

    def held_data(self) -> tuple[Array, ...]:
        return self.data

    def constrain(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """The free variables in the model's own space, and the deterministics."""
        values = map(jnp.asarray, self.graphs.constrain(self._values(z), self.data))
        return dict(zip(self.graphs.constrained_names, map(self._in_dtype, values), strict=True))

    def unconstrain(self, params: Mapping[str, Any]) -> Float[Array, " dim"]:
        """The inverse of `constrain`. Deterministics may be there, and are not looked at."""
        point = jax.ShapeDtypeStruct((self.dim,), self.dtype)
        shapes = {name: value.shape for name, value in jax.eval_shape(lambda z: self.constrain(z), point).items()}
        names = self.layout.names
        missing = [name for name in names if name not in params]
        unexpected = [name for name in params if name not in shapes]
        if missing or unexpected:
            raise ValueError(
                f"params must hold the free variables {', '.join(names)} by name; missing: "
                f"{', '.join(missing) or 'none'}; unknown to the model: {', '.join(unexpected) or 'none'}."
            )
        for name in names:
            if jnp.shape(params[name]) != shapes[name]:
                raise ValueError(
                    f"parameter {name!r} must have shape {shapes[name]}, got {jnp.shape(params[name])}. "
                    "unconstrain takes one point: use jax.vmap for a batch."
                )
        values = self.graphs.unconstrain([jnp.asarray(params[name], self.dtype) for name in names], self.data)
        return self.layout.unconstrain_leaves([jnp.asarray(value, self.dtype) for value in values])

    def coordinate_names(self) -> list[str]:
        return self.layout.coordinate_names()

    def _values(self, z: Float[Array, " dim"]) -> list[Array]:
        return list(self.layout.constrain(z).values())

    def _in_dtype(self, value: Array) -> Array:
        return value.astype(self.dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value

    def supports(self) -> dict[str, str]:
        """By PyMC's transforms: a variable without one is real, or its density is zero where it is not."""
        transforms = self.graphs.model.rvs_to_transforms
        names = {rv.name: getattr(transforms[rv], "name", None) for rv in self.graphs.model.free_RVs}
        return {name: _SUPPORTS.get(transform, str(transform)) for name, transform in names.items()}

    def dims(self) -> dict[str, tuple[str, ...]]:
        """Those of the model; an axis of a variable that has no name there is called as ArviZ would call it."""
        return {
            name: tuple(axis if axis is not None else f"{name}_dim_{number}" for number, axis in enumerate(axes))
            for name, axes in self.graphs.model.named_vars_to_dims.items()
        }

    def coords(self) -> dict[str, np.ndarray]:
        return {dim.name: dim.coords() for dim in self.labeled}

    def log_likelihood(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        terms = self.graphs.log_likelihood(self._values(z), self.data)
        names = [rv.name for rv in self.graphs.model.observed_RVs]
        return {name: jnp.asarray(term, self.dtype) for name, term in zip(names, terms, strict=True)}

    def observed_data(self) -> dict[str, np.ndarray]:
        with self._in_model():
            values = map(np.array, self.graphs.observations())
            return {rv.name: value for rv, value in zip(self.graphs.model.observed_RVs, values, strict=True)}

    def constant_data(self) -> dict[str, np.ndarray]:
        """`pm.Data`, but for what is only observed."""
        find_constants = require("pymc.backends.arviz", extra="pymc").find_constants
        with self._in_model():
            return {name: np.array(value) for name, value in find_constants(self.graphs.model).items()}

    def with_data(self, *, coords: Mapping[str, Any] | None = None, **data: Any) -> "PyMCTarget":
        """The posterior given other values of `pm.Data`, and other labels of dims. The model keeps its own.

        The same compiled programs serve data of the same shapes.
        """
        with self._in_model(data, coords) as shapes, readable_errors(shapes, data):
            return from_pymc(self.graphs.model)

    def predict(self, draws: PyTree, seed: int, /, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """Posterior predictive draws of the observed variables, by `pm.sample_posterior_predictive`.

        `kwargs` are new values of `pm.Data`, and `coords` new labels of dims as `pm.set_data` takes them; the model
        keeps its own. As always in PyMC, an observed variable has the shape of its data unless it was given one
        (`shape=mu.shape`), and a free variable that depends on changed data, be it by its shape alone, is drawn anew
        from its prior; PyMC's log line "Sampling: [...]" names it.
        """
        coords = kwargs.pop("coords", None)
        if args:
            raise TypeError("predict takes new data by the names of pm.Data, as keyword arguments.")
        if self.subsamples:
            raise ValueError(
                "a model with pm.Minibatch predicts random rows only. Write the same model without pm.Minibatch, and "
                "call relbo.from_pymc(that_model).predict(draws, seed)."
            )
        pymc, arviz = require("pymc", extra="pymc"), require("arviz", extra="pymc")
        known = arviz.from_dict(
            posterior={name: np.asarray(values)[None] for name, values in draws.items()},
            constant_data=self.constant_data() or None,
            coords=self.coords(),
            dims={name: list(axes) for name, axes in self.dims().items()},
        )
        model = self.graphs.model
        with self._in_model(kwargs, coords) as shapes, readable_errors(shapes, kwargs):
            predicted = pymc.sample_posterior_predictive(
                known, model=model, random_seed=seed, progressbar=False, return_inferencedata=False
            )
        return {name: np.asarray(values)[0] for name, values in predicted.items()}

    def sample_prior(self, num_draws: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """By `pm.sample_prior_predictive`. Potentials are ignored, as PyMC will warn."""
        if self.subsamples:
            raise ValueError(
                "a model with pm.Minibatch samples random rows only. Write the same model without pm.Minibatch, and "
                "sample its prior."
            )
        pymc, model = require("pymc", extra="pymc"), self.graphs.model
        with self._in_model():
            drawn = pymc.sample_prior_predictive(num_draws, model=model, random_seed=seed, return_inferencedata=False)
        observed = [rv.name for rv in model.observed_RVs]
        return {name: drawn[name] for name in self.graphs.constrained_names}, {name: drawn[name] for name in observed}

    @property
    def subsamples(self) -> bool:
        return len(self.num_rows) > 0

    def draw_batch(self, key: Key[Array, ""]) -> tuple[Array, ...]:
        """One vector of row numbers, drawn with replacement as PyMC does, for every `pm.Minibatch`."""
        keys = jax.random.split(key, len(self.num_rows))
        sizes = zip(keys, self.graphs.batch_sizes, self.num_rows, strict=True)
        return tuple(jax.random.randint(each, (size,), 0, num) for each, size, num in sizes)

    def log_density_on(self, z: Float[Array, " dim"], batch: Sequence[Array]) -> Float[Array, ""]:
        """The log density with the terms of the given rows scaled up to `total_size`."""
        (value,) = self.graphs.log_density_on(self._values(z), self.data, batch)
        return jnp.asarray(value, self.dtype)

    @contextlib.contextmanager
    def _in_model(
        self, new_data: Mapping[str, Any] | None = None, coords: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, tuple[int, ...]]]:
        """The model holds this target's data and labels, with `new_data` instead of some; afterwards, its own again.

        Yields the shapes of all `pm.Data` without the new ones.
        """
        model = self.graphs.model
        lengths = {model.dim_lengths[dim.name]: dim.length for dim in self.labeled}
        own = dict(zip(self.graphs.shared, self.data, strict=True)) | dict(self.graphs.sizes)
        own |= {variable: length for variable, length in lengths.items() if hasattr(variable, "set_value")}
        labels = {dim.name: dim.labels for dim in self.labeled}
        before = {variable: variable.get_value() for variable in own}, dict(model.coords)
        try:
            put(model, own, labels)
            shapes = {variable.name: variable.get_value().shape for variable in model.data_vars}
            replace_data(model, new_data or {}, coords)
            yield shapes
        finally:
            put(model, *before)


def from_pymc(model: Any) -> PyMCTarget:
    """A target from a PyMC model, checked before it is returned. `relbo.fit(model)` calls this by itself.

    Arguments:
        model: a `pymc.Model` whose free variables are all continuous. Transforms, deterministics, potentials, missing
            data, dims and coords are PyMC's. PyTensor translates its log density to JAX; it is computed in float64 if
            JAX has x64 enabled, else in float32, whatever PyTensor's `floatX` is.

    `pm.Data` may be changed with `pm.set_data`: a target keeps the data that it was made with, and `from_pymc(model)`
    once more gives one with the new data, for which nothing is compiled again if the shapes are the same. With
    `pm.Minibatch` the observed variables need their `total_size`; the log density itself always uses all rows.

    The first starting point is `model.initial_point()`; the others are jittered by U(-1, 1), as PyMC does. Where
    density or gradient are not finite at the first, one of those takes its place, or a draw from (-2, 2) or the prior.

    Raises:
        TypeError: if it is not a PyMC model.
        ValueError: if a free variable is discrete, there is none, PyTensor cannot translate the model, or the log
            density or its gradient is not finite at a hundred points: with the variables and observations at fault.

    Example:
        >>> import pymc as pm
        >>> with pm.Model() as model:
        ...     mu = pm.Normal("mu", 0.0, 10.0)
        ...     sigma = pm.HalfNormal("sigma", 1.0)
        ...     y = pm.Normal("y", mu, sigma, observed=[1.0, 2.0, 4.0])
        >>> from_pymc(model).coordinate_names()
        ['mu', 'sigma']
    """
    pymc = require("pymc", extra="pymc")
    if not isinstance(model, pymc.Model):
        raise TypeError(f"from_pymc takes a pymc.Model, got {type(model).__name__}.")
    _refuse(model)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
    graphs = _translated(model, dtype)
    start = [value.astype(dtype) for value in graphs.initial_point()]
    layout, start = read_example(OrderedDict(zip([rv.name for rv in model.free_RVs], start, strict=True)), None)
    rng = np.random.default_rng(0)
    jittered = [value + rng.uniform(-1, 1, (NUM_DRAWS, *value.shape)).astype(dtype) for value in start]
    initial = starting_points(layout, start, OrderedDict(zip(layout.names, jittered, strict=True)))
    data = tuple(_data_array(variable.get_value(), dtype) for variable in graphs.shared)
    target = PyMCTarget(graphs, layout, initial, data, twice_differentiable=False)
    try:
        target = check_at_example(target, _other_starts(target), "model.initial_point()", lambda: report(target))
    except ValueError as error:
        error.add_note("initval= moves the initial point, and model.debug() looks at every term.")
        raise
    return PyMCTarget(graphs, layout, target.initial, data, twice_differentiable=has_hessian(target))


def _other_starts(target: PyMCTarget) -> Iterator[Tries]:
    """Where the initial point will not do."""
    initial = np.asarray(target.initial)
    yield Tries("a point near it", initial[1:])
    yield uniform(target.dim, target.dtype, 2 * NUM_DRAWS)
    yield from from_prior(target, 2 * NUM_DRAWS)
    yield uniform(target.dim, target.dtype, NUM_TRIED, seed=1)


def _refuse(model: Any) -> None:
    if not model.free_RVs:
        raise ValueError("the model has no free random variables, so there is nothing to infer.")
    discrete = [model.values_to_rvs[value].name for value in model.discrete_value_vars]
    if discrete:
        raise ValueError(
            f"the free variables {shorten(discrete)} are discrete, and a density on R^d has no place for them. "
            "Marginalise them: pm.Mixture sums out a categorical, pymc_extras.marginalize does so for a whole model."
        )


def _translated(model: Any, dtype: np.dtype[Any]) -> Graphs:
    """The graphs of the model, having seen that the log density can be had in JAX."""
    try:
        graphs = graphs_of(model, dtype)
        _ = graphs.log_density  # made here, where the error is readable
    except NotImplementedError as error:
        raise ValueError(
            "PyTensor cannot translate this model's log density to JAX. Give its compiled functions to "
            f"relbo.from_callable, as model.logp_dlogp_function does. PyTensor says: {str(error).splitlines()[0]}"
        ) from error
    return graphs


def _read_dims(graphs: Graphs) -> tuple[Dim, ...]:
    pairs = zip(graphs.model.coords.items(), graphs.dim_lengths(), strict=True)
    return tuple(Dim(name, int(length), None if labels is None else tuple(labels)) for (name, labels), length in pairs)


def _data_array(value: Any, dtype: np.dtype[Any]) -> Array:
    array = np.array(value)  # a copy: what the user does to the data later must not reach the target
    return jax.device_put(array.astype(dtype) if array.dtype.kind == "f" else array)

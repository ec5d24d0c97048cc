"""The graphs of a PyMC model as JAX functions.

PyMC writes a model as PyTensor graphs of random variables. Here they become graphs of three kinds of inputs, and then
JAX functions of arrays: the values of the free variables (unconstrained), the data (every shared variable, such as
`pm.Data`), and the indices of minibatches. `pm.Minibatch` draws its rows inside the graph; its outputs are replaced by
all rows, or by the rows at given indices.
"""

import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from relbo.runtime.require import require
from relbo.targets.pymc.translate import translate

Function = Callable[..., list[Any]]


class Graphs:
    """The JAX functions of one model in one dtype, each made when it is first used. Compared by identity.

    Functions take sequences of arrays: the unconstrained values in the order of `model.free_RVs`, the data in the order
    of `shared`, and where it says so the indices, one vector for every `pm.Minibatch`.
    """

    def __init__(self, model: Any, dtype: np.dtype[Any]):
        self.model, self.dtype = model, dtype
        named = [*model.basic_RVs, *model.deterministics, *model.potentials]
        values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
        self.minibatches = _minibatches([*named, *values])
        self._rows = {rows: _without_length(rows) for node in self.minibatches for rows in node.outputs[:-1]}
        self.free = list(model.free_RVs)
        self.free_values = [model.rvs_to_values[rv] for rv in self.free]
        self.observed, self.observed_values = _split(_substitute([*model.observed_RVs, *values], self._rows))
        self.deterministics = _substitute(model.deterministics, self._rows)
        self.potentials = _substitute(model.potentials, self._rows)
        self._refuse_unscaled()
        terms = self._log_density_terms
        shared = _shared([*terms, *self._constrained, *self._unconstrained[1], *self._all_rows([])])
        _refuse_unusual(shared)
        self.shared = [variable for variable in shared if not _may_be_size(variable)]
        self.shared += [variable for variable in model.data_vars if _is_array(variable) and variable not in shared]
        self.sizes = [(variable, variable.get_value()) for variable in shared if _may_be_size(variable)]

    def still_hold(self) -> bool:
        """Whether the shared integers that became constants, because they may be sizes, have kept their values."""
        return all(np.array_equal(variable.get_value(), value) for variable, value in self.sizes)

    def _refuse_unscaled(self) -> None:
        """A minibatch may enter only through an observed variable that knows how many rows there are in all."""
        scaled = require("pymc.variational.minibatch_rv", extra="pymc").MinibatchRandomVariable
        rows = set(self._rows.values())
        for name, variable in zip(_names(self.model.observed_RVs), self.observed, strict=True):
            values = self.observed_values[self.observed.index(variable)]
            if _depends([variable, values], rows) and not _is_made_by(variable, scaled):
                raise ValueError(
                    f"the observed variable {name!r} uses pm.Minibatch without total_size, so its log likelihood would "
                    "not be scaled to all data. Pass total_size=number of rows to it."
                )
        others = [*_substitute(self.free, self._rows), *self.potentials]
        for name, variable in zip(_names([*self.free, *self.model.potentials]), others, strict=True):
            if _depends([variable], rows):
                raise ValueError(
                    f"{name!r} depends on pm.Minibatch but is not an observed variable, so there is no way to scale it "
                    "to all data. Use minibatches in observed variables with total_size only, or all data."
                )

    # The graphs

    @cached_property
    def _log_density_terms(self) -> list[Any]:
        """The log density of every free and observed variable and potential, in this order, with Jacobians.

        This is `model.logp(sum=False)`, for a model whose minibatches have any length: PyMC would write the length of
        the batch into the graph as a constant, and with it the scale.
        """
        basic = require("pymc.logprob.basic", extra="pymc")
        variables = [*self.free, *self.observed]
        transforms = map(self.model.rvs_to_transforms.get, self.model.free_RVs + self.model.observed_RVs)
        terms = basic.transformed_conditional_logp(
            variables,
            rvs_to_values=dict(zip(variables, [*self.free_values, *self.observed_values], strict=True)),
            rvs_to_transforms=dict(zip(variables, transforms, strict=True)),
        )
        return [*terms, *self.model.replace_rvs_by_values(self.potentials)]

    @property
    def constrained_names(self) -> list[str]:
        return _names([*self._by_transform, *self.model.deterministics])

    @property
    def _by_transform(self) -> list[Any]:
        """The free variables in PyMC's order of output: those without a transform come first."""
        return sorted(self.free, key=lambda rv: self.model.rvs_to_transforms[rv] is not None)

    @cached_property
    def _constrained(self) -> list[Any]:
        return self.model.replace_rvs_by_values([*self._by_transform, *self.deterministics])

    @cached_property
    def _unconstrained(self) -> tuple[list[Any], list[Any]]:
        """Fresh variables in the model's own space, and the unconstrained values as graphs of them."""
        inputs = [rv.type(name=rv.name) for rv in self.free]
        outputs = []
        for rv, value in zip(self.free, inputs, strict=True):
            transform = self.model.rvs_to_transforms[rv]
            outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
        return inputs, _substitute(outputs, dict(zip(self.free, inputs, strict=True)))

    def _all_rows(self, indices: Sequence[Any]) -> list[Any]:
        """What stands for the rows of the minibatches: all of them, or those at the indices."""
        pairs = itertools.zip_longest(self.minibatches, indices)
        return [rows if index is None else rows[index] for node, index in pairs for rows in node.inputs[:-1]]

    # The functions

    @cached_property
    def log_density(self) -> Function:
        """(values, data) to the log density, a list of one scalar."""
        return self._in_jax(self.free_values, [_total(self._log_density_terms)])

    @cached_property
    def log_density_on(self) -> Function:
        """(values, data, indices) to the estimate on minibatches."""
        tensor = require("pytensor.tensor", extra="pymc")
        indices = [tensor.vector(dtype="int64") for _ in self.minibatches]
        return self._in_jax(self.free_values, [_total(self._log_density_terms)], indices)

    @cached_property
    def log_likelihood(self) -> Function:
        """(values, data) to the terms of the observed variables."""
        start = len(self.free)
        return self._in_jax(self.free_values, self._log_density_terms[start : start + len(self.observed)])

    @cached_property
    def terms(self) -> Function:
        """(values, data) to the terms of the free and the observed variables and the potentials, in this order."""
        return self._in_jax(self.free_values, self._log_density_terms)

    @cached_property
    def constrain(self) -> Function:
        """(values, data) to the variables called `constrained_names`."""
        return self._in_jax(self.free_values, self._constrained)

    @cached_property
    def unconstrain(self) -> Function:
        """(constrained values, data) to the unconstrained values."""
        return self._in_jax(*self._unconstrained)

    # What depends on the data and is not traced

    @cached_property
    def initial_point(self) -> Callable[[], list[np.ndarray]]:
        """The model's initial point in unconstrained space, with the data that the model holds at the time."""
        make = require("pymc.initial_point", extra="pymc").make_initial_point_fn
        point = make(model=self.model, return_transformed=True)
        return lambda: [np.asarray(point(0)[value.name]) for value in self.free_values]

    @cached_property
    def observations(self) -> Callable[[], list[np.ndarray]]:
        """The values of the observed variables, all rows, with the data that the model holds at the time."""
        rows = dict(zip(self._rows.values(), self._all_rows([]), strict=True))
        return _evaluator(_substitute(self.observed_values, rows))

    @cached_property
    def dim_lengths(self) -> Callable[[], list[np.ndarray]]:
        """The lengths of the model's dims, at the time."""
        return _evaluator(list(self.model.dim_lengths.values()))

    @cached_property
    def num_rows(self) -> Callable[[], list[np.ndarray]]:
        """How many rows every `pm.Minibatch` draws from, at the time."""
        return _evaluator([node.inputs[0].shape[0] for node in self.minibatches])

    @property
    def batch_sizes(self) -> list[int]:
        return [node.outputs[0].type.shape[0] for node in self.minibatches]

    def _in_jax(self, values: Sequence[Any], outputs: Sequence[Any], indices: Sequence[Any] = ()) -> Function:
        """A JAX function of (values, data) or (values, data, indices)."""
        outputs = _substitute(outputs, dict(zip(self._rows.values(), self._all_rows(indices), strict=True)))
        constants = {variable: variable.type.make_constant(value) for variable, value in self.sizes}
        data = [variable.type() for variable in self.shared]
        outputs = _substitute(outputs, constants | dict(zip(self.shared, data, strict=True)))
        function = translate([*values, *data, *indices], outputs)

        def call(*arguments: Sequence[Any]) -> list[Any]:
            with warnings.catch_warnings():
                # PyTensor casts to float64 by name; with x64 off JAX says every time that it gave float32.
                warnings.filterwarnings("ignore", message="Explicitly requested dtype")
                return list(function(*itertools.chain.from_iterable(arguments)))

        return call


_GRAPHS: weakref.WeakValueDictionary[tuple[Any, ...], Graphs] = weakref.WeakValueDictionary()
"""A `Graphs` holds its model, so while an entry is here no other model can have the same id."""


def graphs_of(model: Any, dtype: np.dtype[Any]) -> Graphs:
    """The same object for the same model, so that its programs are compiled once, whatever data it holds by now."""
    key = id(model), dtype, tuple(model.named_vars)
    graphs = _GRAPHS.get(key)
    if graphs is None or not graphs.still_hold():
        graphs = Graphs(model, dtype)
        _GRAPHS[key] = graphs
    return graphs


def _evaluator(outputs: Sequence[Any]) -> Callable[[], list[np.ndarray]]:
    """A function without arguments, for small things: made quickly rather than well."""
    return require("pytensor", extra="pymc").function([], list(outputs), mode="FAST_COMPILE")


def _substitute(outputs: Sequence[Any], replacements: dict[Any, Any]) -> list[Any]:
    """The graphs with variables replaced, shapes and all.

    PyTensor's `clone_replace` insists on the static shape of what it replaces, which here is the batch size.
    """
    traversal = require("pytensor.graph.traversal", extra="pymc")
    known = dict(replacements)
    for node in traversal.toposort(outputs):
        if any(variable in known for variable in node.inputs):
            inputs = [known.get(variable, variable) for variable in node.inputs]
            clone = node.clone_with_new_inputs(inputs, strict=False)
            known = dict(zip(node.outputs, clone.outputs, strict=True)) | known
    return [known.get(variable, variable) for variable in outputs]


def _minibatches(variables: Sequence[Any]) -> list[Any]:
    traversal = require("pytensor.graph.traversal", extra="pymc")
    op = require("pymc.data", extra="pymc").MinibatchOp
    made = [variable for variable in traversal.ancestors(variables) if _is_made_by(variable, op)]
    return list(dict.fromkeys(variable.owner for variable in made))


def _is_made_by(variable: Any, op: type) -> bool:
    return variable.owner is not None and isinstance(variable.owner.op, op)


def _without_length(rows: Any) -> Any:
    return rows.type.clone(shape=(None, *rows.type.shape[1:]))(name=rows.name)


def _shared(outputs: Sequence[Any]) -> list[Any]:
    traversal = require("pytensor.graph.traversal", extra="pymc")
    kind = require("pytensor.compile.sharedvalue", extra="pymc").SharedVariable
    return [variable for variable in traversal.graph_inputs(outputs) if isinstance(variable, kind)]


def _is_array(variable: Any) -> bool:
    return _is_of_type(variable, require("pytensor.tensor.type", extra="pymc").TensorType)


def _is_of_type(variable: Any, kind: type) -> bool:
    """By its type in the graph, which is not its class."""
    return isinstance(variable.type, kind)


def _may_be_size(variable: Any) -> bool:
    """JAX has to know sizes when it traces, and PyMC holds those of its dims as shared integers."""
    return variable.ndim == 0 and variable.dtype.startswith(("int", "uint"))


def _refuse_unusual(shared: Sequence[Any]) -> None:
    kind = require("pytensor.tensor.random.type", extra="pymc").RandomType
    if any(_is_of_type(variable, kind) for variable in shared):
        raise ValueError(
            "the model draws random numbers outside its named random variables (for instance a .dist() inside a "
            "pm.Deterministic or pm.Potential), so it has no fixed log density. Give them names, or leave them out."
        )
    other = [str(variable) for variable in shared if not _is_array(variable)]
    if other:
        raise ValueError(f"the shared variables {', '.join(other)} are not dense arrays. Make them dense for JAX.")


def _depends(outputs: Sequence[Any], inputs: set[Any]) -> bool:
    traversal = require("pytensor.graph.traversal", extra="pymc")
    return any(variable in inputs for variable in traversal.ancestors(outputs))


def _total(terms: Sequence[Any]) -> Any:
    tensor = require("pytensor.tensor", extra="pymc")
    return tensor.add(*[term.sum() for term in terms]) if len(terms) > 1 else terms[0].sum()


def _names(variables: Sequence[Any]) -> list[str]:
    return [variable.name for variable in variables]


def _split(both: list[Any]) -> tuple[list[Any], list[Any]]:
    half = len(both) // 2
    return both[:half], both[half:]

"""A PyTensor graph as a JAX function."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo.runtime.require import require
from relbo.targets.pymc.ops import jax_backend, log, log_erfc, replacements


def translate(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """PyTensor's rewrites for JAX, and its translation. Parameters outside their domain give -inf, as in PyMC."""
    backend = jax_backend()
    graph = require("pytensor.graph.fg", extra="pymc").FunctionGraph(inputs, outputs, clone=True)
    mode = require("pytensor.compile.mode", extra="pymc").JAX
    _drop_idle_checks(graph)
    # XLA fuses by itself, and fused nodes would hide the functions that are replaced below; PyTensor's own way with
    # log(erfc(x)) is made for the dtype of the graph, which need not be that of the program.
    mode = mode.including("local_check_parameter_to_ninf_switch").excluding("fusion", "local_log_erfc")
    mode.optimizer.rewrite(graph)
    _replace_functions(graph)
    with warnings.catch_warnings(), jax.ensure_compile_time_eval():
        warnings.filterwarnings("ignore", message="Skipping .* Op")  # assertions, which JAX has no place for
        return backend.jax_funcify(graph)


def _drop_idle_checks(graph: Any) -> None:
    """A sigmoid lies in [0, 1]. To check that costs as much as the rest of a logistic regression."""
    tensor = require("pytensor.tensor", extra="pymc")
    for node in graph.toposort():
        if isinstance(node.op, tensor.math.All) and node.outputs[0].ndim == 0 and _holds_for_sigmoid(node.inputs[0]):
            graph.replace(node.outputs[0], tensor.constant(np.array(True)))


def _holds_for_sigmoid(condition: Any) -> bool:
    """Whether the condition is `sigmoid(x) >= 0` or `sigmoid(x) <= 1`."""
    basic, special = require("pytensor.scalar.basic", extra="pymc"), require("pytensor.scalar.math", extra="pymc")
    read_constant = require("pytensor.tensor.basic", extra="pymc").get_underlying_scalar_constant_value
    for comparison, limit in ((basic.GE, 0), (basic.LE, 1)):
        if _applies(condition, comparison):
            left, right = condition.owner.inputs
            return _applies(left, special.Sigmoid) and bool(read_constant(right, raise_not_constant=False) == limit)
    return False


def _applies(variable: Any, function: type) -> bool:
    """Whether PyTensor gets the variable by this function, entry by entry."""
    return variable.owner is not None and isinstance(getattr(variable.owner.op, "scalar_op", None), function)


def _replace_functions(graph: Any) -> None:
    """Put our functions where PyTensor's are. Those inside a `scan` stay as they are."""
    jax_op = require("pytensor.link.jax.ops", extra="pymc").JAXOp
    erfc = require("pytensor.scalar.math", extra="pymc").Erfc
    functions = replacements()
    for node in graph.toposort():
        function, inputs = functions.get(type(getattr(node.op, "scalar_op", node.op))), node.inputs
        if function is log and _applies(inputs[0], erfc):
            function, inputs = log_erfc, inputs[0].owner.inputs
        if function is not None:
            (old,) = node.outputs
            op = jax_op([each.type for each in inputs], [old.type], _returning_tuple(function))
            graph.replace(old, op(*inputs))


def _returning_tuple(function: Callable[..., Any]) -> Callable[..., tuple[Any]]:
    return lambda *arguments: (function(*map(jnp.asarray, arguments)),)

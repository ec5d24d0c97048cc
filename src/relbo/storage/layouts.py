"""A layout of parameters, a trace, and the sizes of a flow, as JSON."""

import dataclasses
from collections import OrderedDict
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from relbo.families.autoregressive import Flow, identity_flow
from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.storage.objects import decode_number, encode_number
from relbo.targets.layout import Layout, Leaf
from relbo.targets.supports import assign_supports, support_words

_MOST_NESTED = 50  # below the limit of recursion, for a forged file

Arrays = dict[str, np.ndarray]
PARTS = ("objective", "oracle", "step_rule", "estimator", "first_ascent", "refinement", "preconditioner")
"""Of a booster: settings that are objects."""


def encode_layout(layout: Layout) -> dict[str, Any] | None:
    """None if a support has no name that a file could hold."""
    words = [None if leaf.support is None else support_words(leaf.support.constraint) for leaf in layout.leaves]
    if any(leaf.support is not None and word is None for leaf, word in zip(layout.leaves, words, strict=True)):
        return None
    leaves = [
        {"name": leaf.name, "shape": list(leaf.shape), "flat_shape": list(leaf.flat_shape), "support": word}
        for leaf, word in zip(layout.leaves, words, strict=True)
    ]
    return {"tree": _encode_tree(layout), "leaves": leaves}


def decode_layout(data: dict[str, Any] | None, dtype: np.dtype[Any]) -> Layout | None:
    if data is None:
        return None
    leaves = tuple(_decode_leaf(leaf) for leaf in data["leaves"])
    numbers, treedef = jax.tree.flatten(_decode_tree(data["tree"], 0))
    if numbers != list(range(len(leaves))):
        raise ValueError("the tree of parameters does not match its leaves")
    return Layout(treedef, leaves, dtype)


def _encode_tree(layout: Layout) -> Any:
    """The containers of the example, with numbers for leaves; what JSON cannot name becomes a dict of paths."""
    try:
        return _encode_node(jax.tree.unflatten(layout.treedef, range(len(layout.leaves))))
    except TypeError:
        return {"ordered": [[leaf.name, number] for number, leaf in enumerate(layout.leaves)]}


def _encode_node(node: Any) -> Any:
    if node is None or type(node) is int:
        return node
    if type(node) in (list, tuple):
        return {type(node).__name__: [_encode_node(item) for item in node]}
    if type(node) in (dict, OrderedDict) and all(isinstance(key, str) for key in node):
        kind = "dict" if type(node) is dict else "ordered"
        return {kind: [[key, _encode_node(value)] for key, value in node.items()]}
    raise TypeError


def _decode_node_items(kind: str, items: Any, depth: int) -> Any:
    if kind in ("list", "tuple"):
        made = [_decode_tree(item, depth + 1) for item in items]
        return made if kind == "list" else tuple(made)
    if kind in ("dict", "ordered"):
        pairs = [(str(key), _decode_tree(value, depth + 1)) for key, value in items]
        return dict(pairs) if kind == "dict" else OrderedDict(pairs)
    raise ValueError(f"unknown container {kind!r}")


def _decode_tree(data: Any, depth: int) -> Any:
    if depth > _MOST_NESTED:
        raise ValueError("the tree of parameters is nested too deeply")
    if data is None or type(data) is int:
        return data
    ((kind, items),) = data.items()
    return _decode_node_items(kind, items, depth)


def _decode_leaf(data: dict[str, Any]) -> Leaf:
    name, shape, flat_shape = str(data["name"]), _shape(data["shape"]), _shape(data["flat_shape"])
    words = data["support"]
    if words is None:
        if shape != flat_shape:
            raise ValueError(f"the real parameter {name!r} has shapes {shape} and {flat_shape}")
        return Leaf(name, shape, flat_shape, None)
    if type(words) is list:
        if words[0] == "zero_sum" and words[1] not in range(1, len(shape) + 1):
            raise ValueError(f"a zero-sum support of {words[1]!r} axes of shape {shape}")
        words = (words[0], *(np.asarray(bound) if type(bound) is list else bound for bound in words[1:]))
    (support,) = assign_supports(words, [name])
    leaf = Leaf(name, shape, flat_shape, support)
    made = jax.eval_shape(leaf.constrain, jax.ShapeDtypeStruct((leaf.size,), np.float32))[0].shape
    if made != shape:
        raise ValueError(f"the support of {name!r} makes shape {made} of {flat_shape}, not {shape}")
    return leaf


def _shape(sizes: Any) -> tuple[int, ...]:
    if not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise ValueError(f"{sizes!r} is not a shape")
    return tuple(sizes)


def encode_estimate(estimate: Estimate | None) -> Any:
    if estimate is None:
        return None
    numbers = (encode_number(float(estimate.value)), encode_number(float(estimate.std_err)))
    return [*numbers, int(estimate.num_draws)]


def decode_estimate(data: Any) -> Estimate:
    value, std_err, num_draws = data
    if type(num_draws) is not int:
        raise ValueError(f"{num_draws!r} is not a number of draws")
    return Estimate(decode_number(value), decode_number(std_err), num_draws)


_ESTIMATES = ("elbo", "improvement", "gap", "objective")
_NUMBERS = ("step_size", "seconds", "nan_fraction", "compile_seconds", "spread", "rounding")


def encode_record(record: Record) -> dict[str, Any]:
    data = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    data |= {name: encode_estimate(data[name]) for name in _ESTIMATES}
    data |= {name: encode_number(float(data[name])) for name in _NUMBERS}
    counts = {field.name: int(data[field.name]) for field in dataclasses.fields(record) if field.type is int}
    return data | counts | {"weights": [encode_number(weight) for weight in record.weights.tolist()]}


def _counts(data: dict[str, int]) -> dict[str, int]:
    """JSON's keys are texts; what is no object has no items, and the file is refused for it."""
    if not all(type(count) is int for _, count in data.items()):
        raise ValueError(f"the evaluations of a record are {data!r}")
    return data


def decode_record(data: dict[str, Any], dtype: np.dtype[Any]) -> Record:
    values = dict(data)
    values |= {name: None if data[name] is None else decode_estimate(data[name]) for name in _ESTIMATES}
    values |= {name: decode_number(data[name]) for name in _NUMBERS if name in data}
    values["spent"] = _counts(data.get("spent", {}))  # files of the first format do not say
    values["weights"] = np.asarray([decode_number(weight) for weight in data["weights"]], dtype)
    for field in dataclasses.fields(Record):
        if field.type in (int, bool, str) and type(values.get(field.name, field.default)) is not field.type:
            raise ValueError(f"{field.name} of a record is {values[field.name]!r}")
    return Record(**values)


def encode_flow(flow: Flow | None) -> dict[str, Any] | None:
    """The sizes of its layers, and whether coordinates are skewed before them."""
    if flow is None:
        return None
    return {"layers": flow.num_layers, "units": flow.num_units, "skewed": flow.skew is not None}


def flow_like(data: Any, dim: int, dtype: np.dtype[Any]) -> Flow:
    """The shapes of a flow of these sizes."""
    layers, units = data["layers"], data["units"]
    skewed = data.get("skewed", False)  # files of older versions say nothing of it
    if not all(type(size) is int and 0 <= size < 2**12 for size in (layers, units)) or units == 0:
        raise ValueError(f"a flow cannot have {layers!r} layers of {units!r} units")
    if type(skewed) is not bool:
        raise ValueError(f"a flow is skewed or not, and {skewed!r} is neither")
    return jax.eval_shape(lambda: identity_flow(dim, dtype, layers, units, skewed))


def named_leaves(name: str, tree: PyTree) -> Arrays:
    """The leaves of a tree by the names that a file has for them."""
    return {f"{name}/{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}

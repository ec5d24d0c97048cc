"""Checks of the two functions of a target of rows, before anything is fitted to it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from relbo.targets.arguments import UNTRACEABLE, check_call
from relbo.targets.rows.reading import ahead
from relbo.targets.rows.sources import AbstractRows
from relbo.targets.rows.sums import RowModel
from relbo.targets.search import name_entries

_SEVERAL = 3  # neither one, which broadcasts, nor a likely length of a row


def check_functions(model: RowModel, row: PyTree[np.ndarray]) -> None:
    """Trace both, and see that the one returns a number and the other one for every row."""
    layout = model.layout
    structs = [jax.ShapeDtypeStruct(leaf.shape, layout.dtype) for leaf in layout.leaves]
    params = jax.tree.unflatten(layout.treedef, structs)
    for name, function in (("log_prior", model.log_prior), ("log_likelihood", model.log_likelihood)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}.")
        try:
            hash(function)
        except TypeError as error:
            raise TypeError(
                f"{name} of type {type(function).__name__} cannot be hashed, so JAX could not tell whether it is "
                "already compiled. Give a plain function."
            ) from error
    several = jax.tree.map(lambda leaf: jnp.asarray(np.repeat(leaf, _SEVERAL, axis=0)), row)
    prior = _traced("log_prior(params)", model.log_prior, params)
    if getattr(prior, "shape", None) != ():
        raise ValueError(f"log_prior must return a scalar, got {_told(prior)}. Sum over parameters inside it.")
    each = _traced("log_likelihood(params, rows)", model.log_likelihood, params, several)
    if getattr(each, "shape", None) != (_SEVERAL,):
        raise ValueError(
            f"log_likelihood must return one number for every row, of shape (num_rows,), got {_told(each)} for "
            f"{_SEVERAL} rows. Do not sum over rows: relbo does, chunk by chunk. Sum over the other axes of a row."
        )
    for name, out in (("log_prior", prior), ("log_likelihood", each)):
        if not jnp.issubdtype(out.dtype, jnp.floating):
            raise TypeError(f"{name} must return floats, got dtype {out.dtype}. Compute it in floating point.")


def _traced(what: str, function: Any, *args: Any) -> Any:
    check_call(what, function, args, {})
    try:
        return jax.eval_shape(function, *args)
    except UNTRACEABLE as error:
        raise TypeError(
            f"{what} cannot be traced by JAX: it turns a parameter or a row into a Python or NumPy value, or branches "
            f"on one. Write it with jax.numpy. JAX says: {str(error).splitlines()[0]}"
        ) from error
    except Exception as error:
        error.add_note(f"(raised by {what}, traced by JAX, with {_SEVERAL} rows)")
        raise


def _told(out: Any) -> str:
    return f"shape {out.shape}" if hasattr(out, "shape") else type(out).__name__


def check_one_by_one(model: RowModel, rows: PyTree[np.ndarray], z: np.ndarray) -> None:
    """A row's log likelihood must not depend on which other rows are in the chunk with it."""
    num = len(jax.tree.leaves(rows)[0])
    params = model.layout.constrain(jnp.asarray(z))
    together = np.asarray(model.log_likelihood(params, jax.tree.map(jnp.asarray, rows)))
    last = np.asarray(model.log_likelihood(params, jax.tree.map(lambda leaf: jnp.asarray(leaf[num - 1 :]), rows)))
    tolerance = np.sqrt(np.finfo(model.layout.dtype).eps) * (1 + np.abs(together[-1]))
    if np.isfinite(together[-1]) and not np.abs(together[-1] - last[0]) <= tolerance:
        raise ValueError(
            f"the log likelihood of row {num - 1} is {together[-1]:.6g} among {num} rows and {last[0]:.6g} by itself: "
            "it must not depend on the other rows. Compute means, scales and the like of the data beforehand."
        )


def name_nan_rows(source: AbstractRows, size: int) -> str:
    """NaN in the data is the commonest reason for NaN in the density: where the first are, or ""."""
    start = 0
    for rows in ahead(source.pieces(size)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
            if leaf.dtype.kind == "f" and np.isnan(leaf).any():
                some = name_entries(f"rows{jax.tree_util.keystr(path)}", leaf, np.isnan(leaf))
                return f"The data contain NaN, first among rows {start:,} to {start + len(leaf) - 1:,}: {some}."
        start += len(jax.tree.leaves(rows)[0])
    return ""

"""Why a PyMC model has no density: which variables, and which of their observations."""

from typing import Any

import numpy as np

from relbo.targets.search import name_entries, name_nan


def report(target: Any) -> str:
    """Sentences about the terms of the model that are not finite at the first starting point, and about NaN in data."""
    graphs, start = target.graphs, target.initial[0]
    model = graphs.model
    values = target.constrain(start) | target.observed_data()
    variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    terms = graphs.terms(target._values(start), target.data)
    shared = zip(graphs.shared, target.data, strict=True)
    sentences = [name_nan((str(variable.name), np.asarray(value)) for variable, value in shared)]
    for variable, term in zip(variables, map(np.asarray, terms), strict=True):
        sentences.append(_describe(variable, term, values.get(variable.name), variable in model.observed_RVs))
    return " ".join(filter(None, sentences))


def _describe(variable: Any, term: np.ndarray, value: Any, observed: bool) -> str:
    bad = ~np.isfinite(term)
    if not bad.any():
        return ""
    if value is None:
        return f"The potential {variable.name!r} is {name_entries(variable.name, term, bad)}."
    which = "NaN" if np.isnan(term).any() else "-inf" if (term == -np.inf).any() else "+inf"
    meaning = ": outside its support, or given parameters outside their domain" if which == "-inf" else ""
    value = np.asarray(value)
    if value.shape[: term.ndim] != term.shape:
        value = np.broadcast_to(value, term.shape)
    count = f"of {bad.size} " if bad.size > 1 else ""
    return (
        f"The log probability of {bad.sum()} {count}{'observations' if observed else 'values'} of {variable.name!r} "
        f"({_kind(variable)}) is {which}{meaning}: {name_entries(variable.name, value, bad)}."
    )


def _kind(variable: Any) -> str:
    """The name of its distribution."""
    names = getattr(variable.owner.op, "_print_name", None)
    return str(names[0]) if names else type(variable.owner.op).__name__

"""Supports: where a parameter lives, and the bijection from unconstrained coordinates onto it.

The bijections and their Jacobians are NumPyro's (`biject_to`), which is imported only if a support is not real. A
support is written as a name (`"positive"`), a name with bounds (`("interval", 0, 5)`) or a NumPyro constraint object.
"""

import difflib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from relbo.runtime.require import require

_REAL = ("real", "real_vector", "real_matrix")
_ALIASES = {"ordered": "ordered_vector", "positive_ordered": "positive_ordered_vector"}
_BOUNDED = {
    "interval": ("lower", "upper"),
    "open_interval": ("lower", "upper"),
    "greater_than": ("lower",),
    "greater_than_eq": ("lower",),
    "less_than": ("upper",),
    "less_than_eq": ("upper",),
    "zero_sum": ("event_dim",),
}


@dataclass(frozen=True, eq=False)
class Support:
    """A NumPyro constraint with the equality and hash that a static field needs.

    NumPyro calls `softplus_positive` and `positive` equal (they are equal as sets), though their bijections differ;
    here type and text have to agree as well.
    """

    constraint: Any
    label: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Support):
            return NotImplemented
        same = type(self.constraint) is type(other.constraint) and repr(self.constraint) == repr(other.constraint)
        return same and bool(self.constraint == other.constraint)

    def __hash__(self) -> int:
        return hash((type(self.constraint), repr(self.constraint)))

    @property
    def event_dim(self) -> int:
        return self.constraint.event_dim

    def bijection(self) -> Any:
        """NumPyro's transform from the unconstrained space onto this support."""
        return _distributions().biject_to(self.constraint)

    def contains(self, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Which of `values`, shape (num, ...), lie in the support: a mask of shape (num,).

        NumPyro's tolerances are absolute in some constraints and follow the dtype in others, so a point counts as
        inside if it is so in float64 or in the target's dtype.
        """
        checks = [np.asarray(self.constraint(values.astype(each))) for each in (np.dtype(np.float64), dtype)]
        return np.any([check.reshape(len(values), -1).all(axis=1) for check in checks], axis=0)


def assign_supports(supports: Any, names: Sequence[str]) -> list[Support | None]:
    """The support of every leaf; None stands for the real line.

    `supports` is one support for all leaves, or a dict / tuple in the structure of the example, cut short anywhere: an
    entry covers all leaves below it. Dict keys may also be whole paths (`"school.tau"`). The longest match wins, and a
    leaf that no entry covers is real.
    """
    entries = _flatten(supports, "")
    assigned: list[Support | None] = [None] * len(names)
    for path, spec in sorted(entries, key=lambda entry: len(entry[0])):
        covered = [i for i, name in enumerate(names) if path in ("", name) or name.startswith(path + ".")]
        if not covered:
            raise ValueError(_unknown_path(path, names))
        support = _read_support(spec, path or "every parameter")
        for i in covered:
            assigned[i] = support
    return assigned


def _flatten(supports: Any, path: str) -> list[tuple[str, Any]]:
    """(path, support) for every support in the tree."""
    if supports is None:
        return []
    if isinstance(supports, dict):
        children = [(str(key), value) for key, value in supports.items()]
    elif isinstance(supports, tuple | list) and not _is_bounded(supports):
        labels = getattr(supports, "_fields", range(len(supports)))
        children = [(str(label), value) for label, value in zip(labels, supports, strict=True)]
    else:
        return [(path, supports)]
    return [entry for label, value in children for entry in _flatten(value, f"{path}.{label}" if path else label)]


def _is_bounded(spec: Sequence[Any]) -> bool:
    """Tell `("interval", 0, 1)`, one support, from `("real", "positive")`, the supports of two leaves."""
    numbers = (int, float, np.generic, np.ndarray, jax.Array)
    return len(spec) > 1 and isinstance(spec[0], str) and all(isinstance(bound, numbers) for bound in spec[1:])


def _unknown_path(path: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(path, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"supports names {path!r}, which the example does not have. Its parameters are: {', '.join(names)}.{hint}"


def _read_support(spec: Any, where: str) -> Support | None:
    if isinstance(spec, str):
        return _from_name(spec, (), where)
    if isinstance(spec, tuple | list):
        return _from_name(spec[0], tuple(spec[1:]), where)
    constraints = _distributions().constraints
    if not isinstance(spec, constraints.Constraint):
        raise TypeError(
            f"the support of {where} must be a name such as 'positive', a tuple such as ('interval', 0, 1) or a "
            f"NumPyro constraint object, got {spec!r} of type {type(spec).__name__}."
        )
    if any(spec is getattr(constraints, name) for name in _REAL):
        return None
    return _checked(Support(spec, repr(spec)), where)


def _from_name(name: str, bounds: tuple[Any, ...], where: str) -> Support | None:
    name = _ALIASES.get(name, name)
    if name in _REAL and not bounds:
        return None
    if name in _BOUNDED:
        return _checked(_bounded(_distributions().constraints, name, bounds, where), where)
    constraint = _plain_constraints().get(name)
    if constraint is None:
        raise ValueError(_unknown_name(name, where))
    if bounds:
        raise ValueError(f"the support {name!r} of {where} takes no bounds, got {bounds!r}. Write {name!r} alone.")
    return _checked(Support(constraint, name), where)


def _plain_constraints() -> dict[str, Any]:
    """NumPyro's constraints that take no bounds, by their names there."""
    constraints = _distributions().constraints
    named = inspect.getmembers(constraints, lambda each: isinstance(each, constraints.Constraint))
    return {name: constraint for name, constraint in named if name not in ("complex", "dependent")}


def _bounded(constraints: Any, name: str, bounds: tuple[Any, ...], where: str) -> Support:
    wanted = _BOUNDED[name]
    if len(bounds) != len(wanted):
        form = ", ".join((repr(name), *wanted))
        raise ValueError(f"the support {name!r} of {where} is written ({form}), got {len(bounds)} bounds: {bounds!r}.")
    if not all(np.all(np.isfinite(np.asarray(bound, float))) for bound in bounds):
        raise ValueError(f"the bounds of {name!r} of {where} must be finite, got {bounds!r}. Leave infinite ones out.")
    if len(wanted) == 2 and not np.all(np.asarray(bounds[0], float) < np.asarray(bounds[1], float)):
        raise ValueError(f"the lower bound of {name!r} of {where} must be below the upper one, got {bounds!r}.")
    label = f"{name}({', '.join(brief(bound) for bound in bounds)})"
    return Support(getattr(constraints, name)(*bounds), label)


def _checked(support: Support, where: str) -> Support:
    """Refuse what has no bijection: discrete supports, and those that NumPyro cannot map."""
    if _is_discrete(support.constraint):
        raise ValueError(
            f"the support {support.label} of {where} is discrete, and a density on R^d has no place for it. "
            "Marginalise discrete parameters (sum them out inside log_density)."
        )
    try:
        support.bijection()
    except NotImplementedError as error:
        raise ValueError(_unknown_name(support.label, where)) from error
    return support


def _unknown_name(name: str, where: str) -> str:
    known = _plain_constraints().items()
    plain = [choice for choice, constraint in known if not _is_discrete(constraint) and _has_bijection(constraint)]
    plain += _ALIASES
    forms = [f"({', '.join((repr(bounded), *wanted))})" for bounded, wanted in _BOUNDED.items()]
    return f"unknown support {name!r} of {where}. Choose one of {', '.join(sorted(plain))}; or {', '.join(forms)}."


def _has_bijection(constraint: Any) -> bool:
    try:
        _distributions().biject_to(constraint)
    except NotImplementedError:
        return False
    return True


def _is_discrete(constraint: Any) -> bool:
    try:
        return bool(constraint.is_discrete)
    except NotImplementedError:  # NumPyro's `dependent` does not know
        return False


def support_words(constraint: Any) -> str | tuple[Any, ...] | None:
    """What a user would write for a NumPyro constraint: a name, or a name with bounds; None if there are no words."""
    constraints = _distributions().constraints
    if isinstance(constraint, constraints.independent):
        return support_words(constraint.base_constraint)
    for name, known in vars(constraints).items():
        if constraint is known and not name.startswith("_"):
            return name
    for name, bounds in _BOUNDED.items():
        if type(constraint) is getattr(constraints, name):
            attributes = [bound if bound == "event_dim" else f"{bound}_bound" for bound in bounds]
            return (name, *(np.asarray(getattr(constraint, attribute)).tolist() for attribute in attributes))
    return None


def name_support(constraint: Any) -> str:
    """A NumPyro constraint for a person to read; the bounds of one may be traced, and are then left out."""
    try:
        words = support_words(constraint)
    except jax.errors.JAXTypeError:
        words = None
    if isinstance(words, str):
        return "real" if words in _REAL else words
    if words is None:
        return type(constraint).__name__.lstrip("_").lower()
    return f"{words[0]}({', '.join(brief(bound) for bound in words[1:])})"


def brief(values: Any) -> str:
    """Numbers as a short text on one line, for error messages."""
    array = np.asarray(values, np.float64)
    text = np.array2string(array, formatter={"float_kind": lambda x: f"{x:.6g}"}, threshold=8, separator=", ")
    return " ".join(text.split())


def _distributions() -> Any:
    return require("numpyro.distributions", extra="numpyro")

"""What a user may choose: names of objects, whole numbers, seeds. One place that complains about typos."""

import difflib
import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def choose_name(option: str, given: str, names: Iterable[str]) -> str:
    """`given` if it is among `names`; else a ValueError that lists them."""
    names = list(names)
    if given not in names:
        raise ValueError(f"Unknown {option} {given!r}. {did_you_mean(given, names)}Choose one of {names}.")
    return given


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """A question that names the nearest, if one is near."""
    near = difflib.get_close_matches(given, list(names), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def whole_number(option: str, given: Any, least: int) -> int:
    """`given` as an integer of at least `least`; NumPy's are integers, too."""
    try:
        number = operator.index(given)
    except TypeError:
        number = least - 1
    if type(given) is bool or number < least:
        raise ValueError(f"{option} must be an integer of at least {least}, got {given!r}.")
    return number


def seed_number(given: Any) -> int:
    """A seed that JAX and a file can hold."""
    number = whole_number("seed", given, 0)
    if number >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {given!r}.")
    return number


def choose_object(option: str, given, named: Mapping[str, T], kind: type[T]) -> T:
    """The object that `given` names, or `given` itself if it is of the right kind already."""
    if isinstance(given, kind):
        return given
    if isinstance(given, str):
        return named[choose_name(option, given, named)]
    raise ValueError(
        f"{option} must be one of {list(named)} or a {kind.__name__.removeprefix('Abstract')} object, "
        f"got {type(given).__name__}."
    )

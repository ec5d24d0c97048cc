"""Strings as shorthands for objects: one place that looks them up and complains about typos."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def choose_name(option: str, given: str, names: Iterable[str]) -> str:
    """`given` if it is among `names`; else a ValueError that lists them."""
    names = list(names)
    if given not in names:
        raise ValueError(f"Unknown {option} {given!r}. Choose one of {names}.")
    return given


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

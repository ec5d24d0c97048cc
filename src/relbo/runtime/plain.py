"""Values as JSON has them."""

import functools
import math
from types import NoneType
from typing import Any


@functools.singledispatch
def plain(value: Any) -> Any:
    """Dicts, lists, texts and numbers; null for a number that is not finite, since JSON has none. Light to import.

    A class registers its own answer; arrays become lists, and whatever else there is becomes its text.

    >>> plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


@plain.register(str | int | NoneType)
def _(value):
    return value


@plain.register
def _(value: float):
    return value if math.isfinite(value) else None


@plain.register
def _(value: dict):
    return {str(name): plain(part) for name, part in value.items()}


@plain.register(list | tuple)
def _(value):
    return [plain(part) for part in value]

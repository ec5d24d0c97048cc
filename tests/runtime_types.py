"""The run-time type checker of the tests: beartype, read as a static checker would read the annotations."""

from typing import Any, Self

from beartype import BeartypeConf, beartype

_LIKE_MYPY = BeartypeConf(is_pep484_tower=True)  # an int will do where a float is asked for


def checked(function):
    """`function` with its annotations checked at every call.

    jaxtyping's import hook decorates methods one by one, where beartype refuses `Self`: it is read as `Any`.
    """
    annotations = getattr(function, "__annotations__", {})
    if Self in annotations.values():
        function.__annotations__ = {name: Any if hint is Self else hint for name, hint in annotations.items()}
    return beartype(conf=_LIKE_MYPY)(function)

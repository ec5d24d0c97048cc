"""What a function does, in a few bytes that are the same in another process."""

import hashlib
import types
from typing import Any


def fingerprint(function: types.FunctionType) -> str:
    """Of its instructions, constants and defaults, and of what it has taken along from around it; not of where it
    stands in a file, nor of what the names mean that it looks up when it is called."""
    return hashlib.blake2b(repr(_parts(function)).encode(), digest_size=16).hexdigest()


def _parts(value: Any) -> Any:
    if type(value) is types.FunctionType:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return _parts([value.__code__, value.__defaults__, value.__kwdefaults__, cells])
    if type(value) is types.CodeType:
        return [value.co_code, value.co_names, value.co_varnames, _parts(list(value.co_consts))]
    if type(value) in (list, tuple):
        return [_parts(each) for each in value]
    if type(value) is frozenset:  # in an order of its own in every process
        return sorted(map(repr, value))
    return repr(value)

r"""The file: a header in JSON and arrays, in one piece, with a checksum. Nothing in it is ever executed.

| bytes | what |
|---|---|
| 0-7 | the magic bytes `\x93RELBO\r\n` (a transfer that mends line ends breaks them, and is found out) |
| 8-11 | the version of the format, an unsigned little-endian integer of 32 bits |
| 12-19 | the length of the whole file in bytes, 64 bits |
| 20-27 | the length of the header in bytes, 64 bits |
| 28- | the header: JSON in UTF-8, filled up with blanks so that the arrays begin at a multiple of 64 |
| ... | the arrays, little-endian and in C order, each beginning at a multiple of 64 |
| last 32 | SHA-256 of everything before |

The header's `arrays` gives name, dtype, shape and offset of each array. Written by hand, because the formats there are
(npz, safetensors, HDF5) lack the checksum or the header, or would be a dependency for this alone.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

FORMAT = 1
"""The version that is written. Every version up to it can be read."""

_MAGIC = b"\x93RELBO\r\n"
_FIXED = struct.Struct("<8sIQQ")
_ALIGNMENT = 64  # bytes, a cache line: arrays can be mapped
_CHECKSUM = 32  # bytes of SHA-256
_TEMPORARY = ".relbo-tmp"
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
           "float64")  # fmt: skip


class NewerFormat(ValueError):
    """A file of a version to come."""


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    """The parts of the file, to be written one after the other."""
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    for name, array in stored.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}, and a file holds {', '.join(DTYPES)}.")
    table, offset = {}, 0
    for name, array in stored.items():
        table[name] = {"dtype": array.dtype.name, "shape": list(np.shape(arrays[name])), "offset": offset}
        offset += _padded(array.nbytes)
    text = json.dumps({**header, "arrays": table}, allow_nan=False, separators=(",", ":"), default=_plain).encode()
    text += b" " * (_padded(_FIXED.size + len(text)) - _FIXED.size - len(text))
    length = _FIXED.size + len(text) + offset + _CHECKSUM
    parts = [_FIXED.pack(_MAGIC, FORMAT, length, len(text)), text]
    for array in stored.values():
        raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        parts += [raw, bytes(_padded(len(raw)) - len(raw))]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return [*parts, checksum.digest()]


def unpack(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file's bytes; `name` is what messages call it. Raises ValueError for anything else."""
    length, header_length = _read_fixed(data, name)
    if hashlib.sha256(memoryview(data)[: length - _CHECKSUM]).digest() != data[length - _CHECKSUM :]:
        raise ValueError(f"{name} is damaged: its checksum does not match. Take another copy of it.")
    start = _FIXED.size + header_length
    try:
        header = json.loads(data[_FIXED.size : start].decode(), parse_constant=_no_constant)
        arrays, total = {}, 0
        for key, entry in header.pop("arrays").items():
            arrays[key] = _read_array(data, start, length - _CHECKSUM, entry)
            total += arrays[key].nbytes
            if total > length:
                raise ValueError("arrays overlap")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} is not a file of relbo: its header cannot be read ({error}).") from error
    return header, arrays


def _read_fixed(data: bytes, name: str) -> tuple[int, int]:
    if not data.startswith(_MAGIC):
        short = f"{name} is empty" if not data else f"{name} is not a file of relbo"
        raise ValueError(f"{short}: it does not begin as a file written by relbo.save does.")
    if len(data) < _FIXED.size:
        raise ValueError(f"{name} is cut short: it has {len(data)} bytes, fewer than any file of relbo.")
    _, version, length, header_length = _FIXED.unpack_from(data)
    if version > FORMAT:
        raise NewerFormat(
            f"{name} has format {version}, and this version of relbo reads formats up to {FORMAT}. Upgrade relbo."
        )
    if version < 1:
        raise ValueError(f"{name} is damaged: it says that it has format {version}, which never was.")
    if length != len(data):
        state = "cut short" if len(data) < length else "damaged"
        raise ValueError(f"{name} is {state}: it has {len(data)} bytes, and should have {length}.")
    if _FIXED.size + header_length + _CHECKSUM > length:
        raise ValueError(f"{name} is damaged: its header would be longer than the file.")
    return length, header_length


def _read_array(data: bytes, start: int, end: int, entry: dict[str, Any]) -> np.ndarray:
    shape, offset = entry["shape"], entry["offset"]
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"unknown dtype {entry['dtype']!r}")
    if not all(type(number) is int and number >= 0 for number in [*shape, offset]):
        raise ValueError(f"shape {shape!r} and offset {offset!r} must be whole numbers of at least zero")
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    count = math.prod(shape)
    if start + offset + count * dtype.itemsize > end:
        raise ValueError("an array lies beyond the end of the file")
    array = np.frombuffer(data, dtype, count, start + offset).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def write_atomically(
    path: str | os.PathLike, parts: Iterable[bytes], *, before_replace: Callable[[], None] | None = None
) -> None:
    """Write a file that is there whole or not at all: a temporary file beside it, fsync, rename, fsync of the folder.

    Whenever the process is killed or the disk is full, the file that was there before is still there, whole.
    """
    path = os.path.realpath(os.fspath(path))
    folder, base = os.path.split(path)
    temporary = os.path.join(folder, f".{base}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # a file that is there keeps its mode, where the system knows of modes
            os.chmod(temporary, os.stat(path).st_mode & 0o777)
        if before_replace is not None:
            before_replace()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def remove_leftovers(path: str) -> None:
    """Temporary files of writers that were killed. Only for whoever knows that nobody else is writing to `path`."""
    folder, base = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(base)}\.[0-9a-f]+{re.escape(_TEMPORARY)}")
    for name in os.listdir(folder):
        if ours.fullmatch(name):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")


def _sync_folder(folder: str) -> None:
    """So that the new name survives a power cut. Not every system can, and the file is whole either way."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

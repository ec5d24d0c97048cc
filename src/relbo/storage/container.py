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
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

FORMAT = 1
"""The version that is written. Every version up to it can be read."""

_MAGIC = b"\x93RELBO\r\n"
_FIXED = struct.Struct("<8sIQQ")
_ALIGNMENT = 64
_CHECKSUM = 32
_TEMPORARY = ".relbo-tmp"
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
           "float64")  # fmt: skip


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    """The parts of the file, to be written one after the other."""
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    for name, array in stored.items():
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}, and a file holds {', '.join(_DTYPES)}.")
    table, offset = {}, 0
    for name, array in stored.items():
        table[name] = {"dtype": array.dtype.name, "shape": list(np.shape(arrays[name])), "offset": offset}
        offset += _padded(array.nbytes)
    text = json.dumps({**header, "arrays": table}, allow_nan=False, separators=(",", ":")).encode()
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
    if hashlib.sha256(data[: length - _CHECKSUM]).digest() != data[length - _CHECKSUM :]:
        raise ValueError(f"{name} is damaged: its checksum does not match. Take another copy of it.")
    start = _FIXED.size + header_length
    try:
        header = json.loads(data[_FIXED.size : start].decode(), parse_constant=_no_constant)
        arrays = {
            key: _read_array(data, start, length - _CHECKSUM, entry) for key, entry in header.pop("arrays").items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
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
        raise ValueError(
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
    if entry["dtype"] not in _DTYPES:
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
    path = os.path.abspath(os.fspath(path))
    folder, base = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{base}.", suffix=_TEMPORARY, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _usual_mode())
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
    for name in os.listdir(folder):
        if name.startswith(f".{base}.") and name.endswith(_TEMPORARY):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _usual_mode() -> int:
    """What `open` would have given the file; a temporary file is its owner's alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: str) -> None:
    """So that the new name survives a power cut. Not every system can, and the file is whole either way."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

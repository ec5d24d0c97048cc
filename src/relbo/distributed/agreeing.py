"""What the processes of one fit tell each other, beside sums over data: very little, and always all of them at once.

Every process runs the same loop with the same seed on the same numbers, so that it decides the same. What may differ
between them (versions, settings, data, clocks, a file that only one of them reads) is compared, or the first's taken.
"""

import hashlib
import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

_DIGEST = 16  # bytes: two that differ never agree by chance
_LONGEST = 2000  # bytes of an error that the first process passes on
_ALIKE = "Start all of them with the same environment, the same program and the same arguments."


def versions() -> dict[str, str]:
    """Of what decides about bits."""
    names = ("relbo", "jax", "jaxlib", "numpy")
    found = {f"the version of {name}": importlib.metadata.version(name) for name in names}
    x64 = {"jax_enable_x64": str(jax.config.read("jax_enable_x64"))}
    return found | {"the version of Python": platform.python_version()} | x64


def gathered(content: bytes) -> list[bytes]:
    """What every process has to say, in their order; all say as many bytes."""
    own = np.frombuffer(content, np.uint8)
    return [bytes(row) for row in np.asarray(multihost_utils.process_allgather(own)).reshape(-1, len(own))]


def check_same(facts: Mapping[str, Any]) -> None:
    """Raise a ValueError, in every process, that names those facts in which the processes differ."""
    names = list(facts)
    own = b"".join(_digest(str(facts[name]).encode()) for name in names)
    number = len(names).to_bytes(4, "big")
    if len(set(gathered(number))) > 1:
        raise ValueError(f"The processes do not do the same: {_ALIKE}")
    all_of_them = gathered(own)
    different = [
        name
        for index, name in enumerate(names)
        if len({each[index * _DIGEST : (index + 1) * _DIGEST] for each in all_of_them}) > 1
    ]
    if different:
        mine = "; ".join(f"{name}: {_brief(facts[name])}" for name in different)
        raise ValueError(
            f"The processes of this fit differ in {', '.join(different)}. Process {jax.process_index()} has {mine}. "
            f"{_ALIKE}"
        )


def from_first(make: Callable[[], bytes]) -> bytes:
    """What `make` returns in the first process, in all of them. A ValueError that it raises is raised in all, too."""
    content, failed = b"", 0
    if is_first():
        try:
            content = make()
        except ValueError as error:
            content, failed = str(error).encode()[:_LONGEST], 1
    length = np.asarray([len(content) >> 16, len(content) & 0xFFFF, failed], np.int32)  # JAX may have no 64 bits
    high, low, failed = (int(part) for part in multihost_utils.broadcast_one_to_all(length))
    num = (high << 16) + low
    own = np.frombuffer(content, np.uint8) if is_first() else np.zeros(num, np.uint8)
    content = bytes(np.asarray(multihost_utils.broadcast_one_to_all(own), np.uint8)) if num else b""
    if failed:
        raise ValueError(content.decode(errors="replace"))
    return content


def is_first() -> bool:
    return jax.process_index() == 0


def digest_of(arrays: Any) -> bytes:
    """A short fingerprint of the arrays of a tree."""
    found = hashlib.blake2b(digest_size=_DIGEST)
    for leaf in jax.tree.leaves(arrays):
        found.update(np.ascontiguousarray(leaf).view(np.uint8).data)
    return found.digest()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _brief(fact: Any) -> str:
    text = str(fact)
    return text if len(text) <= 120 else f"{text[:120]}..."

"""Before relbo is imported: shapes are checked at run time in every test, and XLA compiles fast rather than well."""

import os
import pathlib

import jax
import pytest
from jaxtyping import install_import_hook

# Compiling is most of what the tests wait for; the programs are small, and LLVM need not polish them.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

install_import_hook("relbo", "runtime_types.checked")


MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Every compiled program takes some of the 65,530 memory maps of a process, and without any left XLA crashes."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()

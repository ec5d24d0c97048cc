"""Before relbo is imported: shapes are checked at run time in every test, and XLA compiles fast rather than well."""

import os
import pathlib

import jax
import pytest
from jaxtyping import install_import_hook

# Compiling is most of what the tests wait for. Their programs are small and run once or twice: neither LLVM nor XLA's
# fusions need polish them, and both processors are at work already.
FAST_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("XLA_FLAGS", FAST_COMPILATION)

install_import_hook("relbo", "runtime_types.checked")

import relbo._compiled  # noqa: E402

relbo._compiled._options = lambda runs_once: {}  # what the flags above say, in place of what is good for users

MOST_MAPS = 20_000

SHARE_NOTHING = ("test_families", "test_steps", "test_targets", "test_targets_bad_input", "test_objectives")
"""Modules whose tests compile programs of their own: any process may run any of them, and they fill up the end."""


@pytest.hookimpl(tryfirst=True)  # before the test runner reads the marks
def pytest_collection_modifyitems(items):
    """One process runs the tests of one module, which share fits and the programs compiled for them."""
    for item in items:
        module = item.path.stem
        if module not in SHARE_NOTHING and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(module))


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Every compiled program takes some of the 65,530 memory maps of a process, and without any left XLA crashes."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()

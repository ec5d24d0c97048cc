"""Before relbo is imported: shapes are checked at run time in every test, and XLA compiles fast rather than well.

After it is: flows are trained with fewer steps than users get."""

import gc
import os
import pathlib

import jax
import pytest

from groups import LONGEST, group_of
from runtime_types import check_types_of

# Compiling is most of what the tests wait for. Their programs are small and run once or twice: neither LLVM nor XLA's
# fusions need polish them, and both processors are at work already.
FAST_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("XLA_FLAGS", FAST_COMPILATION)

check_types_of("relbo")

import relbo.coordinates.learning  # noqa: E402
import relbo.model.door  # noqa: E402
import relbo.runtime.compiling  # noqa: E402

# What the flags above say, in place of what is good for users.
for module in (relbo.runtime.compiling, relbo.model.door):
    module.compile_options = lambda *_, **__: {}

TEST_STEPS = {"_FEW_STEPS": 100, "_MANY_STEPS": 150}
"""Of a round of training a flow, in place of 400 and 1,500: enough to bend, though not as near as users come."""
for name, num_steps in TEST_STEPS.items():
    setattr(relbo.coordinates.learning, name, num_steps)

MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Every compiled program takes some of the 65,530 memory maps of a process, and without any left XLA crashes."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()


def pytest_collection_finish():
    """All that was imported stays: searched again and again for what may be forgotten, it cost a tenth of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


# Who runs what. The marks of pytest-xdist's own loadgroup have no effect: its version 3.8 writes them to a field that
# pytest 9.2 no longer reads.


def pytest_collection_modifyitems(items):
    """The longest groups begin first, and single tests fill up the end."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    group = group_of(nodeid)
    return len(LONGEST) + (group == nodeid) if group not in LONGEST else LONGEST.index(group)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """One process runs the tests of one group, which share fits and the programs compiled for them."""

        def _split_scope(self, nodeid):
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None

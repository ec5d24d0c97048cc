"""The programs of a fit can be lowered for CUDA and TPU: seen here, where there is neither."""

import json
import pathlib
import subprocess
import sys

import pytest

WORKER = pathlib.Path(__file__).parents[1] / "lowering_worker.py"


@pytest.mark.parametrize("fits", ["default", pytest.param("others", marks=pytest.mark.slow)])
def test_the_programs_of_a_fit_can_be_lowered_for_accelerators(fits):
    done = subprocess.run([sys.executable, str(WORKER), fits], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    programs = [json.loads(line) for line in done.stdout.splitlines()]
    names = {program["name"].rpartition(".")[2] for program in programs}
    assert {"evaluate", "_refine_step"} <= names  # the model, and a step of all components
    wrong = [(each["name"], platform, what) for each in programs for platform, what in each["said"].items() if what]
    assert not wrong, wrong
    assert all("cuda" in each["said"] for each in programs) and any("tpu" in each["said"] for each in programs)


def test_a_program_for_the_cpu_alone_would_be_seen():
    """What a Stan program is to JAX, and nothing else here may be."""
    import jax
    import numpy as np

    from lowering_worker import Program

    def only_here(x):
        return jax.lax.platform_dependent(x, cpu=lambda y: y + 1)

    leaves, structure = jax.tree.flatten(((jax.ShapeDtypeStruct((2,), np.float32),), {}))
    program = Program("only_here", only_here, structure, leaves)
    assert program.lowered("cuda") and program.lowered("tpu")

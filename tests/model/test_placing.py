"""What is said where work cannot be divided among devices. (That it is: `distributed/test_two_processes.py`.)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.distributed.starting import check_divides


def on_host(z):
    return -0.5 * float(np.sum(z**2)), -z


@pytest.fixture
def mesh():
    return jax.make_mesh((1,), ("data",))


@pytest.fixture
def target():
    return relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2))


def test_a_function_on_the_host_is_refused(mesh):
    with pytest.raises(ValueError, match="mesh= needs a model that JAX can evaluate on every device; CallableTarget"):
        relbo.fit(relbo.from_callable(on_host, 2), mesh=mesh)


def test_what_to_divide_needs_a_mesh(target):
    with pytest.raises(ValueError, match=r"there is no mesh\. Pass mesh="):
        relbo.fit(target, shard="data")


def test_a_mesh_is_jaxs(target):
    with pytest.raises(ValueError, match=r"mesh must be a jax.sharding.Mesh, .* got 2"):
        relbo.fit(target, mesh=2)


def test_there_are_two_ways_to_divide(target, mesh):
    with pytest.raises(ValueError, match="shard"):
        relbo.fit(target, mesh=mesh, shard="rows")


def test_rows_that_cannot_be_divided_evenly_are_refused():
    check_divides(12, 4)
    with pytest.raises(ValueError, match="13 rows of data cannot be divided evenly among 4 devices: 1 is left over"):
        check_divides(13, 4)


def test_one_process_reads_all_rows():
    assert relbo.local_rows(7) == slice(0, 7)

"""Arrays that lie on several devices, perhaps of several processes: what is given to programs, and what comes back.

A program one of whose arguments is spread runs on all devices of that argument's mesh, in every process that has some.
XLA divides the work by where the rows of data are, and sums. Everything else (points, mixtures, random numbers) is the
same everywhere: `everywhere` gives it to the program as it is, without a word between processes, and `here` takes the
results, which are the same everywhere too, as plain arrays of this process. So whoever calls a program need not know.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree


@functools.cache
def _several_devices() -> bool:
    return jax.device_count() > 1


def is_spread(leaf: Any) -> bool:
    """Whether an array lies on several devices."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    return isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh.size > 1


def mesh_of(leaves: Iterable[Any]) -> Mesh | None:
    """The mesh of the first array that is spread; None where there is none."""
    if not _several_devices():
        return None
    return next((leaf.sharding.mesh for leaf in leaves if is_spread(leaf)), None)


def num_processes(mesh: Mesh | None) -> int:
    """How many processes have devices in a mesh; without one, this process is alone."""
    return 1 if mesh is None else len({device.process_index for device in mesh.devices.flat})


def by_rows(mesh: Mesh) -> NamedSharding:
    """The first axis of an array divided among all devices."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def the_same(mesh: Mesh) -> NamedSharding:
    """The whole of an array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def automatic(mesh: Mesh) -> Mesh:
    """The same devices, with XLA deciding how to divide what is computed: a model knows nothing of shardings."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def with_automatic_mesh(array: jax.Array) -> jax.Array:
    """A spread array, its parts where they are, on a mesh with automatic axes."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        raise ValueError(
            f"an array of data lies on several devices as {type(sharding).__name__}. Spread it with "
            'jax.device_put(array, NamedSharding(mesh, PartitionSpec("data"))), or with '
            "jax.make_array_from_process_local_data."
        )
    if sharding.mesh == automatic(sharding.mesh):
        return array
    parts = [shard.data for shard in array.addressable_shards]
    moved = NamedSharding(automatic(sharding.mesh), sharding.spec)
    return jax.make_array_from_single_device_arrays(array.shape, moved, parts)


def everywhere(array: Any, mesh: Mesh) -> jax.Array:
    """An array that every process has, on all devices of a mesh; one that is spread stays as it is."""
    if is_spread(array):
        return array
    parts = [jax.device_put(array, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(np.shape(array), the_same(mesh), parts)


def split(array: Any, mesh: Mesh) -> jax.Array:
    """An array that every process has, its rows divided among the devices of a mesh."""
    sharding = by_rows(mesh)
    places = sharding.addressable_devices_indices_map(np.shape(array))
    parts = [jax.device_put(array[place], device) for device, place in places.items()]
    return jax.make_array_from_single_device_arrays(np.shape(array), sharding, parts)


def here(results: PyTree) -> PyTree:
    """Results that are the same on all devices, as arrays of one device of this process.

    On CPUs they are waited for: devices of one process share its threads, and one that waits for the sums of a later
    program could keep another from the sums of an earlier one, forever.
    """
    if jax.default_backend() == "cpu":
        jax.block_until_ready(results)
    return jax.tree.map(lambda result: result.addressable_data(0), results)


def rows_here(leaf: Any) -> int:
    """The length of an array, as far as one device has it."""
    return leaf.sharding.shard_shape(leaf.shape)[0] if is_spread(leaf) else leaf.shape[0]

"""Where the data of a target lie, and how points are divided: over the devices of a mesh."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh

from relbo.distributed.agreeing import check_same, digest_of
from relbo.distributed.starting import check_divides
from relbo.runtime.choices import choose_name
from relbo.runtime.spreading import automatic, by_rows, is_spread, mesh_of, num_processes, the_same
from relbo.targets import AbstractTarget

_MANY = 2**20
"""Numbers of data from which on their rows are divided, and not the points: a gradient then takes far longer than to
sum it over devices (about 0.1 ms), and the data need not be on every device."""


def placed(target: AbstractTarget, mesh: Any, shard: str) -> tuple[AbstractTarget, Mesh | None]:
    """The target with its data on a mesh, and the mesh over which points are divided, None if it is not they.

    Data that lie on several devices already stay there, and their mesh is the one.
    """
    shard = choose_name("shard", shard, ("auto", "data", "points"))
    data = target.held_data()
    data_mesh = mesh_of(jax.tree.leaves(data))
    if mesh is None and data_mesh is None:
        if shard != "auto":
            raise ValueError(
                f"shard={shard!r} says what is divided among devices, and there is no mesh. Pass mesh="
                'jax.make_mesh((jax.device_count(),), ("data",)), or data that lie on several devices.'
            )
        return target, None
    if data is None:
        raise ValueError(
            f"mesh= needs a model that JAX can evaluate on every device; {type(target).__name__} is evaluated on "
            "the host (Stan, from_callable, from_rows). Use from_log_density, from_numpyro or from_pymc, or one device."
        )
    if data_mesh is not None:
        _check_own(data_mesh, mesh, shard)
        return target, None
    mesh = _checked(mesh)
    if mesh.size == 1:
        return target, None
    if shard == "auto":
        shard = "data" if sum(np.size(leaf) for leaf in _rows(data)) >= _MANY else "points"
    if num_processes(mesh) > 1:
        check_same({"their data": digest_of(jax.tree.map(np.asarray, data)).hex()})
    if shard == "points":
        return _put(target, data, mesh, []), mesh
    rows = _rows(data)
    if not rows:
        raise ValueError(
            'shard="data" divides rows of data among devices, and this target has none that JAX could divide: arrays '
            "inside a function are part of its program. Pass them as args= of from_log_density, as arguments of a "
            'NumPyro model, or as pm.Data. Or divide the points: shard="points".'
        )
    check_divides(len(rows[0]), mesh.size)
    return _put(target, data, mesh, rows), None


def _check_own(data_mesh: Mesh, mesh: Any, shard: str) -> None:
    if shard == "points":
        raise ValueError('shard="points" wants the data whole in every process, and they lie on several devices.')
    if mesh is not None and automatic(_checked(mesh)) != data_mesh:
        raise ValueError(f"the data lie on {data_mesh}, and mesh is {mesh}. Leave mesh out, or pass the same.")
    _checked(data_mesh)


def _checked(mesh: Any) -> Mesh:
    if not isinstance(mesh, Mesh):
        raise ValueError(f'mesh must be a jax.sharding.Mesh, such as jax.make_mesh((2,), ("data",)), got {mesh!r}.')
    if num_processes(mesh) not in (1, jax.process_count()) or not len(mesh.local_devices):
        raise ValueError(
            f"mesh has devices of {num_processes(mesh)} of the {jax.process_count()} processes. Give it those of this "
            "process alone, jax.local_devices(), or those of all, jax.devices()."
        )
    return automatic(mesh)


def _rows(data: Any) -> list[Any]:
    """The arrays whose first axis is the longest that there is: the rows. Others are small, and whole everywhere."""
    leaves = [leaf for leaf in jax.tree.leaves(data) if np.ndim(leaf) > 0]
    longest = max((len(leaf) for leaf in leaves), default=0)
    return [leaf for leaf in leaves if len(leaf) == longest > 1]


def _put(target: AbstractTarget, data: Any, mesh: Mesh, rows: list[Any]) -> AbstractTarget:
    """Each process gives its devices what is theirs of what it has."""
    divided = {id(leaf) for leaf in rows}

    def put(leaf):
        sharding = by_rows(mesh) if id(leaf) in divided else the_same(mesh)
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda place: whole[place])

    if not jax.tree.leaves(data):
        return target
    return eqx.tree_at(lambda each: each.held_data(), target, jax.tree.map(put, data))


def spans_processes(target: AbstractTarget) -> bool:
    """Whether part of the data is out of this process's reach."""
    return any(is_spread(leaf) and not leaf.is_fully_addressable for leaf in jax.tree.leaves(target.held_data()))


def is_together(target: AbstractTarget, points_over: Mesh | None) -> bool:
    """Whether several processes run a fit of this target together."""
    return num_processes(points_over or mesh_of(jax.tree.leaves(target.held_data()))) > 1

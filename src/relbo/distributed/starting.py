"""How the processes of a fit come together, and which rows of the data each of them reads."""

import ipaddress
import math

import jax

from relbo.distributed.agreeing import check_same, versions
from relbo.runtime.choices import whole_number

_TIMEOUT = 30
"""Seconds without a sign of life after which a process counts as dead. Who waits for its sums learns of it sooner."""


def init(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = _TIMEOUT,
    wait: int = 300,
) -> None:
    """Join the other processes of a job: `jax.distributed.initialize`, before anything else is done with JAX.

    Under SLURM, Open MPI and on TPU pods and GKE, JAX finds the arguments by itself. Elsewhere `coordinator` is
    "HOST:PORT" of the first process, the same for all; there are `num_processes`, and this is number `process_id`,
    from 0 on. On CPUs they talk by gloo, on GPUs and TPUs by what those have.

    A process that dies, or gives no sign of life for `timeout` seconds, ends the others with an error. `wait` is how
    long, in seconds, the processes wait for each other at the start. Versions that differ are refused.

    Afterwards `jax.devices()` are those of all processes; a fit uses them with `relbo.fit(target, mesh=mesh)`, or
    where its data lie on them already.
    """
    timeout, wait = whole_number("timeout", timeout, 1), whole_number("wait", wait, 1)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which ends a fit in good order
    bind = coordinator if coordinator is not None and _is_loopback(coordinator) else None
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        coordinator_bind_address=bind,
        initialization_timeout=wait,
        heartbeat_timeout_seconds=timeout,
        shutdown_timeout_seconds=timeout,
    )
    if jax.process_count() > 1:
        check_same(versions())


def _is_loopback(address: str) -> bool:
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_rows(num_rows: int) -> slice:
    """The rows of the data that this process reads, of `num_rows` in all: as many for every device.

    >>> import relbo
    >>> relbo.local_rows(1000)  # one process has them all
    slice(0, 1000, None)

    With two processes, the first reads `slice(0, 500)`, and gives its part, `X[relbo.local_rows(1000)]`, to
    `jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), part)`, where `mesh` is
    `jax.make_mesh((jax.device_count(),), ("data",))`. An array made so is what the model is given.
    """
    num_rows = whole_number("num_rows", num_rows, 1)
    check_divides(num_rows, jax.device_count())
    share = num_rows // jax.process_count()
    return slice(jax.process_index() * share, (jax.process_index() + 1) * share)


def check_divides(num_rows: int, num_devices: int) -> None:
    """Every device has as many rows: a log density that is a black box cannot be padded."""
    left = num_rows % num_devices
    if left:
        raise ValueError(
            f"{num_rows:,} rows of data cannot be divided evenly among {num_devices} devices: {left} "
            f"{'is' if left == 1 else 'are'} left over. Leave {'it' if left == 1 else 'them'} out, take "
            f"{math.gcd(num_rows, num_devices)} devices, or, if the model weighs its rows, add {num_devices - left} of "
            'weight zero. shard="points" divides the points instead, and needs no even rows.'
        )

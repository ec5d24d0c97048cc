"""Several processes, on one machine or many, that run one fit: `init` starts them, on JAX's distributed runtime."""

from relbo.distributed.starting import init, local_rows

__all__ = ["init", "local_rows"]

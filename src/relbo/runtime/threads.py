"""How many threads BLAS and LAPACK take: one, while a fit runs.

On the CPU JAX gives factorisations and triangular solves to the LAPACK that SciPy brings, from threads of its own. With
the default settings each such call divides its work among as many threads again as there are processors, and these wait
for each other by spinning: for stacks of matrices of a hundred rows that costs far more than the arithmetic (a step of
refinement in 128 dimensions: 82 ms of CPU time where other processes ran, 3 ms with one thread, and 8 alone).
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import scipy.linalg.cython_lapack  # noqa: F401  (what JAX calls: a limit finds it only once it is loaded)
from threadpoolctl import threadpool_limits

F = TypeVar("F", bound=Callable)


@contextlib.contextmanager
def one_blas_thread(wanted: bool = True) -> Iterator[None]:
    """Inside, BLAS and LAPACK run on the thread that calls them, in the whole process; afterwards as before."""
    if not wanted:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield


def on_one_blas_thread(method: F) -> F:
    """A method of something with a `target`. A target that is a function outside JAX may be a large computation of
    NumPy's: it keeps its threads."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        with one_blas_thread(self.target.on_host() is None):
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]

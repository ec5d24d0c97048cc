"""Lowers the programs of fits for devices that are not here: started by `model/test_lowering.py` with names of fits.

Small fits are made on the CPU, and every program that relbo has compiled for them is noted with the shapes of its
arguments. Then each is traced again as if an accelerator were the device, and lowered for it by `jax.export`, which
compiles and runs nothing. Prints a line of JSON for every program: its name, and what each platform said.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

PLATFORMS = {"cuda": "gpu", "tpu": "tpu"}
"""As `jax.export` calls them, and as `jax.default_backend` does."""
_noted: dict[tuple, tuple] = {}
_jit = jax.jit


def noting_jit(function=None, **options):
    """`jax.jit`, which remembers what relbo's programs are called with."""
    if function is None:
        return lambda given: noting_jit(given, **options)
    run = _jit(function, **options)
    if not getattr(function, "__module__", "").startswith("relbo."):
        return run

    class Noting:
        def __call__(self, *args, **kwargs):
            leaves, structure = jax.tree.flatten((args, kwargs))
            shapes = [_struct(leaf) for leaf in leaves]
            name = f"{function.__module__}.{function.__name__}"
            _noted[name, id(function), str(shapes)] = Program(name, function, structure, shapes)
            return run(*args, **kwargs)

        def __getattr__(self, attribute):
            return getattr(run, attribute)

    return Noting()


def _struct(leaf):
    """Shape and type of an array; what is fixed, such as a length, stays as it is."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array | np.ndarray) else leaf


class Program(NamedTuple):
    name: str
    function: Callable
    structure: Any
    leaves: list

    @property
    def x64(self) -> bool:
        return any(isinstance(leaf, jax.ShapeDtypeStruct) and leaf.dtype == np.float64 for leaf in self.leaves)

    def lowered(self, platform: str) -> str:
        """What went wrong, if anything did."""
        arrays = [leaf for leaf in self.leaves if isinstance(leaf, jax.ShapeDtypeStruct)]

        def anew(arrays):  # what was traced for the CPU is remembered, but not of this function
            rest = iter(arrays)
            leaves = [next(rest) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in self.leaves]
            args, kwargs = jax.tree.unflatten(self.structure, leaves)
            return self.function(*args, **kwargs)

        kept, jax.default_backend = jax.default_backend, lambda: PLATFORMS[platform]
        try:
            with jax.enable_x64(True) if self.x64 else contextlib.nullcontext():
                jax.export.export(_jit(anew), platforms=[platform])(arrays)
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:500]
        finally:
            jax.default_backend = kept
        return ""


def make_fits(names: list[str]) -> None:
    import jax.numpy as jnp

    import mesh_worker
    import relbo

    few = {"progress_bar": False, "max_components": 2}
    if "default" in names:
        density = mesh_worker.make_target("logistic", mesh_worker.data_of("logistic"))
        relbo.diagnose(relbo.fit(density, precondition="affine", **few), num_draws=200)
    if "others" in names:
        plate = mesh_worker.make_target("plate", mesh_worker.data_of("plate"))
        relbo.fit(plate, precondition="flow", **few)
        relbo.fit(plate, family="low_rank_student_t", step="line_search", **few)
        many = relbo.from_log_density(lambda z: -jnp.sum(jnp.cosh(z - z[0])) - z[0] ** 2, jnp.zeros(300))
        relbo.fit(many, max_components=1, progress_bar=False)


def main(names: list[str]) -> None:
    jax.jit = noting_jit
    make_fits(names)
    jax.jit = _jit
    for program in _noted.values():
        platforms = ["cuda"] if program.x64 else list(PLATFORMS)  # a TPU has no float64, and is not asked for it
        said = {platform: program.lowered(platform) for platform in platforms}
        print(json.dumps({"name": program.name, "said": said}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/")[0])
    main(sys.argv[1:])

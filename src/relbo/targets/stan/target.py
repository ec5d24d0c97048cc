"""A Stan program as a target: its density, gradient and constraining map, called by XLA without Python between."""

import json
import logging
import os
import pathlib
import re
from functools import partial
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, PyTree

from relbo.runtime.choices import whole_number
from relbo.targets.base import AbstractTarget
from relbo.targets.layout import one_point
from relbo.targets.search import NUM_STARTS, NUM_TRIED
from relbo.targets.stan.build import build, has_parameters
from relbo.targets.stan.data import read_data, to_arrays
from relbo.targets.stan.library import Description, Library, load


class StanTarget(AbstractTarget):
    """log p of a Stan program, with Jacobians and with all constants. Made by `from_stan`.

    The program is static, and what stands for its data is an array: new data of the same shapes meet the same compiled
    programs. Stan computes in float64; points and results are of the target's dtype. A batch under `vmap` is one call,
    in which C++ loops over the points. Reverse mode works once (no Hessians, no forward mode).
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    program: str = eqx.field(static=True)
    """What the functions of the compiled program are registered under, in the process that made this target."""
    handle: Int32[Array, "2"]
    """A 64-bit number in two words, so that it exists with x64 off: the program with its data, in the process that made
    this target. In another process it means nothing until the same target has been made there."""
    names: tuple[str, ...] = eqx.field(static=True)
    parameters: tuple[str, ...] = eqx.field(static=True)
    entries: dict[str, Int32[Array, "..."]]
    """For every variable an array of its shape: where Stan's flat output has its values."""
    data: dict[str, np.ndarray]

    def __init__(
        self, program: str, handle: int, description: Description, initial: np.ndarray, data: dict[str, np.ndarray]
    ):
        self.dim, self.dtype = initial.shape[1], initial.dtype
        self.differentiable, self.twice_differentiable = True, False
        self.initial, self.program = jnp.asarray(initial), program
        self.handle = jnp.asarray(np.array([handle], np.int64).view(np.int32))
        self.names = tuple(map(_in_brackets, description.coordinates))
        self.parameters = tuple(description.parameters)
        self.entries, self.data = _find_entries(description), data

    def log_density(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return _log_density(self.program, self.handle, one_point(z, self.dim, self.dtype))

    def constrain(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """Parameters, transformed parameters and generated quantities, by name, in the shapes of the program.

        Random numbers are drawn with the target's seed and the bits of `z`: the same point gives the same values, and
        different points independent ones. If the program rejects the point, what it had not yet computed is NaN.
        A complex number is a last axis of two; the members of a tuple `t` are `t.1`, `t.2`.
        """
        size = sum(entry.size for entry in self.entries.values())
        values = _call(self.program, "constrain", self.handle, one_point(z, self.dim, self.dtype), size)
        return {name: values[entry] for name, entry in self.entries.items()}

    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        """The inverse of `constrain`. Needs the parameters only; other names are ignored."""
        missing = [name for name in self.parameters if name not in params]
        if missing:
            raise ValueError(f"params must hold {', '.join(self.parameters)}; missing {', '.join(missing)}.")
        values = jnp.zeros(sum(self.entries[name].size for name in self.parameters), self.dtype)
        for name in self.parameters:
            entry, value = self.entries[name], jnp.asarray(params[name], self.dtype)
            if value.shape != entry.shape:
                raise ValueError(
                    f"parameter {name!r} must have shape {entry.shape}, got {value.shape}. "
                    "unconstrain takes one point: use jax.vmap for a batch."
                )
            values = values.at[entry].set(value)
        return _call(self.program, "unconstrain", self.handle, values, self.dim)

    def coordinate_names(self) -> list[str]:
        return list(self.names)

    @property
    def first_index(self) -> int:
        return 1

    def coords(self) -> dict[str, np.ndarray]:
        """Labels that count from one, for the axes as ArviZ calls them."""
        axes = (
            (f"{name}_dim_{axis}", size) for name, each in self.entries.items() for axis, size in enumerate(each.shape)
        )
        return {label: np.arange(1, size + 1) for label, size in axes}

    def log_likelihood(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        """The generated quantities called `log_lik` or `log_lik_...`."""
        names = [name for name in self.entries if name == "log_lik" or name.startswith("log_lik_")]
        values = self.constrain(z) if names else {}
        return {name: values[name] for name in names}

    def constant_data(self) -> dict[str, np.ndarray]:
        """All data: Stan does not say which of them are observations."""
        return {name: np.asarray(value) for name, value in self.data.items()}

    def predict(self, draws: PyTree, seed: int, /, *args: Any, **kwargs: Any) -> NoReturn:
        """A program says itself how data are drawn, in its generated quantities, and they are among the draws."""
        computed = [name for name in self.entries if name not in self.parameters]
        have = f"this one computes {', '.join(computed)}" if computed else "this one has none"
        raise ValueError(
            "a Stan program predicts by its generated quantities (y_rep = normal_rng(mu, sigma), say), which are among "
            f"the draws of posterior.sample; {have}. relbo.to_arviz(posterior, posterior_predictive=[...]) takes their "
            "names."
        )


def _call(program: str, what: str, handle: Int32[Array, "2"], x: Float[Array, " n"], size: int) -> Float[Array, " m"]:
    out = jax.ShapeDtypeStruct((size,), x.dtype)
    return jax.ffi.ffi_call(f"{program}_{what}", out, vmap_method="broadcast_all")(handle, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_density(program: str, handle: Int32[Array, "2"], z: Float[Array, " dim"]) -> Float[Array, ""]:
    return _call(program, "log_density", handle, z, 1)[0]


def _forward(program: str, handle: Int32[Array, "2"], z: Float[Array, " dim"]) -> tuple[Array, Array]:
    out = _call(program, "gradient", handle, z, 1 + z.size)
    value, gradient = out[0], out[1:]
    return value, jnp.where(value == -jnp.inf, 0, gradient)


def _backward(program: str, gradient: Float[Array, " dim"], cotangent: Float[Array, ""]) -> tuple[None, Array]:
    del program
    return None, jnp.where(cotangent == 0, 0, cotangent * gradient)


_log_density.defvjp(_forward, _backward)


def from_stan(program: str | os.PathLike, data: Any = None, *, name: str | None = None, seed: int = 0) -> StanTarget:
    """A target from a Stan program, compiled here (about 30 s the first time; then it comes from a cache).

    Needs the extra `stan` (stanc and Stan's headers) and a C++ compiler: $CXX, or else g++. The cache is
    $RELBO_CACHE_DIR, or else the folder `relbo` in $XDG_CACHE_HOME or ~/.cache.

    Arguments:
        program: the program's text, or the path of a `.stan` file, which may `#include` files from its folder.
        data: a dict of numbers, arrays and nested lists, or JSON as CmdStan takes it: a text or the path of a file.
        name: what messages call the program; the file's name if not given.
        seed: of the starting points and of the random numbers in transformed data and generated quantities.

    The log density has all constants, those of `~` statements too, so that ELBOs are comparable between programs.
    Where the program rejects a point it is -inf; any other exception in it stops the fit, in JAX's error with Stan's
    words. The starting points are the origin and draws from (-2, 2) in unconstrained coordinates, as far as density and
    gradient are finite there. Runs on the CPU.

    Raises:
        ValueError: if stanc does not accept the program, if the data do not fit it, or if no starting point is usable:
            with Stan's own words.
        ImportError: if httpstan is not installed.
        RuntimeError: if there is no C++ compiler.

    Example:
        ```python
        target = relbo.from_stan("eight_schools.stan", {"J": 8, "y": y, "sigma": sigma})
        posterior = relbo.fit(target)
        ```

    Who has a BridgeStan model already needs none of this:
        ```python
        target = relbo.from_callable(lambda z: model.log_density_gradient(z, propto=False), dim=model.param_unc_num())
        ```
    """
    if whole_number("seed", seed, 0) >= 2**32:
        raise ValueError(f"seed must be an integer from 0 to 2**32 - 1, got {seed}.")
    source, include, name = _read_program(program, name)
    values = read_data(data)
    if not has_parameters(source, include):
        raise ValueError(f"the Stan program {name!r} has no parameters, so there is nothing to infer.")
    library = load(build(source, name, include))
    try:
        handle, description = library.make(json.dumps(values), seed)
    except ValueError as error:
        raise ValueError(f"the data do not fit the Stan program {name!r}. Stan says: {error}") from error
    if not description.coordinates:
        raise ValueError(f"the Stan program {name!r} has no parameters, so there is nothing to infer.")
    initial = _starting_points(library, handle, len(description.coordinates), seed)
    return StanTarget(library.name, handle, description, initial, to_arrays(values))


def _read_program(program: str | os.PathLike, name: str | None) -> tuple[str, pathlib.Path | None, str]:
    """The text, the folder of its includes, and the name. A text has a block, and so a brace; a path has none."""
    if isinstance(program, str) and "{" in program:
        return program, None, name or "model"
    path = pathlib.Path(program)
    return path.read_text(), path.absolute().parent, name or path.stem


def _starting_points(library: Library, handle: int, dim: int, seed: int) -> np.ndarray:
    """Stan's convention: the origin, then uniform on (-2, 2). Always as many rows, so that no program is recompiled."""
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
    draws = np.random.default_rng(seed).uniform(-2, 2, (NUM_TRIED, dim))
    usable, words, value = [], "", np.nan
    for point in np.concatenate([np.zeros((1, dim)), draws]).astype(dtype):
        value, gradient, said = library.evaluate(handle, point)
        words = said or words
        with np.errstate(over="ignore"):
            if np.isfinite(np.append(gradient, value).astype(dtype)).all():
                usable.append(point)
        if len(usable) == NUM_STARTS:
            break
    if not usable:
        reason = f"Stan says: {words}" if words else f"At the last one the log density is {value}."
        raise ValueError(
            f"no usable starting point: log density or gradient is not finite at the origin and at {NUM_TRIED} "
            f"points drawn from (-2, 2) in unconstrained coordinates. {reason}"
        )
    if np.any(usable[0]):
        logging.getLogger("relbo").info("the origin has no finite density or gradient: starting from %s", usable[0])
    return np.resize(usable, (NUM_STARTS, dim)).astype(dtype)


def _in_brackets(name: str) -> str:
    """`theta.1.2` as `theta[1,2]`: Stan counts from one, and so do its users."""
    return re.sub(r"(\.\d+)+", lambda match: f"[{match[0][1:].replace('.', ',')}]", name)


def _find_entries(description: Description) -> dict[str, Array]:
    """From the names of the entries: Stan's order is column-major, but not for complex numbers and arrays of tuples."""
    shapes = zip(description.variables, description.shapes, strict=True)
    places = {name: np.zeros(shape, np.int32) for name, shape in shapes}
    for place, entry in enumerate(description.entries):
        parts = re.findall(r"[.:]?[^.:]+", entry.replace(".real", ".1").replace(".imag", ".2"))
        members = [f".{part[1:]}" for part in parts[1:] if part[0] == ":"]
        index = tuple(int(part[1:]) - 1 for part in parts[1:] if part[0] == ".")
        places["".join([parts[0], *members])][index] = place
    return {name: jnp.asarray(place) for name, place in places.items()}

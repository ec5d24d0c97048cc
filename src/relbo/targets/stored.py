"""What is left of a target in a file: names, shapes and draws, but no density."""

from collections import OrderedDict
from typing import Any, NoReturn

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo.runtime.choices import seed_number, whole_number
from relbo.targets.base import AbstractTarget
from relbo.targets.layout import Layout


class StoredDraws(eqx.Module):
    """Draws made when the posterior was saved, with what only the model can compute about them."""

    z: np.ndarray
    log_p: np.ndarray
    log_q: np.ndarray
    values: dict[str, np.ndarray]
    log_likelihood: dict[str, np.ndarray]

    @property
    def num(self) -> int:
        return len(self.z)


class Labels(eqx.Module):
    """Names and labels of axes, observed and constant data: what ArviZ asks for."""

    dims: dict[str, tuple[str, ...]]
    coords: dict[str, np.ndarray]
    observed_data: dict[str, np.ndarray]
    constant_data: dict[str, np.ndarray]


class StoredTarget(AbstractTarget):
    """Stands in for the target of a loaded posterior, until `relbo.load(path, target=...)` attaches the real one.

    With a `layout` points can be constrained, and so any number of draws be made. Without (the model computes other
    quantities of its parameters, or supports that depend on each other), there are the draws made when it was saved.
    """

    dim: int = eqx.field(static=True)
    dtype: np.dtype[Any] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    twice_differentiable: bool = eqx.field(static=True)
    initial: Float[Array, "num dim"]
    kind: str = eqx.field(static=True)
    """The class of the target that was fitted."""
    names: tuple[str, ...] = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True)
    draws: StoredDraws | None
    labels: Labels

    @property
    def stored(self) -> "StoredTarget":
        return self

    @property
    def model_kind(self) -> str:
        return self.kind

    def described(self) -> Layout | None:
        return self.layout

    @property
    def first_index(self) -> int:
        return 1 if self.kind == "StanTarget" else 0

    def log_density(self, z: Float[Array, " dim"]) -> NoReturn:
        del z
        raise ValueError(f"This needs the log density, and {self._where()}")

    def constrain(self, z: Float[Array, " dim"]) -> PyTree:
        if self.layout is None:
            raise ValueError(f"Only the model can compute the parameters at new points, and {self._where()}")
        params = self.layout.constrain(z)
        return dict(params) if type(params) is OrderedDict else params  # ordered for the sake of z alone

    def unconstrain(self, params: PyTree) -> Float[Array, " dim"]:
        if self.layout is None:
            raise ValueError(f"Only the model can unconstrain its parameters, and {self._where()}")
        return self.layout.unconstrain(params)

    def coordinate_names(self) -> list[str]:
        return list(self.names)

    def supports(self) -> dict[str, str]:
        return {} if self.layout is None else self.layout.supports()

    def dims(self) -> dict[str, tuple[str, ...]]:
        return self.labels.dims

    def coords(self) -> dict[str, np.ndarray]:
        return self.labels.coords

    def observed_data(self) -> dict[str, np.ndarray]:
        return self.labels.observed_data

    def constant_data(self) -> dict[str, np.ndarray]:
        return self.labels.constant_data

    def predict(self, draws: PyTree, seed: int, /, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"Prediction needs the model, and {self._where()}")

    def sample_prior(self, num_draws: int, seed: int) -> NoReturn:
        raise ValueError(f"Prior draws need the model, and {self._where()}")

    def stored_values(self, num_draws: int, seed: int) -> dict[str, np.ndarray]:
        """The first of the stored draws, for seed 0, and a random choice without repetition for other seeds."""
        return self.choose_draws(num_draws, seed).values

    def at_most(self, num_draws: int) -> int:
        """So many draws, or as many as the file holds where those are fewer."""
        return num_draws if self.draws is None else min(num_draws, self.draws.num)

    def choose_draws(self, num_draws: int, seed: int) -> StoredDraws:
        """Some of the stored draws."""
        num_draws, seed = whole_number("num_draws", num_draws, 1), seed_number(seed)
        if self.draws is None or num_draws > self.draws.num:
            num = 0 if self.draws is None else self.draws.num
            raise ValueError(
                f"{num_draws} draws were asked for, the file holds {num}, and only the model can compute more: "
                f"{self._where()} Or save with a larger num_draws."
            )
        if seed == 0:
            chosen = np.arange(num_draws)
        else:
            chosen = np.random.default_rng(seed).permutation(self.draws.num)[:num_draws]
        return jax.tree.map(lambda array: array[chosen], self.draws)

    def _where(self) -> str:
        return (
            f"this posterior was loaded without it ({self.kind}). Attach it: relbo.load(path, target=target), or "
            "relbo.fit(target, start=posterior) to go on boosting."
        )

"""The protocol of a base family: what a component of the mixture must be able to do.

A family is a settings object; the parameters of a component are a pytree of arrays that the family made. Everything is
written for one component and one point, and batched by `vmap` where it is used; only draws are made many at a time,
because one call of a random generator compiles and runs several times faster than many small ones.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from relbo.families.natural import AbstractGeometry


class AbstractFamily(eqx.Module):
    r"""A set $\mathcal{A}$ of densities on $\mathbb{R}^d$, in a bounded parameter set.

    Guarantee, checked for every family by one contract test: `sample` is reparameterised (differentiable in `params`
    for a fixed key), `log_prob` is its normalised log density, `project` is idempotent and returns members of the set.
    """

    @abstractmethod
    def init(self, loc: Float[Array, " dim"], factor: Float[Array, " dim"] | Float[Array, "dim dim"]) -> PyTree:
        """The member centred at `loc` with scale `factor` (a diagonal, or a lower triangular matrix)."""

    @abstractmethod
    def sample(self, key: Key[Array, ""], params: PyTree, num_draws: int) -> Float[Array, "num_draws dim"]: ...

    @abstractmethod
    def log_prob(self, params: PyTree, point: Float[Array, " dim"]) -> Float[Array, ""]: ...

    def log_probs(self, params: PyTree, points: Float[Array, "num dim"]) -> Float[Array, "num stack"]:
        """The log density of every one of a stack of members at every point; normals have matrix products for it."""
        return jax.vmap(lambda point: jax.vmap(lambda member: self.log_prob(member, point))(params))(points)

    @abstractmethod
    def location(self, params: PyTree) -> Float[Array, " dim"]: ...

    @abstractmethod
    def move(self, params: PyTree, loc: Float[Array, " dim"], log_factor: Float[Array, ""]) -> PyTree:
        """The same member moved to `loc` and widened by `exp(log_factor)`."""

    @abstractmethod
    def project(self, params: PyTree) -> PyTree:
        """The nearest parameters in the bounded set."""

    def noise_on_host(self, rng: np.random.Generator, shape: tuple[int, ...], dtype) -> np.ndarray | None:
        """What `transport` makes draws of, by NumPy, which compiles nothing; None where only `sample` draws."""
        del rng, shape, dtype
        return None

    def transport(self, params: PyTree, noise: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Noise to point; for families with `noise_on_host`."""
        raise NotImplementedError(f"{type(self).__name__} draws by `sample` alone.")

    @property
    def geometry(self) -> AbstractGeometry | None:
        """How natural-gradient steps move a member; None where they have no closed form."""
        return None

    @property
    def climbs_by(self) -> str:
        """The name of the ascent, and of the oracle, that suits the family: "natural", "gradient" or "flow"."""
        return "gradient" if self.geometry is None else "natural"

    @property
    def symmetric(self) -> bool:
        """Whether every member looks the same from its location in opposite directions."""
        return False


class Box(eqx.Module):
    r"""The bounded set of the theory, in whitened coordinates: $|m_i| \le$ `loc`, $|\log \sigma_i| \le$ `log_scale`.

    Wide by default. The convergence theory needs a compact set, the duality gap is finite only over one, and the
    paper's RELBO, whose optimum is often at infinity, ends on this boundary instead.
    """

    loc: float = eqx.field(static=True, default=1e4)
    log_scale: float = eqx.field(static=True, default=9.2)

    def __check_init__(self):
        if not (self.loc > 0 and self.log_scale > 0):
            raise ValueError(f"Box bounds must be positive, got loc={self.loc}, log_scale={self.log_scale}.")

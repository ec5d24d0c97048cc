"""Any reparameterised NumPyro distribution class as a component: the paper's "any variational family"."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from relbo.families.base import AbstractFamily, Box
from relbo.families.scale import Cholesky
from relbo.families.triangular import to_tril
from relbo.runtime.require import require

_REDUNDANT = ("covariance_matrix", "precision_matrix")  # other words for scale_tril
_SCALES = ("scale", "scale_tril")
_TRIL = Cholesky()  # the parameters of a triangular factor are ours: bounded, and in any precision


class NumPyroFamily(AbstractFamily):
    """Components `distribution(loc=..., scale=..., ...)`; made by `from_numpyro`."""

    distribution: Any = eqx.field(static=True)
    learned: tuple[str, ...] = eqx.field(static=True)
    fixed: tuple[tuple[str, float], ...] = eqx.field(static=True, default=())
    box: Box = Box()

    def init(self, loc, factor):
        params = {name: self._start(name, loc, factor) for name in self.learned}
        return self.project(params)

    def sample(self, key, params, num_draws):
        # NumPyro draws in the default precision of the session.
        return self._build(params).rsample(key, (num_draws,)).astype(params["loc"].dtype)

    def log_prob(self, params, point):
        return self._build(params).log_prob(point).astype(point.dtype)

    def location(self, params):
        return params["loc"]

    def move(self, params, loc, log_factor):
        moved = dict(params) | {"loc": loc}
        if "scale_tril" in self.learned:
            moved["scale_tril"] = _TRIL.resize(params["scale_tril"], log_factor)
        elif (name := "scale") in self.learned:
            bijection = self._bijection(name)
            moved[name] = bijection.inv(bijection(params[name]) * jnp.exp(log_factor))
        return self.project(moved)

    def project(self, params):
        bounds = {name: self.box.loc if name == "loc" else self.box.log_scale for name in params}
        clipped = {name: jnp.clip(value, -bounds[name], bounds[name]) for name, value in params.items()}
        if "scale_tril" in params:
            clipped["scale_tril"] = _TRIL.project(params["scale_tril"], self.box.log_scale)
        return clipped

    def _start(self, name, loc, factor):
        if name == "loc":
            return loc
        if name == "scale_tril":
            return _TRIL.init(factor)
        if name == "scale":
            return self._bijection(name).inv(factor if factor.ndim == 1 else jnp.linalg.norm(factor, axis=1))
        shape = () if "scale_tril" in self.learned else loc.shape  # one shape parameter for a multivariate law
        return jnp.zeros(shape, loc.dtype)

    def _bijection(self, name):
        distributions = require("numpyro.distributions", extra="numpyro")
        constraint = self.distribution.arg_constraints[name]
        if constraint is distributions.constraints.positive:
            return distributions.transforms.ExpTransform()  # the box then bounds the logarithm of a scale
        return distributions.biject_to(constraint)

    def _value(self, name, value):
        return to_tril(value) if name == "scale_tril" else self._bijection(name)(value)

    def _build(self, params):
        values = {name: self._value(name, value) for name, value in params.items()} | dict(self.fixed)
        built = self.distribution(**values, validate_args=False)
        return built if built.event_shape else built.to_event(1)


def from_numpyro(distribution: Any, *, box: Box | None = None, **fixed: float) -> NumPyroFamily:
    """A family from a NumPyro distribution class with a location, for example `dist.Laplace`.

    Univariate classes become products over coordinates. Arguments given here stay fixed; the rest is learned:
    `from_numpyro(dist.StudentT, df=4.0)` learns location and scale.
    """
    distributions = require("numpyro.distributions", extra="numpyro")
    if not (isinstance(distribution, type) and issubclass(distribution, distributions.Distribution)):
        raise ValueError(f"from_numpyro takes a distribution class such as dist.Laplace, got {distribution!r}.")
    name, arguments = distribution.__name__, getattr(distribution, "arg_constraints", {})
    unknown = set(fixed) - set(arguments)
    if unknown:
        raise ValueError(f"{name} has no argument {sorted(unknown)}; it has {sorted(arguments)}.")
    redundant = _REDUNDANT if "scale_tril" in arguments else ()
    learned = tuple(argument for argument in arguments if argument not in fixed and argument not in redundant)
    if "loc" not in learned or not set(_SCALES) & set(learned):
        raise ValueError(
            f"{name} cannot be a component: a family needs learned arguments loc and scale (or scale_tril), "
            f"and {name} would learn {sorted(learned)}. Choose a location-scale class on the real line."
        )
    family = NumPyroFamily(distribution, learned, tuple(sorted(fixed.items())), box or Box())
    _check_reparameterized(family, name)
    return family


def _check_reparameterized(family: NumPyroFamily, name: str) -> None:
    distributions = require("numpyro.distributions", extra="numpyro")
    params = family.init(jnp.zeros(2), jnp.ones(2))
    built = family._build(params)
    if built.support not in (distributions.constraints.real, distributions.constraints.real_vector):
        base = getattr(built.support, "base_constraint", built.support)
        if base not in (distributions.constraints.real, distributions.constraints.real_vector):
            raise ValueError(f"{name} cannot be a component: its support is {built.support}, not the real line.")
    if not built.has_rsample:
        raise ValueError(f"{name} is not reparameterised (has_rsample is False), so it cannot be a component.")
    jax.eval_shape(lambda p: family.log_prob(p, family.sample(jax.random.key(0), p, 1)[0]), params)

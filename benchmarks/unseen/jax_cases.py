"""Through the door for plain JAX functions, and that for functions of any kind."""

import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints
from scipy.special import gammaln

import relbo
from unseen.base import Case
from unseen.chains import exact, improper, nuts, on_grid

# A censored Weibull law: it overflows far out

LIFETIMES = np.random.default_rng(0).weibull(1.7, 80) * 3
ENDED = LIFETIMES > 4
LIFETIMES = np.minimum(LIFETIMES, 4)


def weibull(params, x, ended):
    k, s = params["shape"], params["scale"]
    z = (x / s) ** k
    parts = jnp.where(ended, -z, jnp.log(k / s) + (k - 1) * jnp.log(x / s) - z)
    return parts.sum() - 0.5 * jnp.log(k) ** 2 - 0.5 * (jnp.log(s) - 1) ** 2


def weibull_target():
    example, supports = {"shape": 1.0, "scale": 1.0}, {"shape": "positive", "scale": "positive"}
    return relbo.from_log_density(weibull, example, args=(LIFETIMES, ENDED), supports=supports)


# Group lasso: its density has a kink at the origin, where the example is

X = np.random.default_rng(31).normal(size=(60, 6))
Y = (np.random.default_rng(32).uniform(size=60) < 1 / (1 + np.exp(-X[:, 0] + 0.7 * X[:, 1]))) * 2.0 - 1.0


def lasso(params, x, y):
    beta = params["beta"]
    groups = jnp.sqrt(jnp.sum(beta.reshape(3, 2) ** 2, axis=1))
    return log_sigmoid(y * (x @ beta)).sum() - 2.0 * groups.sum()


def lasso_target():
    return relbo.from_log_density(lasso, {"beta": jnp.zeros(6)}, args=(X, Y))


# Half a normal law


def half(z):
    return jnp.where(z[0] > 0.5, -0.5 * z[0] ** 2, -jnp.inf)


def half_target():
    return relbo.from_log_density(half, jnp.ones(1))


def half_moments():
    from scipy.stats import truncnorm

    law = truncnorm(0.5, np.inf)
    return float(law.mean()), float(law.std())


# Ten far normals in twenty dimensions

_RNG = np.random.default_rng(33)
MEANS = _RNG.uniform(-5, 5, size=(10, 20))
FACTORS = np.stack([np.tril(0.25 * _RNG.normal(size=(20, 20)), -1) + np.eye(20) for _ in range(10)])
SHARES = _RNG.dirichlet(5 * np.ones(10))


def normals(z, shares, means, inverses):
    noise = jnp.einsum("kij,kj->ki", inverses, z - means)
    return logsumexp(jnp.log(shares) - 0.5 * jnp.sum(noise**2, axis=1))  # every factor has determinant one


def normals_target():
    return relbo.from_log_density(normals, jnp.zeros(20), args=(SHARES, MEANS, np.linalg.inv(FACTORS)))


def normals_moments():
    mean = SHARES @ MEANS
    inner = np.einsum("kij,kij->ki", FACTORS, FACTORS)
    sd = np.sqrt(SHARES @ (inner + MEANS**2) - mean**2)
    return {f"z[{index}]": (mean[index], sd[index]) for index in range(20)}


# A funnel


def funnel(params):
    v, x = params["v"], params["x"]
    return -0.5 * (v / 3) ** 2 - 0.5 * jnp.sum(x**2) * jnp.exp(-v) - 0.5 * x.size * v


def funnel_target():
    return relbo.from_log_density(funnel, {"v": 0.0, "x": jnp.zeros(9)})


def funnel_view(values):
    """Nine x of sd exp(v / 2), v of sd 3: their variance is made by the topmost thousandth of v."""
    return {"v": values["v"], "x": np.arcsinh(values["x"])}


def funnel_reference(view):
    rng = np.random.default_rng(0)
    v = 3 * rng.normal(size=4_000_000)
    x = np.arcsinh(np.exp(v / 2) * rng.normal(size=v.size))
    names = ["v", *(f"x[{index}]" for index in range(9))]
    sd = float(np.sqrt(np.mean(x**2)))
    return exact("four million draws", **dict(zip(names, [(0.0, 3.0), *[(0.0, sd)] * 9], strict=True)))(view)


# A simulator's likelihood, known only as a function with its gradient

WAITS = np.random.default_rng(34).gamma(2.5, 0.8, size=50)


def waits(z):
    """Gamma waiting times by log shape and log rate, with standard normal priors."""
    from scipy.special import digamma

    shape, rate = np.exp(z)
    num = len(WAITS)
    value = num * (shape * z[1] - gammaln(shape)) + (shape - 1) * np.log(WAITS).sum() - rate * WAITS.sum()
    slope_shape = shape * (num * (z[1] - digamma(shape)) + np.log(WAITS).sum())
    slope_rate = num * shape - rate * WAITS.sum()
    return value - 0.5 * z @ z, np.array([slope_shape, slope_rate]) - z


def waits_density(values):
    """On a grid of log shape and log rate."""
    log_shape, log_rate = values["z0"], values["z1"]
    shape, rate, num = np.exp(log_shape), np.exp(log_rate), len(WAITS)
    value = num * (shape * log_rate - gammaln(shape)) + (shape - 1) * np.log(WAITS).sum() - rate * WAITS.sum()
    return value - 0.5 * (log_shape**2 + log_rate**2)


def _vector(values):
    """An unnamed vector of parameters, by coordinate."""
    array = np.asarray(values)
    return {f"z{index}": array[:, index] for index in range(array.shape[1])}


def _points(values):
    return values if isinstance(values, dict) else _vector(values)


_AXES = {"shape": np.linspace(0.2, 6, 501), "scale": np.linspace(0.5, 12, 501)}


def _weibull_grid(values):
    z = (LIFETIMES / values["scale"][..., None]) ** values["shape"][..., None]
    k, s = values["shape"][..., None], values["scale"][..., None]
    parts = np.where(ENDED, -z, np.log(k / s) + (k - 1) * np.log(LIFETIMES / s) - z).sum(axis=-1)
    return parts - 0.5 * np.log(values["shape"]) ** 2 - 0.5 * (np.log(values["scale"]) - 1) ** 2


_REAL6 = {"beta": (constraints.real_vector, (6,))}
_NORMALS = {name.replace("[", "").rstrip("]"): found for name, found in normals_moments().items()}

CASES = (
    Case("weibull", "JAX", weibull_target, on_grid(_weibull_grid, **_AXES)),
    Case("lasso", "JAX", lasso_target, nuts(improper(lasso, _REAL6, X, Y))),
    Case("half", "JAX", half_target, exact("a truncated normal law", z0=half_moments()), _points),
    Case("ten normals", "JAX", normals_target, exact("closed form", **_NORMALS), _points),
    Case("funnel", "JAX", funnel_target, funnel_reference, funnel_view),
    Case(
        "waits",
        "callable",
        lambda: relbo.from_callable(waits, 2),
        on_grid(waits_density, z0=np.linspace(-2, 3, 2001), z1=np.linspace(-2, 3, 2001)),
        _points,
    ),
)

"""Where a fit starts: another point where the first will not do; and where none will, why."""

import logging

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest

import relbo


def cone(z):
    return -jnp.sqrt(jnp.sum(z**2))  # has no gradient at the origin


def finite_at_the_start(target) -> bool:
    value, slope = relbo.targets.search.evaluate(target, np.asarray(target.initial[:1]))
    return bool(np.isfinite(value).all() and np.isfinite(slope).all())


# Another start


STARTS = {
    "a kink": (cone, jnp.zeros(2), "gradient of log_density is not finite in .* near it"),
    "zero density": (lambda z: jnp.where(z > 0.5, -z, -jnp.inf), 0.0, "is -inf .zero density. at the example"),
    "broken": (lambda z: jnp.log(z) - z, -1.0, "is nan .broken arithmetic. at the example"),
}


@pytest.mark.parametrize(("function", "example", "message"), STARTS.values(), ids=STARTS)
def test_an_example_that_will_not_do_is_left(function, example, message):
    with pytest.warns(UserWarning, match=f"{message}.*in unconstrained coordinates z"):
        target = relbo.from_log_density(function, example)
    assert finite_at_the_start(target) and target.initial.shape[0] == 1


def test_the_users_own_points_come_first():
    with pytest.warns(UserWarning, match="starts from a point of init instead"):
        target = relbo.from_log_density(cone, jnp.zeros(2), init=np.full((3, 2), 7.0))
    assert np.array_equal(target.initial[0], [7.0, 7.0])


def test_a_good_example_is_kept(recwarn):
    assert np.array_equal(relbo.from_log_density(cone, jnp.ones(2)).initial, [[1.0, 1.0]])
    assert not recwarn


def test_an_infinite_density_is_no_matter_of_the_start():
    with pytest.raises(ValueError, match="an infinite density"):
        relbo.from_log_density(lambda x: 1 / x, 0.0)


def test_a_callable_starts_elsewhere():
    def host(z):
        norm = np.linalg.norm(z)
        return -norm, -z / norm if norm > 0 else np.full(2, np.nan)

    with pytest.warns(UserWarning, match=r"gradient of function is not finite in z\[0\], z\[1\] at the first starting"):
        target = relbo.from_callable(host, dim=2)
    assert finite_at_the_start(target)


def test_numpyro_starts_from_the_prior_where_the_origin_is_empty(caplog):
    def model():
        x = numpyro.sample("x", dist.Normal(50, 1))
        numpyro.factor("far", jnp.where(x > 45, 0.0, -jnp.inf))

    with caplog.at_level(logging.INFO, "relbo"):
        target = relbo.from_numpyro(model)
    assert finite_at_the_start(target) and "a draw from the prior" in caplog.text


def test_pymc_starts_from_the_prior_where_the_initial_point_is_empty():
    with pm.Model() as model:
        top = pm.Normal("top", 50, 1, initval=0.0)
        pm.Uniform("y", 45, top, observed=[46.0, 47.0])
    with pytest.warns(UserWarning, match=r"at model.initial_point\(\), so the fit starts from a draw from the prior"):
        target = relbo.from_pymc(model)
    assert finite_at_the_start(target)


# None, and why


def counts(y):
    rate = numpyro.sample("rate", dist.HalfNormal(1))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def regression(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]))
    numpyro.sample("y", dist.Normal(x @ slope, 1), obs=y)


def negative_width(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, -jnp.ones(2)), obs=y)


def impossible(y):
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.factor("never", jnp.where(x > 99, 0.0, -jnp.inf))


def rounded(y):
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(1e200 * (1e200 + x), 1), obs=y)


X = np.ones((3, 2))
HOLED = np.where(np.arange(6).reshape(3, 2) == 5, np.nan, X)
REPORTS = {
    "outside the support": (
        counts,
        (np.array([1.0, -1.0, 2.5]),),
        r"'y' 2 of 3 observations lie outside the support .* Poisson: y\[1\] = -1, y\[2\] = 2.5\.",
    ),
    "NaN observed": (regression, (X, np.array([1, np.nan, 2])), r"The data contain NaN: y\[1\] = nan"),
    "NaN among the predictors": (
        regression,
        (HOLED, np.zeros(3)),
        r"contain NaN: x\[2,1\] = nan.*'y' \(Normal\) .* 1 of 3 observations is NaN: y\[2\] = 0.*loc\[2\] = nan",
    ),
    "a parameter": (negative_width, (np.ones(2),), r"NumPyro says: .*scale.*scale\[0\] = -1, scale\[1\] = -1"),
    "a factor": (impossible, (np.ones(2),), "The factor 'never' is never = -inf"),
    "overflow": (rounded, (np.ones(2),), r"'y' \(Normal\) .* 2 of 2 observations is -inf: y\[0\] = 1, y\[1\] = 1"),
}


@pytest.mark.filterwarnings("ignore:Out-of-support")
@pytest.mark.parametrize(("model", "args", "message"), REPORTS.values(), ids=REPORTS)
def test_numpyro_names_the_site_and_the_observations(model, args, message):
    with pytest.raises(ValueError, match=rf"None of 99 other points will do either.*{message}"):
        relbo.from_numpyro(model, *args)


def test_numpyros_own_warning_is_not_lost():
    with pytest.warns(UserWarning, match="Out-of-support values"), pytest.raises(ValueError, match="outside"):
        relbo.from_numpyro(counts, np.array([1.0, -1.0, 2.5]))


def test_many_observations_are_not_all_named():
    with pytest.raises(ValueError, match=r"y\[7\] = nan and 12 more"):
        relbo.from_numpyro(regression, np.ones((20, 2)), np.full(20, np.nan))


def test_pymc_names_the_variable_and_the_observations():
    with pm.Model() as model:
        rate = pm.HalfNormal("rate", 1)
        pm.Poisson("y", rate, observed=np.array([1, -1, 2]))
    message = r"100 other points.*1 of 3 observations of 'y' \(Poisson\) is -inf.*: y\[1\] = -1\."
    with pytest.raises(ValueError, match=message):
        relbo.from_pymc(model)


def test_pymc_names_what_holds_nan():
    with pm.Model() as model:
        x = pm.Data("x", np.ones(3))
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * x, 1, observed=np.arange(3.0))
    model["x"].set_value(np.array([1, np.nan, 2]))
    with pytest.raises(
        ValueError, match=r"contain NaN: x\[1\] = nan.*1 of 3 observations of 'y' .* is NaN: y\[1\] = 1"
    ):
        relbo.from_pymc(model)


def test_pymc_names_a_potential():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        pm.Potential("broken", pm.math.log(-1 - x**2))
    with pytest.raises(ValueError, match="The potential 'broken' is broken = nan"):
        relbo.from_pymc(model)


def test_a_log_density_names_what_holds_nan():
    data = {"y": np.array([1, np.nan])}
    with pytest.raises(ValueError, match=r"100 other points.*The data contain NaN: args\[0\]\['y'\]\[1\] = nan"):
        relbo.from_log_density(lambda x, data: -jnp.sum((x - data["y"]) ** 2), 1.0, args=(data,))


# A gradient of the wrong sign


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_gradient_of_the_wrong_sign_is_found_at_the_mode(scale, offset):
    with pytest.raises(ValueError, match="the gradient contradicts the value"):
        relbo.from_callable(lambda z: (-offset - 0.5 * z @ z / scale**2, z / scale**2), dim=5)


@pytest.mark.parametrize("dim", [1, 5, 200])
def test_a_right_gradient_is_accepted(dim):
    for scale in (1e-3, 1.0, 30.0):
        relbo.from_callable(lambda z, s=scale: (-0.5 * z @ z / s**2, -z / s**2), dim=dim)
    relbo.from_callable(lambda z: (-np.sum(np.abs(z)), -np.sign(z)), dim=dim)
    relbo.from_callable(lambda z: (float(np.float32(-1e5) - np.float32(z @ z)), -2 * z), dim=dim)
    relbo.from_callable(
        lambda z: (-np.sum(np.log1p(z**2)) - np.sum(np.cos(3 * z)), -2 * z / (1 + z**2) + 3 * np.sin(3 * z)), dim=dim
    )


def test_a_function_that_raises_far_from_the_start_is_accepted(recwarn):
    def narrow(z):
        if np.abs(z).max() > 0.5:
            raise FloatingPointError("out of range")
        return -z @ z / 2, -z

    assert relbo.from_callable(narrow, dim=2).dim == 2
    relbo.from_callable(lambda z: (-np.sum(np.exp(z**2)), -2 * z * np.exp(z**2)), dim=2)
    assert not recwarn


def test_randomness_away_from_the_start_is_called_by_its_name():
    rng = np.random.default_rng(0)

    def noisy(z):
        return -0.5 * float(z @ z) * (1 + rng.normal()), -z

    with pytest.raises(ValueError, match="at the same point: it has side effects or hidden randomness"):
        relbo.from_callable(noisy, 2)

"""The whole fit: what it finds, that it repeats, resumes, compiles once, and survives what users do to it."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import (
    CORRELATED,
    GRID,
    TWO_MODES,
    Known,
    integrate,
    quick_settings,
    target_of,
    two_modes_posterior,
    within,
)
from relbo.ascent import NaturalAscent

SMALL = {
    "oracle": relbo.NaturalOracle(num_steps=20, num_draws=16, num_restarts=2, starts=relbo.Starts(num_modes=8)),
    "refine": NaturalAscent(num_steps=20, num_draws=16),
}


@pytest.fixture(scope="module")
def target():
    return target_of("two_modes")


@pytest.fixture(scope="module")
def posterior():
    return two_modes_posterior()


def same(one: relbo.Posterior, other: relbo.Posterior) -> bool:
    leaves = zip(jax.tree.leaves(one.mixture), jax.tree.leaves(other.mixture), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


def mass_left(posterior) -> float:
    density = np.exp(np.asarray(posterior.log_prob(GRID[:, None]), np.float64))
    return integrate(density * (GRID < -0.5))


def test_default_fit_finds_the_target(posterior):
    density = np.exp(np.asarray(posterior.log_prob(GRID[:, None]), np.float64))
    log_p = TWO_MODES.log_density(GRID[:, None]) - TWO_MODES.log_z
    kl = integrate(density * (np.log(density + 1e-300) - log_p))
    assert abs(integrate(density) - 1) < 1e-4  # quadrature and float32
    assert kl < 0.002
    assert within(posterior.elbo.value, posterior.elbo.std_err, TWO_MODES.log_z - kl, rounding=1e-4)
    assert posterior.stop_reason.startswith(("the duality gap", "the last", "the mixture is within"))


def test_same_seed_same_bits(target, posterior):
    assert same(posterior, relbo.fit(target, seed=0, progress_bar=False))
    assert not same(posterior, relbo.fit(target, seed=1, progress_bar=False))


def test_a_continued_fit_equals_an_uninterrupted_one(target):
    settings = {"seed": 3, "progress_bar": False, "min_improvement": -np.inf, "max_components": 12}
    short = relbo.fit(target, stop=relbo.MaxIterations(2), **settings)
    rest = {"stop": relbo.MaxIterations(4), "max_components": 12}
    resumed = relbo.fit(target, start=short, seed=3, progress_bar=False, **rest)
    assert same(resumed, relbo.fit(target, stop=relbo.MaxIterations(5), **settings))
    assert len(short.trace) < len(resumed.trace)
    with pytest.raises(ValueError, match=r"start is in 1 dimensions .* the target has 2"):
        relbo.fit(CORRELATED.target(), start=short)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_components_than_allowed(target, limit):
    """Several may come at once, and only as many as there is room for."""
    posterior = relbo.fit(target, stop=(), max_components=limit, progress_bar=False, min_improvement=-np.inf)
    assert max(record.num_components for record in posterior.trace) == posterior.num_components == limit
    assert posterior.stop_reason.startswith(f"{limit} component")


@pytest.mark.parametrize("variant", ["fixed", "line_search", "fully_corrective"])
@pytest.mark.slow
def test_paper_variants_put_mass_on_both_modes(target, variant):
    posterior = relbo.fit(target, progress_bar=False, **(relbo.paper(variant) | {"max_components": 12}))
    assert abs(mass_left(posterior) - 0.3) < 0.1
    first, best = posterior.trace[0].elbo.value, max(record.elbo.value for record in posterior.trace)
    assert TWO_MODES.log_z - best < (TWO_MODES.log_z - first) / 3


def test_best_iterate_of_the_fixed_step_by_the_users_criterion(target):
    settings = relbo.paper("fixed") | {"max_components": 4}
    calls = []

    def prefer_second(posterior):
        calls.append(posterior.num_components)
        return float(posterior.num_components == 2)

    posterior = relbo.fit(target, progress_bar=False, best_by=prefer_second, **settings)
    assert calls == [1, 2, 3, 4]
    assert posterior.num_components == 2
    more = relbo.fit(target, progress_bar=False, best_by=prefer_second, start=posterior, max_components=5, stop=())
    assert calls[4:] == [2, 5] and more.num_components == 2  # what there was still competes


def test_every_iterate_is_shown_to_whoever_watches(target):
    shown = []
    settings = relbo.paper("fixed") | {"max_components": 3}
    posterior = relbo.fit(target, progress_bar=False, callback=shown.append, **settings)
    assert [one.num_components for one in shown] == [1, 2, 3]
    assert [one.elbo.value for one in shown] == [record.elbo.value for record in posterior.trace]
    best = max(shown, key=lambda one: one.elbo.value)
    np.testing.assert_array_equal(best.weights, posterior.weights)


def test_what_a_callback_evaluates_is_not_the_fits(target):
    def measure(posterior):
        posterior.log_target(posterior.sample_unconstrained(4000))

    settings = {"max_components": 2, "progress_bar": False}
    alone = relbo.fit(target, **settings)
    enough = alone.num_evaluations + 1000  # for the fit, and not for what is measured
    measured = relbo.fit(target, callback=measure, max_evaluations=enough, **settings)
    assert measured.num_evaluations == alone.num_evaluations and measured.stop == alone.stop
    np.testing.assert_array_equal(measured.weights, alone.weights)


def test_ctrl_c_returns_what_there_is(target):
    def interrupt(posterior):
        if posterior.num_components == 3:
            raise KeyboardInterrupt
        return 0.0

    with pytest.warns(UserWarning, match="returning the posterior after 3 iterations"):
        posterior = relbo.fit(target, progress_bar=False, best_by=interrupt, **relbo.paper("fixed"))
    assert posterior.stop_reason == "it was interrupted"
    assert posterior.sample(5).shape == (5, 1)


def test_one_component_is_enough_where_it_is():
    twice_the_same = Known(np.array([0.3, 0.7]), np.ones((2, 1)), np.full((2, 1, 1), 2.0), 0.0)
    posterior = relbo.fit(twice_the_same.target(), progress_bar=False)
    assert posterior.num_components == 1
    assert not any(record.accepted for record in posterior.trace[1:])


def test_draws_are_named_and_constrained():
    def log_density(params):
        return -params["rate"] + 3 * jnp.log(params["rate"]) - 0.5 * jnp.sum((params["mu"] - 2.0) ** 2)

    target = relbo.from_log_density(log_density, {"mu": jnp.zeros((2, 1)), "rate": 1.0}, supports={"rate": "positive"})
    posterior = relbo.fit(target, max_components=1, **quick_settings())
    draws = posterior.sample(4000, seed=1)
    assert draws["mu"].shape == (4000, 2, 1) and draws["rate"].shape == (4000,)
    assert (draws["rate"] > 0).all()
    unconstrained = posterior.sample_unconstrained(7, seed=1)
    assert unconstrained.shape == (7, 3)
    assert posterior.log_prob(unconstrained.reshape(7, 1, 3)).shape == (7, 1)
    with pytest.raises(ValueError, match=r"shape \(..., 3\), got \(7, 2\)"):
        posterior.log_prob(unconstrained[:, :2])


def cut(x, limit, beyond):
    """A standard normal below the limit; beyond it, something else."""
    return jnp.where(x[0] > limit, beyond, -0.5 * jnp.sum(x**2))


def test_nan_draws_are_counted_and_end_the_fit_with_what_it_has():
    target = relbo.from_log_density(cut, jnp.zeros(1), args=(np.float32(0.3), np.float32(np.nan)))
    posterior = relbo.fit(target, progress_bar=False, stop=(), max_components=3, min_improvement=-np.inf, **SMALL)
    assert posterior.trace[0].num_nan > 0
    assert posterior.trace[-1].nan_fraction > 0.1
    assert "NaN log density" in posterior.stop_reason
    assert np.isfinite(posterior.elbo.value)


def test_regions_of_zero_density_are_legal():
    target = relbo.from_log_density(cut, -jnp.ones(1), args=(np.float32(0.0), np.float32(-np.inf)))
    posterior = relbo.fit(target, progress_bar=False, max_components=2, **SMALL)
    # Of the mixture restricted to the half line, so at most log sqrt(pi / 2); Monte Carlo error is in the estimate.
    assert posterior.elbo.value - 4 * posterior.elbo.std_err < 0.5 * np.log(np.pi / 2)
    assert posterior.trace[-1].num_zero > 0


def improper(params, rising):
    return -0.5 * params["a"] ** 2 + rising * params["b"]


@pytest.mark.parametrize("rising", [0.0, 1.0])
def test_an_improper_target_is_warned_of(rising):
    target = relbo.from_log_density(improper, {"a": 0.0, "b": 1.0}, args=(np.float32(rising),))
    with pytest.warns(UserWarning, match="may be improper: it does not fall off in the direction of b"):
        relbo.fit(target, progress_bar=False, max_components=1, **SMALL)


def censored(params, x, cut):
    """A Weibull regression that overflows a million standard deviations away, after having fallen for long."""
    shape, scale = params["shape"], params["scale"]
    z = (x / scale) ** shape
    each = jnp.where(cut, -z, jnp.log(shape / scale) + (shape - 1) * jnp.log(x / scale) - z)
    return each.sum() - 0.5 * jnp.log(shape) ** 2 - 0.5 * (jnp.log(scale) - 1) ** 2


def half_line(z):
    return jnp.where(z[0] > 0.5, -0.5 * z[0] ** 2, -jnp.inf)


@pytest.mark.parametrize("name", ["censored", "half line"])
def test_what_overflows_far_out_is_not_improper(name):
    """Each direction is judged by the largest distance at which the density is a number; zero has fallen."""
    x = np.minimum(np.random.default_rng(0).weibull(1.7, 80) * 3, 4.0)
    target = relbo.from_log_density(half_line, jnp.ones(1))
    if name == "censored":
        example, supports = {"shape": 1.0, "scale": 1.0}, {"shape": "positive", "scale": "positive"}
        target = relbo.from_log_density(censored, example, args=(x, x == 4.0), supports=supports)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        relbo.fit(target, progress_bar=False, max_components=1, **SMALL)
    assert not [warning for warning in seen if "improper" in str(warning.message)]


def test_a_target_without_gradient_uses_scores():
    def steps(x):
        return -0.5 * jnp.sum((x - 1.0) ** 2)

    target = relbo.from_log_density(steps, jnp.zeros(1), differentiable=False)
    posterior = relbo.fit(target, progress_bar=False, max_components=1, **SMALL)
    np.testing.assert_allclose(posterior.locations, [[1.0]], atol=1e-2)
    with pytest.raises(ValueError, match="no gradient"):
        relbo.fit(target, estimator="sticking_the_landing")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "norml"}, "Unknown family 'norml'.*full_normal"),
        ({"step": "fixd"}, "Unknown step 'fixd'.*fully_corrective"),
        ({"objective": "elbow"}, "Unknown objective 'elbow'.*finite_step"),
        ({"oracle": "delphi"}, "Unknown oracle 'delphi'.*natural"),
        ({"estimator": "guess"}, "Unknown estimator 'guess'.*score"),
        ({"precondition": "maybe"}, "Unknown precondition 'maybe'.*dense"),
        ({"refine": "sometimes"}, "Unknown refine 'sometimes'.*natural"),
        ({"max_components": 0}, "max_components must be an integer of at least 1, got 0"),
        ({"family": "laplace", "oracle": "natural"}, "Natural gradients need normal components"),
    ],
)
def test_bad_settings_say_what_to_do(target, settings, message):
    with pytest.raises(ValueError, match=message):
        relbo.fit(target, progress_bar=False, **settings)


def test_misspelt_settings_are_refused(target):
    with pytest.raises(TypeError, match=r"fit has no setting famly\. Did you mean 'family'\? It takes seed"):
        relbo.fit(target, famly="normal")
    with pytest.raises(ValueError, match="Unknown variant"):
        relbo.paper("fastest")


WRONG_TYPES = """
import jax.numpy as jnp, relbo
target = relbo.from_log_density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(1))
for settings in [{"step": 3}, {"max_components": 2.5}, {"stop": ["soon"]}]:
    try:
        relbo.fit(target, **settings)
    except ValueError as error:
        print(error)
try:
    relbo.fit(lambda x: -x)
except ValueError as error:
    print(error)
"""


def test_wrong_types_say_what_to_do():
    """In a process of its own: here the run-time type checker of the tests would speak first."""
    printed = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True).stdout
    step, limit, stop, target = printed.splitlines()
    assert step.startswith("step must be one of ['fixed'") and step.endswith("got int.")
    assert limit == "max_components must be an integer of at least 1, got 2.5."
    assert stop.startswith("stop takes rules such as relbo.GapBelow(0.01), got 'soon'")
    assert target.startswith(
        "target must be a relbo target or a PyMC model, got function. Make one with relbo.from_numpyro"
    )


def test_silent_when_not_a_terminal(target, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relbo.fit(target, max_components=1)
    assert capfd.readouterr() == ("", "")

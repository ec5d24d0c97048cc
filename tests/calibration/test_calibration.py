"""Calibration: the tests of ranks have their level and their power, fits are calibrated, trouble is counted."""

import os
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import relbo
from helpers import FALSE_ALARM
from relbo.calibration.ranks import check_ranks, holm, rank_of, uniforms
from relbo.plots.ranks import ecdf_band
from relbo.plots.ranks import ranks as plot_ranks

X = np.linspace(0.0, 2.0, 8)
Y = np.sin(3 * X)


def regression(x, y=None):
    """Conjugate, with strongly correlated intercept and slope."""
    intercept = numpyro.sample("intercept", dist.Normal(0.5, 2.0))
    slope = numpyro.sample("slope", dist.Normal(-1.0, 1.0))
    numpyro.sample("y", dist.Normal(intercept + slope * x, 1.0), obs=y)


def log_density(mu, y):
    return -0.5 * (mu - 1.0) ** 2 - 0.5 * jnp.sum((y - mu) ** 2)


def simulate(rng):
    mu = rng.normal(1.0, 1.0)
    return mu, rng.normal(mu, 1.0, 4).astype(np.float32)


def make_target(y):
    return relbo.from_log_density(log_density, 0.0, args=(y,))


@dataclass(frozen=True)
class GaussianFit:
    """The exact posterior of any target that is a normal law, or spoilt: draws shifted and scaled, in posterior sds."""

    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, target, seed):
        mean, factor = _normal_of(target)
        return GaussianPosterior(target, mean, factor, self.shift, self.scale)


EXACT = relbo.Stop("converged", "it is exact")


@dataclass(frozen=True)
class GaussianPosterior:
    target: object
    mean: object
    factor: object
    shift: float
    scale: float
    stop: relbo.Stop = EXACT

    def sample_unconstrained(self, num_draws, *, seed):
        noise = np.random.default_rng(seed).standard_normal((num_draws, len(self.mean))).astype(self.target.dtype)
        return self.mean + (self.shift + self.scale * noise) @ self.factor.T

    def constrain(self, draws):
        return _constrained(self.target, draws)


@eqx.filter_jit
def _normal_of(target):
    origin = jnp.zeros(target.dim, target.dtype)
    gradient, precision = jax.grad(target.log_density)(origin), -jax.hessian(target.log_density)(origin)
    return jnp.linalg.solve(precision, gradient), jnp.linalg.cholesky(jnp.linalg.inv(precision))


@eqx.filter_jit
def _constrained(target, draws):
    return jax.vmap(target.constrain)(draws)


def calibrate(*args, **kwargs):
    settings = {"num_simulations": 200, "num_draws": 199, "num_processes": 1, "level": FALSE_ALARM}
    return relbo.calibrate(*args, **(settings | kwargs))


# Ranks and their test


def test_every_test_has_its_level():
    """The p-values of uniform ranks are uniform: at 5 % and at 1 % as many are smaller as there should be."""
    num, num_draws = 40, 19
    ranks = np.random.default_rng(3).integers(0, num_draws + 1, (num, 4000))
    tests = [check_ranks("", column) for column in uniforms(ranks, num_draws, seed=1).T]
    for name in ("p_bias", "p_width", "p_shape"):
        p_values = np.array([getattr(test, name) for test in tests])
        for level in (0.05, 0.01):
            low, high = stats.binom.ppf([FALSE_ALARM / 12, 1 - FALSE_ALARM / 12], len(tests), level)
            assert low <= np.sum(p_values < level) <= high, (name, level)
    together = np.array([test.p_value for test in tests])
    assert np.sum(together < 0.01) <= stats.binom.ppf(1 - FALSE_ALARM, len(tests), 0.01)


def test_ranks_of_ties_are_uniform():
    draws = np.zeros((9, 5000))
    ranks = rank_of(np.zeros(5000), draws, np.random.default_rng(0))
    assert stats.chisquare(np.bincount(ranks, minlength=10)).pvalue > FALSE_ALARM
    assert rank_of(np.array([2.5]), np.arange(5.0)[:, None], np.random.default_rng(0)) == [3]


def test_holm_adjusts():
    np.testing.assert_allclose(holm(np.array([0.03, 0.01, 0.5])), [0.06, 0.03, 0.5])


def test_the_band_holds_for_the_whole_curve():
    num, samples = 60, 3000
    points, low, high = ecdf_band(num)
    draws = np.random.default_rng(9).random((samples, num, 1))
    curves = (draws <= points).mean(axis=1) - points
    left = np.sum(((curves < low - 1e-12) | (curves > high + 1e-12)).any(axis=1))
    # The band itself is simulated from 2000 samples, so its level is 0.01 give or take 0.0022.
    spread = np.sqrt(0.01 * 0.99 * (1 / samples + 1 / 2000))
    assert abs(left / samples - 0.01) <= stats.norm.isf(FALSE_ALARM / 2) * spread


# Fits


def test_exact_posteriors_are_calibrated():
    for found in (calibrate(regression, X, y=Y, fit=GaussianFit()), calibrate(simulate, **SIMULATOR)):
        assert found.passed and found.num_failures == 0 and found.ranks.shape == (200, len(found.names))
        assert found.names[-1] == "log joint density"
        assert "Calibrated" in found.verdict


@pytest.mark.parametrize(
    "spoilt, words", [(GaussianFit(shift=0.7), "too high"), (GaussianFit(shift=-0.7), "too low"),
                      (GaussianFit(scale=0.6), "too narrow"), (GaussianFit(scale=1.8), "too wide")],
)  # fmt: skip
def test_a_spoilt_fit_is_found_and_named(spoilt, words):
    found = calibrate(simulate, make_target=make_target, fit=spoilt, num_simulations=100)
    assert not found.passed
    test = next(test for test in found.tests if test.name == "z")
    assert test.problem(FALSE_ALARM) == words
    assert words in str(found) and "Not calibrated" in found.verdict
    scale, shift = spoilt.scale, spoilt.shift
    assert abs(test.width.value - 1 / scale) < 6 * test.width.std_err + 0.1  # extreme ranks are cut at the last draw
    assert abs(test.shift.value - shift) < 6 * test.shift.std_err


def test_a_fit_that_returns_the_prior_is_found_by_the_log_joint_density():
    def prior(target, seed):
        one = jnp.ones((1,), target.dtype)
        return GaussianPosterior(target, one, one[:, None], 0.0, 1.0)

    found = calibrate(simulate, make_target=make_target, fit=prior, num_simulations=100)
    assert found.p_values["log joint density"] < FALSE_ALARM < found.p_values["z"]


SIMULATOR = {"make_target": make_target, "fit": GaussianFit()}


@dataclass(frozen=True)
class Shrunk:
    """A fitted posterior whose draws are drawn towards their mean."""

    posterior: relbo.Posterior

    @property
    def stop(self):
        return self.posterior.stop

    def sample_unconstrained(self, num_draws, *, seed):
        draws = self.posterior.sample_unconstrained(num_draws, seed=seed)
        return draws.mean(axis=0) + 0.4 * (draws - draws.mean(axis=0))

    def constrain(self, draws):
        return self.posterior.constrain(draws)


class Counted:
    """A fit that notes how many programs had been compiled when it was called, and keeps what it found."""

    def __init__(self, fit):
        self.fit, self.counts, self.compiled, self.found = fit, [], 0, {}
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, name, *args, **kwargs):
        self.compiled += "backend_compile" in name

    def __call__(self, target, seed):
        self.counts.append(self.compiled)
        self.found[seed] = self.fit(target, seed)
        return self.found[seed]


def default_fit(target, seed):
    return relbo.fit(target, seed=seed, progress_bar=False)


@pytest.mark.parametrize("num", [25, pytest.param(50, marks=pytest.mark.slow)])
def test_the_default_fit_is_calibrated_and_a_crippled_one_is_not(num):
    """The bar. All fits share the programs that the first ones compiled. The crippled ones are the same, shrunk."""
    fit = Counted(default_fit)
    good = calibrate(regression, X, y=Y, num_simulations=num, fit=fit)
    assert good.passed, str(good)
    bad = calibrate(regression, X, y=Y, num_simulations=num, fit=lambda target, seed: Shrunk(fit.found[seed]))
    assert not bad.passed and "too narrow" in bad.verdict, str(bad)
    assert fit.counts[-1] == fit.counts[5] > 0, fit.counts


# At one data set


@pytest.fixture(scope="module")
def exact_posterior():
    """The exact posterior of the regression as a mixture of one component."""
    from handmade import full_normals, posterior_of

    target = relbo.from_numpyro(regression, X, y=Y)
    mean, factor = map(np.asarray, _normal_of(target))

    def posterior(scale=1.0):
        return posterior_of(full_normals([mean - np.asarray(target.initial[0])], [scale * factor], [1.0]), target)

    return posterior


def counts(group, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0, scale))
    with numpyro.plate("rows", 6), numpyro.handlers.mask(mask=np.arange(6) != 2):
        numpyro.sample("y", dist.Poisson(jnp.exp(effect[group])), obs=y)


def test_simulated_data_enter_the_density_as_they_should():
    """Exactly: the model on new data is the model with these as its argument; repeated, their likelihood is added."""
    from relbo.calibration.numpyro_models import Reobserved, Repeated

    group, y, new = np.array([0, 1, 2, 0, 1, 2]), np.array([1, 0, 3, 2, 1, 1]), np.array([0, 4, 2, 1, 0, 5])
    own, other = relbo.from_numpyro(counts, group, y), relbo.from_numpyro(counts, group, new)
    again = relbo.from_numpyro(Reobserved(counts), {"y": new}, group, y)
    both = relbo.from_numpyro(Repeated(counts), {"y": new}, group, y)
    z = jnp.array([-0.3, 0.4, -1.1, 0.7])
    added = other.log_likelihood(z)["y"].sum()
    np.testing.assert_allclose(again.log_density(z), other.log_density(z), rtol=1e-6)
    np.testing.assert_allclose(both.log_density(z), own.log_density(z) + added, rtol=1e-5)
    assert added < -1.0


def test_calibration_at_one_data_set(exact_posterior):
    found = calibrate(exact_posterior(), fit=GaussianFit())
    assert found.passed, str(found)
    assert not calibrate(exact_posterior(), fit=GaussianFit(scale=0.7)).passed


def test_a_wrong_posterior_is_found_though_the_fits_are_exact(exact_posterior):
    assert not calibrate(exact_posterior(scale=0.3), fit=GaussianFit(), num_simulations=400).passed


# Trouble


def fails_for_large_data(target, seed):
    if float(target.args[0].mean()) > 1.5:
        raise ArithmeticError("too large for me")
    return GaussianFit()(target, seed)


def test_failures_are_counted_not_hidden():
    found = calibrate(simulate, make_target=make_target, fit=fails_for_large_data, num_simulations=60)
    assert 5 < found.num_failures < 40 and len(found.ranks) + found.num_failures == 60
    assert all(failure.message == "ArithmeticError: too large for me" for failure in found.failures)
    assert not found.passed and f"{found.num_failures} of 60 simulations failed" in found.verdict
    assert "too large for me" in str(found)


def test_a_hopeless_fit_ends_soon():
    with pytest.raises(RuntimeError, match=r"10 of 10 simulations failed.*no setting famly"):
        calibrate(regression, X, y=Y, fit={"famly": "normal"})


@dataclass(frozen=True)
class DiesFor:
    seed: int

    def __call__(self, target, seed):
        if seed == self.seed:
            os._exit(3)
        return GaussianFit()(target, seed)


@pytest.mark.slow
def test_processes_change_nothing_and_may_die():
    """The same ranks from two processes as from one, but for the one whose process is ended by the fit."""
    seeds = []

    def noted(target, seed):
        seeds.append(seed)
        return GaussianFit()(target, seed)

    here = calibrate(regression, X, y=Y, num_simulations=8, fit=noted)
    there = calibrate(regression, X, y=Y, num_simulations=8, fit=DiesFor(seeds[5]), num_processes=2)
    assert here.names == there.names
    (failure,) = there.failures
    assert failure.simulation == 5 and "process died" in failure.message
    np.testing.assert_array_equal(there.ranks, np.delete(here.ranks, 5, axis=0))


def test_a_stopped_calibration_goes_on(tmp_path):
    """From its file, to the same ranks; what failed is not tried again, and another calibration is refused."""
    path, settings = tmp_path / "ranks.jsonl", {"make_target": make_target, "num_simulations": 30}
    whole = calibrate(simulate, fit=fails_for_large_data, **settings)
    calls = []

    def stopped(target, seed):
        calls.append(seed)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return fails_for_large_data(target, seed)

    stopped.__qualname__ = fails_for_large_data.__qualname__  # a function is known by its name
    with pytest.warns(UserWarning, match="Interrupted: returning the ranks of 12"):
        calibrate(simulate, fit=stopped, checkpoint=path, **settings)
    resumed = calibrate(simulate, fit=stopped, checkpoint=path, **settings)
    assert len(calls) == 13 + 18
    assert resumed.names == whole.names and resumed.failures == whole.failures and resumed.num_failures > 0
    np.testing.assert_array_equal(resumed.ranks, whole.ranks)
    with pytest.raises(ValueError, match=r"belongs to another call \(seed: 0 there, 1 here\)"):
        calibrate(simulate, fit=stopped, checkpoint=path, seed=1, **settings)


def test_ctrl_c_keeps_what_is_done():
    calls = []

    def fit(target, seed):
        calls.append(seed)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return GaussianFit()(target, seed)

    with pytest.warns(UserWarning, match="Interrupted: returning the ranks of 6 simulations"):
        found = calibrate(simulate, make_target=make_target, fit=fit)
    assert len(found.ranks) == 6 and found.interrupted and "interrupted" in found.verdict


def test_nan_is_a_failure():
    def simulate_nan(rng):
        mu, y = simulate(rng)
        return np.where(rng.random() < 0.2, np.nan, mu), y

    found = calibrate(simulate_nan, make_target=make_target, fit=GaussianFit(), num_simulations=40)
    assert found.num_failures > 0 and "z is NaN" in found.failures[0].message


def test_wrong_use_is_explained():
    def factored(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.factor("extra", -(mu**2))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    with pytest.raises(ValueError, match=r"factor sites \(extra\)"):
        calibrate(factored, Y)
    with pytest.raises(ValueError, match="no observed sites"):
        calibrate(regression, X)
    with pytest.raises(TypeError, match="knows a density, and not how data are drawn"):
        calibrate(make_target(Y[:4].astype(np.float32)))
    with pytest.raises(ValueError, match="num_simulations must be an integer of at least 2, got 1"):
        calibrate(regression, X, y=Y, num_simulations=1)
    with pytest.raises(RuntimeError, match=r"simulate\(rng\) must return \(params, data\)"):
        calibrate(lambda rng: 1.0, make_target=make_target)
    with pytest.raises(RuntimeError, match="'nu' of shape"):
        calibrate(lambda rng: ({"nu": 1.0}, simulate(rng)[1]), make_target=make_target, fit=GaussianFit())


def test_the_picture_shows_the_worst():
    import matplotlib

    matplotlib.use("agg")
    found = calibrate(regression, X, y=Y, fit=GaussianFit(scale=0.5), num_simulations=50)
    figure = plot_ranks(found, num_quantities=2)[0, 0].figure
    titles = [axes.get_title() for axes in figure.axes]
    assert len(figure.axes) == 4 and titles[0].startswith(found.worst[0].name)
    bars = figure.axes[0].patches[1:]  # after the band
    assert sum(bar.get_height() for bar in bars) == 50

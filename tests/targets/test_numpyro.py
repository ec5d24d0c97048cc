"""The NumPyro door: densities against NumPyro's and hand-written ones, minibatches, enumeration, data as leaves."""

import functools
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import Predictive, Trace_ELBO
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy

import relbo
from helpers import door_of, quick_settings
from relbo.model.door import anchored

RNG = np.random.default_rng(0)
NUM_ROWS = 60
X = RNG.normal(size=(NUM_ROWS, 3))
Y = (RNG.random(NUM_ROWS) < 0.5).astype(float)
POINTS = RNG.normal(size=NUM_ROWS) + np.where(RNG.random(NUM_ROWS) < 0.3, -3.0, 3.0)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def logistic(x, y=None, batch_size=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    slope = numpyro.deterministic("slope", beta * scale)
    with numpyro.plate("row", x.shape[0], subsample_size=batch_size) as rows:
        observed = None if y is None else y[rows]
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=observed)


def two_groups(points, batch_size=None):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    means = numpyro.sample("means", dist.Normal(0, 5).expand([2]).to_event(1))
    numpyro.deterministic("gap", means[1] - means[0])
    with numpyro.plate("point", points.shape[0], subsample_size=batch_size) as rows:
        group = numpyro.sample("group", dist.Categorical(weights))
        numpyro.deterministic("mean_of_point", means[group])
        numpyro.sample("x", dist.Normal(means[group], 1), obs=points[rows])


def schools(errors, effects=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(errors)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)


def everything(y):
    """Improper and dynamic supports, a matrix, a factor, a mask, a scan over latents."""
    bound = numpyro.sample("bound", dist.ImproperUniform(dist.constraints.positive, (), ()))
    inside = numpyro.sample("inside", dist.Uniform(0, bound))
    numpyro.sample("corr", dist.LKJCholesky(3, 2.0))
    numpyro.factor("decay", -bound)

    def step(last, _):
        state = numpyro.sample("state", dist.Normal(last, 1))
        return state, state

    _, states = scan(step, 0.0, jnp.arange(5))
    with handlers.mask(mask=jnp.arange(5) != 1):
        numpyro.sample("y", dist.Normal(states * inside, 1), obs=y)


decentred = handlers.reparam(schools, config={"theta": LocScaleReparam(0)})


@pytest.mark.parametrize(
    ("model", "args"),
    [(logistic, (X, Y)), (schools, (ERRORS, EFFECTS)), (decentred, (ERRORS, EFFECTS)), (everything, (Y[:5],))],
    ids=["logistic", "schools", "reparam", "everything"],
)
def test_log_density_is_numpyros_own(model, args):
    with jax.enable_x64(True):
        target = relbo.from_numpyro(model, *args)
        z = jnp.asarray(np.random.default_rng(1).normal(size=(20, target.dim)))
        flat, arrays = jax.vmap(target._split)(z), jax.tree.map(jnp.asarray, args)
        expected = jax.jit(jax.vmap(lambda params: -potential_energy(model, arrays, {}, params)))(flat)
        np.testing.assert_allclose(jax.jit(jax.vmap(target.log_density))(z), expected, rtol=1e-12)
        values = jax.jit(jax.vmap(target.constrain))(z)
        np.testing.assert_allclose(jax.jit(jax.vmap(target.unconstrain))(values), z, atol=1e-9)
        assert len(target.coordinate_names()) == target.dim


def test_sites_of_every_kind_are_named_and_shaped():
    target = relbo.from_numpyro(logistic, X, y=Y)
    assert target.coordinate_names() == ["beta[0]", "beta[1]", "beta[2]", "scale"]
    values = target.constrain(jnp.zeros(4))
    assert {name: value.shape for name, value in values.items()} == {"beta": (3,), "scale": (), "slope": (3,)}
    assert target.dims()["y"] == ("row",)
    assert len(target.coords()["row"]) == NUM_ROWS
    np.testing.assert_array_equal(target.observed_data()["y"], Y.astype(np.float32))
    assert list(target.constant_data()) == ["x"]
    assert list(relbo.from_numpyro(decentred, ERRORS, EFFECTS).constrain(jnp.zeros(10))) == [
        "mu", "tau", "theta_decentered", "theta",
    ]  # fmt: skip


def test_masked_observations_do_not_count():
    target = relbo.from_numpyro(everything, Y[:5])
    pointwise = jax.jit(target.log_likelihood)(jnp.full(target.dim, 0.3))["y"]
    assert pointwise[1] == 0 and np.all(pointwise[jnp.array([0, 2, 3, 4])] != 0)


def marginal(z, points):
    """The two-group mixture by hand, its simplex mapped as NumPyro does."""
    bijection = dist.biject_to(dist.constraints.simplex)
    weights = bijection(z[:1])
    log_det = bijection.log_abs_det_jacobian(z[:1], weights)
    likelihood = logsumexp(jnp.log(weights) + dist.Normal(z[1:], 1).log_prob(points[:, None]), axis=1).sum()
    prior = dist.Dirichlet(jnp.ones(2)).log_prob(weights) + dist.Normal(0, 5).log_prob(z[1:]).sum()
    return likelihood + prior + log_det


@pytest.mark.parametrize("enumerated", [False, True])
def test_minibatches_over_a_partition_average_to_the_whole(enumerated):
    model, args = (two_groups, (POINTS,)) if enumerated else (logistic, (X, Y))
    plate = "point" if enumerated else "row"
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        target = relbo.from_numpyro(model, *args, batch_size=12)
        z = jnp.asarray(np.random.default_rng(2).normal(size=target.dim))
        whole = jax.jit(relbo.from_numpyro(model, *args).log_density)(z)
        partition = np.random.default_rng(3).permutation(NUM_ROWS).reshape(-1, 12)
        on_batch = jax.jit(jax.vmap(lambda rows: target.log_density_on(z, {plate: rows})))(jnp.asarray(partition))
        assert abs(jax.jit(target.log_density)(z) - whole) < 1e-10
        assert abs(np.mean(on_batch) - whole) < 1e-10
        assert np.std(on_batch) > 0.1
        if enumerated:
            assert abs(whole - marginal(z, POINTS)) < 1e-10


def test_the_control_variate_is_unbiased_and_its_noise_of_second_order():
    with jax.enable_x64(True):
        target = relbo.from_numpyro(logistic, X, Y, batch_size=12)
        anchor, direction = jnp.full(4, 0.1), jnp.asarray([0.3, -0.5, 0.4, 0.7])
        climbed = anchored(door_of(target), anchor).target.target
        keys = jax.random.split(jax.random.key(0), 400)

        whole = jax.jit(target.log_density)
        estimates = jax.jit(lambda z: jax.vmap(lambda key: climbed.subsample(key).log_density(z))(keys))

        def at(distance):
            near = anchor + distance * direction
            errors = np.asarray(estimates(near) - whole(near))
            assert abs(errors.mean()) <= 4 * errors.std() / np.sqrt(len(keys)) + 1e-12  # rounding
            return errors.std()

        assert at(0.0) == pytest.approx(0, abs=1e-10)
        assert at(0.02) / at(0.01) == pytest.approx(4, rel=0.1)


def test_deterministics_that_hang_on_a_discrete_site_are_left_out():
    values = relbo.from_numpyro(two_groups, POINTS).constrain(jnp.zeros(3))
    assert set(values) == {"weights", "means", "gap"}


def test_new_data_of_the_same_shape_compile_nothing():
    traces = 0

    def counted(y, scale):
        nonlocal traces
        traces += 1
        mu = numpyro.sample("mu", dist.Normal(0, scale))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    settings = {"max_components": 2, "seed": 0, **quick_settings()}
    first = relbo.from_numpyro(counted, np.ones(4), 3)
    relbo.fit(first, **settings)
    before = traces
    second = relbo.from_numpyro(counted, np.full(4, 5.0), 3)
    moved = relbo.fit(second, **settings)
    assert traces == before + 1  # the abstract trace that reads the sites
    relbo.fit(first.with_data(np.full(4, 2.0), 3), **settings)
    assert traces == before + 1
    posterior_mean = 4 * 5.0 / (4 + 1 / 9)
    draws = moved.sample(4000)["mu"]
    assert abs(draws.mean() - posterior_mean) < 5 * draws.std() / np.sqrt(4000)


@pytest.fixture(scope="module")
def fitted():
    target = relbo.from_numpyro(schools, ERRORS, effects=EFFECTS)
    return relbo.fit(target, seed=0, max_components=2, progress_bar=False)


def test_the_posterior_is_a_guide(fitted):
    guide = fitted.as_guide()
    predicted = Predictive(schools, guide=guide, num_samples=50)(jax.random.key(0), ERRORS)
    assert predicted["effect"].shape == (50, 8)
    # NumPyro's ELBO of the guide is ours: the Jacobians are in their places.
    loss = jax.jit(lambda key: Trace_ELBO(1000).loss(key, {}, schools, guide, ERRORS, EFFECTS))
    losses = [float(loss(jax.random.key(i))) for i in range(8)]
    error = np.hypot(np.std(losses, ddof=1) / np.sqrt(8), fitted.elbo.std_err)
    assert abs(-np.mean(losses) - fitted.elbo.value) < 6 * error


def test_prediction(fitted):
    again = relbo.predict(fitted, num_draws=2000)["effect"]
    assert again.shape == (2000, 8)
    theta = fitted.sample(2000)["theta"]
    spread = np.sqrt(theta.var(0) + ERRORS**2)
    np.testing.assert_allclose(again.mean(0), theta.mean(0), atol=5 * spread.max() / np.sqrt(2000))
    np.testing.assert_allclose(again.std(0), spread, rtol=0.15)
    assert relbo.predict(fitted, ERRORS * 2, num_draws=10)["effect"].shape == (10, 8)
    prior, predictive = fitted.target.sample_prior(20, seed=0)
    assert prior["theta"].shape == (20, 8) and predictive["effect"].shape == (20, 8)


def plain(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def regression(x, y=None, batch_size=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("row", x.shape[0], subsample_size=batch_size) as rows:
        numpyro.sample("y", dist.Normal(slope * x[rows], 1), obs=None if y is None else y[rows])


def test_predictions_have_the_shape_of_the_data():
    """A likelihood outside a plate is as wide as its data; a subsampled plate predicts all rows, also of new data."""
    draws = {"mu": np.zeros(3), "slope": np.zeros(3)}
    assert relbo.from_numpyro(plain, Y).predict(draws, 0)["y"].shape == (3, NUM_ROWS)
    prior, predictive = relbo.from_numpyro(plain, Y).sample_prior(5, 0)
    assert prior["mu"].shape == (5,) and predictive["y"].shape == (5, NUM_ROWS)
    target = relbo.from_numpyro(regression, X[:, 0], Y, 10)
    assert target.predict(draws, 0)["y"].shape == (3, NUM_ROWS)
    assert target.predict(draws, 0, X[:12, 0], None, 10)["y"].shape == (3, 12)


def test_conditioned_sites_are_predicted_and_not_repeated():
    conditioned = handlers.condition(regression, data={"y": Y})
    predicted = relbo.from_numpyro(conditioned, X[:, 0]).predict({"slope": np.full(2, 3.0)}, 0, 100 * X[:, 0])["y"]
    np.testing.assert_allclose(predicted[0], 300 * X[:, 0], atol=6)


def with_factor(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("row", y.shape[0]), handlers.mask(mask=y > 0):
        numpyro.factor("penalty", -(mu**2))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def test_a_factor_in_a_plate_is_no_observation():
    target = relbo.from_numpyro(with_factor, Y)
    assert list(target.log_likelihood(jnp.zeros(1))) == ["y"] and list(target.observed_data()) == ["y"]
    assert list(target.predict({"mu": np.zeros(2)}, 0)) == ["y"]


def test_a_target_survives_pickling():
    target = relbo.from_numpyro(plain, Y)
    again = pickle.loads(pickle.dumps(target))
    assert again.log_density(jnp.ones(1)) == target.log_density(jnp.ones(1))


def with_key(y, key):
    mu = numpyro.sample("mu", dist.Normal(jax.random.normal(key), 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def test_random_keys_may_be_arguments():
    target = relbo.from_numpyro(with_key, Y, jax.random.key(3))
    assert target.constant_data() == {} and np.isfinite(target.log_density(jnp.zeros(1)))


def looks_at_its_data(group, y):
    with numpyro.plate("group", len(np.unique(group))):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu[group], 1), obs=y)


def test_a_model_that_needs_plain_numbers_gets_them_bound():
    group = np.arange(NUM_ROWS) % 4
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        relbo.from_numpyro(looks_at_its_data, group, Y)
    assert "functools.partial(model, group=group)" in "".join(caught.value.__notes__)
    assert relbo.from_numpyro(functools.partial(looks_at_its_data, group), Y).dim == 4


def bad_delta(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    double = numpyro.sample("double", dist.Delta(2 * mu))
    numpyro.sample("y", dist.Normal(double, 1), obs=y)


def bad_no_latents(y):
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def bad_poisson():
    numpyro.sample("count", dist.Poisson(3.0))


def bad_local(y, batch_size):
    with numpyro.plate("row", len(y), subsample_size=batch_size) as rows:
        theta = numpyro.sample("theta", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y[rows])


def bad_param():
    numpyro.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1))


def bad_global_discrete(y, batch_size):
    group = numpyro.sample("group", dist.Bernoulli(0.3))
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("row", len(y), subsample_size=batch_size) as rows:
        numpyro.sample("y", dist.Normal(mu + group, 1), obs=y[rows])


def bad_nowhere(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("never", jnp.log(-(mu**2) - 1))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: relbo.from_numpyro(bad_no_latents, Y), ValueError, "no continuous latent sites.*y \\(observed\\)"),
        (lambda: relbo.from_numpyro(bad_poisson), ValueError, "'count' is discrete \\(Poisson\\).*Marginalise"),
        (lambda: relbo.from_numpyro(bad_local, Y, 5), ValueError, "'theta' lies inside the subsampled plate 'row'"),
        (lambda: relbo.from_numpyro(bad_delta, Y), ValueError, "'double' is a point mass.*deterministic"),
        (lambda: relbo.from_numpyro(plain, np.ma.masked_equal(Y, 0)), TypeError, "masked array.*obs_mask"),
        (lambda: relbo.from_numpyro(plain, np.array(["a", "b"])), TypeError, "dtype <U1.*integers"),
        (lambda: relbo.from_numpyro(everything, Y[:5]).sample_prior(3, 0), ValueError, "prior cannot be sampled"),
        (lambda: relbo.from_numpyro(bad_param), ValueError, "numpyro.param site, 'loc'.*prior"),
        (lambda: relbo.from_numpyro(bad_global_discrete, Y, 5), ValueError, "'group' lies outside the subsampled"),
        (
            lambda: relbo.from_numpyro(bad_nowhere, Y),
            ValueError,
            "is nan .*99 other.*factor .never. is never = nan",
        ),
        (lambda: relbo.from_numpyro(logistic, {1, 2}), TypeError, "type set, which is neither an array nor hashable"),
        (
            lambda: relbo.from_numpyro(logistic, X, Y).with_data(X[:5], Y[:5]),
            ValueError,
            r"float32\[60, 3\].*got.*float32\[5, 3\].*new target",
        ),
        (
            lambda: relbo.from_numpyro(logistic, X, Y).unconstrain({"beta": np.zeros(3)}),
            ValueError,
            "params has no 'scale'",
        ),
    ],
)
def test_bad_input_gets_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_enumeration_without_funsor_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "funsor", None)
    with pytest.raises(ImportError, match=r"relbo\[enumeration\]"):
        relbo.from_numpyro(two_groups, POINTS)


def test_other_targets_have_no_guide_and_no_prediction():
    target = relbo.from_log_density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(1))
    posterior = relbo.fit(target, max_components=1, **quick_settings())
    with pytest.raises(ValueError, match="as_guide needs a target made by"):
        posterior.as_guide()
    with pytest.raises(ValueError, match="cannot predict"):
        relbo.predict(posterior)

"""Numbers that are not rounding: log p near -4e5, where neighbours in float32 are 0.03 nats apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import door_of, within
from relbo.model import precise
from relbo.model.precise import is_coarse, rounding_of
from relbo.objectives.evaluate import duality_gap, improvement, influence

ROWS, LOW = 40_000, 10.0
SLOPE, PRIOR_SD = 0.7, 2.0
SETTINGS = {"progress_bar": False, "seed": 0}


def regression(z, x, y):
    """A line through the rows, each of which has a constant of its own: log p is about -4.2e5, and log Z known."""
    return jnp.sum(-0.5 * (y - z[0] - z[1] * x) ** 2 - LOW) - 0.5 * jnp.sum((z / PRIOR_SD) ** 2)


def rows(dtype=np.float32):
    rng = np.random.default_rng(3)
    x = rng.normal(size=ROWS)
    return tuple(part.astype(np.float32).astype(dtype) for part in (x, 0.4 + SLOPE * x + rng.normal(size=ROWS)))


def exact():
    """log Z and the posterior's precision, in float64."""
    x, y = rows(np.float64)
    features = np.stack([np.ones_like(x), x], axis=1)
    precision = features.T @ features + np.eye(2) / PRIOR_SD**2
    mean = np.linalg.solve(precision, features.T @ y)
    residual = y - features @ mean
    top = -0.5 * residual @ residual - LOW * ROWS - 0.5 * np.sum((mean / PRIOR_SD) ** 2)
    return top + np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1], mean, precision


def numpyro_target():
    pytest.importorskip("numpyro")
    import numpyro
    from numpyro import distributions as dist

    def model(x, y):
        z = numpyro.sample("z", dist.Normal(0.0, PRIOR_SD).expand([2]).to_event(1))
        numpyro.factor("rows", jnp.sum(-0.5 * (y - z[0] - z[1] * x) ** 2 - LOW))

    return relbo.from_numpyro(model, *rows())


def pymc_target():
    pymc = pytest.importorskip("pymc")
    x, y = rows()
    with pymc.Model() as model:
        z = pymc.Normal("z", 0.0, PRIOR_SD, shape=2)
        pymc.Potential("rows", (-0.5 * (pymc.Data("y", y) - z[0] - z[1] * pymc.Data("x", x)) ** 2 - LOW).sum())
    return relbo.from_pymc(model)


def jax_target():
    return relbo.from_log_density(regression, jnp.zeros(2), args=rows())


def host_target():
    x, y = rows(np.float64)

    def both(z):
        residual = y - z[0] - z[1] * x
        value = np.sum(-0.5 * residual**2 - LOW) - 0.5 * np.sum((z / PRIOR_SD) ** 2)
        return value, np.array([residual.sum(), residual @ x]) - z / PRIOR_SD**2

    return relbo.from_callable(both, dim=2)


PRIOR = 2 * np.log(PRIOR_SD * np.sqrt(2 * np.pi))  # what a prior with its constants has more than ours
DOORS = {
    "jax": (jax_target, 0.0),
    "host": (host_target, 0.0),
    "numpyro": (numpyro_target, PRIOR),
    "pymc": (pymc_target, PRIOR),
}


@pytest.mark.parametrize("name", DOORS)
def test_the_door_compares_in_float64(name):
    """Steps of a millionth of a standard deviation up to one: float32 is wrong by a hundredth of a nat."""
    make, _ = DOORS[name]
    _, mean, precision = exact()
    door = door_of(make())
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    start = np.asarray(door.target.params.loc, np.float64)
    points = (mean - start + np.linspace(0.0, 1.0, 40)[:, None] * sd).astype(np.float32)
    away = start + points.astype(np.float64) - mean
    truth = -0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
    log_p, rounding = door.values(points, "some")
    assert log_p.dtype == np.float64 and np.abs((log_p - log_p[0]) - (truth - truth[0])).max() < 1e-5
    assert rounding < 1e-9
    coarse = door.numbers(points, "some")[0]
    assert np.abs((coarse - coarse[0]) - (truth - truth[0])).max() > 5e-3


@pytest.mark.parametrize("name", ["jax", *(pytest.param(name, marks=pytest.mark.slow) for name in list(DOORS)[1:])])
def test_the_elbo_of_a_default_fit_is_log_z(name, recwarn):
    """The posterior is a normal, so that the ELBO can reach log Z, and the rules know that it has."""
    make, constant = DOORS[name]
    log_z, _, _ = exact()
    posterior = relbo.fit(make(), **SETTINGS)
    truth = log_z - constant
    last = posterior.trace[-1]
    assert last.rounding < 1e-9 and last.spread < 0.1 and posterior.num_components == 1
    assert abs(float(posterior.elbo.value) - truth) < 2e-3 < abs(np.spacing(np.float32(truth))) / 10
    assert "is within about" in posterior.stop_reason
    assert not [warning for warning in recwarn if "is rounded to" in str(warning.message)]
    assert not jax.config.jax_enable_x64 and posterior.sample_unconstrained(3).dtype == np.float32
    diagnosis = relbo.diagnose(posterior, num_draws=1000)
    assert within(diagnosis.log_z.value, diagnosis.log_z.std_err, truth, rounding=1e-3)


@pytest.mark.slow
def test_it_agrees_with_a_fit_in_float64():
    single = relbo.fit(jax_target(), **SETTINGS)
    with jax.enable_x64(True):
        double = relbo.fit(relbo.from_log_density(regression, np.zeros(2), args=rows(np.float64)), **SETTINGS)
    assert double.target.dtype == np.float64
    difference = float(single.elbo.value) - float(double.elbo.value)
    assert within(difference, np.hypot(single.elbo.std_err, double.elbo.std_err), 0.0, rounding=1e-3)


def test_small_values_meet_the_program_that_there_is():
    door = door_of(relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2) - 100.0, jnp.zeros(2)))
    points = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    before = len(precise._programs)
    log_p, rounding = door.values(points, "some")
    np.testing.assert_array_equal(log_p, door.numbers(points, "some")[0])
    assert len(precise._programs) == before and door.spent["some"] == 2 * 300
    assert 0.5 < rounding / (np.finfo(np.float32).eps * 100) < 2


def casts(z, x, y):
    return jnp.sum(regression(z, x, y).astype(jnp.float32))


def insists(z, x, y):
    """A loop that carries float32, and so cannot carry anything else."""
    first = jnp.zeros((), jnp.float32)
    return jax.lax.fori_loop(0, 1, lambda _, sofar: sofar + regression(z, x, y), first) if z.dtype == jnp.float32 else (
        jax.lax.scan(lambda sofar, _: (sofar + regression(z, x, y), None), first, None, length=1)[0]
    )  # fmt: skip


@pytest.mark.parametrize("function", [casts, pytest.param(insists, marks=pytest.mark.slow)])
def test_a_model_that_insists_on_float32_is_fitted_in_it_and_said_to_be(function, recwarn):
    log_z, _, _ = exact()
    posterior = relbo.fit(relbo.from_log_density(function, jnp.zeros(2), args=rows()), **SETTINGS)
    unit = np.finfo(np.float32).eps * abs(log_z)
    assert posterior.trace[-1].rounding == pytest.approx(unit, rel=1e-3)
    assert posterior.elbo.std_err >= 0.999 * unit, "an error contains the rounding"
    assert within(posterior.elbo.value, posterior.elbo.std_err, log_z)
    said = [str(warning.message) for warning in recwarn if "is rounded to" in str(warning.message)]
    assert len(said) == 1 and "casts to float32" in said[0]


def test_nothing_smaller_than_the_rounding_is_decided_on():
    weights, ratios = np.ones(1), np.random.default_rng(0).normal(size=(1, 512)) * 1e-3
    before, after = influence(ratios, weights, rounding=0.03), influence(ratios + 0.02, weights, rounding=0.03)
    gained = improvement(before, after)
    assert gained.value == pytest.approx(0.02) and gained.std_err >= 0.03
    booster = relbo.make_booster(relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2)))
    assert not booster._is_gain(gained)
    assert booster._is_gain(improvement(*(influence(ratios + up, weights, rounding=1e-9) for up in (0.0, 0.02))))
    assert duality_gap(before, ratios[0]).estimate.std_err >= 0.03
    assert before.evaluation().estimate.std_err >= 0.03 and before.evaluation().rounding == 0.03


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_the_switch_of_the_user_is_as_it_was_whatever_happens(kind):
    """Raised while the model is traced in float64."""

    def fails(z, x, y):
        if z.dtype == jnp.float64:
            raise kind("now")
        return regression(z, x, y)

    door = door_of(relbo.from_log_density(fails, jnp.zeros(2), args=rows()))
    points = np.zeros((3, 2), np.float32)
    if kind is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            door.values(points, "some")
    else:
        assert door.values(points, "some").rounding > 0.01, "in float32 it does not fail"
    assert not jax.config.jax_enable_x64 and jnp.zeros(1).dtype == jnp.float32


@pytest.mark.slow
def test_a_resumed_fit_has_the_same_bits(tmp_path):
    """Large, and bent, so that there is more than one iteration; from a checkpoint after each number of them."""

    def bent(z, x, y):
        return regression(z, x, y) - 2.0 * ROWS * (z[1] - SLOPE + 300.0 * (z[0] - 0.4) ** 2) ** 2

    target = relbo.from_log_density(bent, jnp.array([0.4, SLOPE]), args=rows())
    settings = {**SETTINGS, "max_components": 4}
    whole = relbo.fit(target, **settings)
    path = tmp_path / "fit.relbo"
    relbo.fit(target, **settings, max_evaluations=whole.trace[0].evaluations + 50, checkpoint=path)
    resumed = relbo.fit(target, **settings, checkpoint=path)
    assert whole.num_components > 1 and whole.trace[-1].rounding < 1e-9
    assert resumed.elbo.value == whole.elbo.value and len(resumed.trace) == len(whole.trace)
    np.testing.assert_array_equal(resumed.sample_unconstrained(5), whole.sample_unconstrained(5))
    relbo.save(whole, tmp_path / "whole.relbo")
    assert relbo.load(tmp_path / "whole.relbo").trace[-1].rounding == whole.trace[-1].rounding


def test_what_is_coarse_and_what_was_computed_in_float32():
    rng = np.random.default_rng(0)
    large = -4e5 + rng.normal(size=100)
    assert is_coarse(large) and not is_coarse(np.append(large, -3.0)) and not is_coarse(np.full(3, np.nan))
    assert rounding_of(large) < 1e-9 and rounding_of(large.astype(np.float32).astype(np.float64)) > 0.03
    assert rounding_of(np.array([np.nan, -np.inf])) == 0.0

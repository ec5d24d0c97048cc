"""Stan programs as targets: the density, the maps, and errors in Stan's own words.

Two programs are compiled, once for every machine: the user's cache keeps them.
"""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import relbo
from relbo.storage.files import check_alike
from relbo.targets import AbstractTarget, StanTarget, from_callable, from_stan
from stan_programs import CONSTRAINED, COUNTS, EIGHT_SCHOOLS, SCHOOLS


@pytest.fixture(scope="module")
def eight():
    return from_stan(EIGHT_SCHOOLS, SCHOOLS, name="eight_schools")


@pytest.fixture(scope="module")
def constrained():
    return from_stan(CONSTRAINED, COUNTS, name="constrained")


def eight_by_hand(z):
    mu, log_tau, theta_tilde = z[0], z[1], z[2:]
    tau = jnp.exp(log_tau)
    prior = dist.Normal(0, 5).log_prob(mu) + dist.Cauchy(0, 5).log_prob(tau)  # not folded: Stan leaves the log 2 out
    prior += dist.Normal().log_prob(theta_tilde).sum()
    theta = mu + tau * theta_tilde
    return prior + dist.Normal(theta, jnp.asarray(SCHOOLS["sigma"])).log_prob(SCHOOLS["y"]).sum() + log_tau


# Of which type JAX makes an error in a foreign function depends on how far compilation had come.
FOREIGN_ERROR = (jax.errors.JaxRuntimeError, ValueError)


def random_points(dim, num=100, scale=1.5):
    return scale * np.random.default_rng(0).normal(size=(num, dim))


# the contracts of a target


@pytest.mark.parametrize("which", ["eight", "constrained"])
def test_the_protocol(which, request):
    target = request.getfixturevalue(which)
    assert isinstance(target, StanTarget) and isinstance(target, AbstractTarget)
    assert target.differentiable and not target.twice_differentiable
    assert target.initial.shape == (4, target.dim) and not target.initial[0].any()
    assert target.dtype == target.initial.dtype == np.dtype(np.float32)
    assert len(target.coordinate_names()) == len(set(target.coordinate_names())) == target.dim
    values = jax.jit(jax.vmap(target.log_density))(target.initial)
    assert values.shape == (4,) and values.dtype == target.dtype and np.isfinite(values).all()
    back = jax.jit(jax.vmap(lambda z: target.unconstrain(target.constrain(z))))(target.initial)
    np.testing.assert_allclose(back, target.initial, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"expected one point of shape .* Use jax.vmap"):
        target.log_density(jnp.zeros(target.dim + 1))
    hash(jax.tree.structure(target))


def test_coordinate_names_count_from_one_as_stan_does(eight, constrained):
    assert eight.coordinate_names()[:4] == ["mu", "tau", "theta_tilde[1]", "theta_tilde[2]"]
    names = constrained.coordinate_names()
    assert names[:5] == ["p[1]", "p[2]", "L[1]", "pairs[1]:1", "pairs[1]:2[1]"]
    assert "c[2].imag" in names and "m[2,3,1,2]" in names


def test_a_file_that_counts_from_zero_still_goes_with_its_program(eight, constrained):
    """Coordinates were named so once, and the files are still there."""
    for target in (eight, constrained):
        zero = [re.sub(r"\d+(?=[\],])", lambda n: str(int(n[0]) - 1), name) for name in target.coordinate_names()]
        old = eqx.tree_at(lambda each: each.initial, target, target.initial)
        object.__setattr__(old, "names", tuple(zero))
        assert zero != target.coordinate_names()
        check_alike(old, target, "the file")
    with pytest.raises(ValueError, match="has a coordinate"):
        object.__setattr__(old, "names", tuple(name.replace("p", "q") for name in zero))
        check_alike(old, target, "the file")


def test_data_are_kept(eight):
    assert eight.constant_data()["J"] == 8 and eight.dims() == eight.observed_data() == {}
    np.testing.assert_array_equal(eight.constant_data()["y"], SCHOOLS["y"])
    np.testing.assert_array_equal(eight.constant_data()["sigma"], SCHOOLS["sigma"])


# the density


def test_eight_schools_agrees_with_jax_constants_included():
    with jax.enable_x64(True):
        target = from_stan(EIGHT_SCHOOLS, SCHOOLS, name="eight_schools")
        assert target.dtype == np.float64
        points = jnp.asarray(random_points(10))
        both = jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))(points)
        expected = jax.jit(jax.vmap(jax.value_and_grad(eight_by_hand)))(points)
        values_alone = jax.jit(jax.vmap(target.log_density))(points)
    np.testing.assert_allclose(both[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(both[1], expected[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(values_alone, expected[0], rtol=1e-12)


def test_float32_without_x64(eight):
    points = jnp.asarray(random_points(10), jnp.float32)
    values, gradients = jax.vmap(jax.value_and_grad(eight.log_density))(points)
    expected, expected_gradients = jax.vmap(jax.value_and_grad(eight_by_hand))(points)
    assert values.dtype == gradients.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients, expected_gradients, rtol=1e-3, atol=1e-3)


def test_jacobians_are_those_of_the_map():
    """Against the program's density written by hand, and the determinant of the map by central differences."""
    step = 1e-5
    with jax.enable_x64(True):
        target = from_stan(CONSTRAINED, COUNTS, name="constrained")
        z = jnp.asarray(random_points(target.dim, num=1)[0])

        @jax.jit
        def free(z):  # a chart: the entries of p and L that are free
            values = target.constrain(z)
            return jnp.concatenate([values["p"][:2], values["L"][1, :1]])

        shifts = step * jnp.eye(target.dim)[:3]
        jacobian = np.stack([(free(z + shift) - free(z - shift)) / (2 * step) for shift in shifts])
        p, r = target.constrain(z)["p"], target.constrain(z)["L"][1, 0]
        expected = dist.Dirichlet(jnp.array(COUNTS["alpha"])).log_prob(p)
        expected += dist.Multinomial(8, p).log_prob(jnp.array(COUNTS["counts"]))
        expected += jnp.log(0.75 * (1 - r**2)) + dist.Normal().log_prob(z[3:]).sum()
        value = target.log_density(z)
        np.testing.assert_allclose(value, expected + np.linalg.slogdet(jacobian)[1], rtol=1e-7)
        slopes = [(target.log_density(z + s) - target.log_density(z - s)) / (2 * step) for s in shifts]
        np.testing.assert_allclose(jax.grad(target.log_density)(z)[:3], slopes, rtol=1e-6)


def test_nested_vmap_scan_and_one_point_agree(eight):
    points = jnp.asarray(random_points(10, num=6), jnp.float32)
    gradient = jax.value_and_grad(eight.log_density)
    one_by_one = [gradient(z) for z in points]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *one_by_one)
    nested = jax.jit(jax.vmap(jax.vmap(gradient)))(points.reshape(2, 3, 10))
    scanned = jax.jit(lambda zs: jax.lax.scan(lambda _, z: (None, gradient(z)), None, zs))(points)[1]
    for values, gradients in [(nested[0].reshape(6), nested[1].reshape(6, 10)), scanned]:
        np.testing.assert_array_equal(values, expected[0])
        np.testing.assert_array_equal(gradients, expected[1])


def test_a_rejected_point_has_density_zero_and_gradient_zero(constrained):
    rejected = jnp.zeros(constrained.dim).at[0].set(5.0)
    assert constrained.constrain(rejected)["p"][0] > 0.9
    points = jnp.stack([rejected, constrained.initial[1]])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(constrained.log_density)))(points)
    assert values[0] == -jnp.inf and not gradients[0].any()
    assert np.isfinite(values[1]) and gradients[1].any()
    assert constrained.log_density(rejected) == -jnp.inf
    masked = jax.grad(lambda z: jnp.where(z[0] == 5, 0.0, constrained.log_density(z)))(rejected)
    assert not masked.any()


def test_nan_stays_nan(eight):
    value, gradient = jax.value_and_grad(eight.log_density)(eight.initial[1].at[3].set(jnp.nan))
    assert np.isnan(value) and np.isnan(gradient).all()
    assert np.isnan(eight.log_density(eight.initial[1].at[0].set(jnp.nan)))


def test_an_error_that_is_no_rejection_stops_with_stans_words(constrained):
    broken = jnp.zeros(constrained.dim).at[0].set(-20.0).at[1].set(10.0)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"accessing element out of range(.|\n)*'constrained.stan', line"
    ):
        jax.block_until_ready(jax.jit(constrained.log_density)(broken))


def test_a_handle_of_another_process_is_refused(eight):
    stranger = eqx.tree_at(lambda target: target.handle, eight, eight.handle + 1)
    with pytest.raises(FOREIGN_ERROR, match=r"made in another process"):
        jax.block_until_ready(stranger.log_density(eight.initial[0]))


# the maps


def test_constrain_gives_every_variable_in_its_shape(eight, constrained):
    values = jax.jit(eight.constrain)(eight.initial[1])
    assert {name: value.shape for name, value in values.items()} == {
        "mu": (), "tau": (), "theta_tilde": (8,), "theta": (8,), "log_lik": (8,), "y_rep": (8,)
    }  # fmt: skip
    np.testing.assert_allclose(values["tau"], np.exp(eight.initial[1, 1]), rtol=1e-6)
    np.testing.assert_allclose(values["theta"], values["mu"] + values["tau"] * values["theta_tilde"], rtol=1e-5)

    values = constrained.constrain(constrained.initial[1])
    assert values["L"].shape == (2, 2) and values["m"].shape == (2, 3, 1, 2) and values["nothing"].shape == (0,)
    assert values["pairs.1"].shape == (2,) and values["pairs.2"].shape == (2, 3) and values["c"].shape == (2, 2)
    np.testing.assert_allclose(values["p"].sum(), 1, rtol=1e-6)
    assert values["L"][0, 1] == 0 and values["L"][1, 0] != 0
    picked = [values["pairs.1"][1], values["pairs.2"][1, 2], values["c"][0, 1], values["m"][1, 0, 0, 1]]
    np.testing.assert_array_equal(values["picked"], picked)


def test_generated_draws_are_a_function_of_the_point_and_of_the_seed(eight):
    draws = jax.jit(jax.vmap(eight.constrain))(jnp.repeat(eight.initial, 2, axis=0))["y_rep"]
    np.testing.assert_array_equal(draws[::2], draws[1::2])
    assert len(np.unique(draws)) == draws.size / 2
    other = from_stan(EIGHT_SCHOOLS, SCHOOLS, name="eight_schools", seed=1)
    assert not np.any(other.constrain(eight.initial[0])["y_rep"] == draws[0])


def test_generated_draws_have_their_law(eight):
    """Replicated data at nearby points, standardised: 8,000 numbers whose mean and variance have known errors."""
    points = eight.initial[1] + jnp.asarray(1e-3 * random_points(10, num=1000), jnp.float32)
    values = jax.jit(jax.vmap(eight.constrain))(points)
    noise = np.asarray((values["y_rep"] - values["theta"]) / jnp.asarray(SCHOOLS["sigma"]))
    assert abs(noise.mean()) < 4.5 / np.sqrt(noise.size)  # one false alarm in 10^5
    assert abs(noise.var() - 1) < 4.5 * np.sqrt(2 / noise.size)
    assert np.abs(np.corrcoef(noise.T) - np.eye(8)).max() < 5 / np.sqrt(1000)


def test_log_likelihood_is_the_variable_called_log_lik(eight, constrained):
    (name, values), *others = jax.jit(eight.log_likelihood)(eight.initial[1]).items()
    theta = eight.constrain(eight.initial[1])["theta"]
    expected = dist.Normal(theta, jnp.asarray(SCHOOLS["sigma"])).log_prob(SCHOOLS["y"])
    assert name == "log_lik" and not others
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert constrained.log_likelihood(constrained.initial[0]) == {}


def test_what_a_rejection_leaves_uncomputed_is_nan(constrained):
    values = constrained.constrain(jnp.zeros(constrained.dim).at[0].set(8.0))
    assert np.isfinite(values["p"]).all() and np.isnan(values["after"])


def test_unconstrain_wants_the_parameters_and_nothing_else(eight, constrained):
    z = eight.unconstrain({"mu": 1.0, "tau": 2.0, "theta_tilde": np.zeros(8), "extra": "ignored"})
    np.testing.assert_allclose(z[:2], [1.0, np.log(2.0)], rtol=1e-6)
    with pytest.raises(ValueError, match="params must hold mu, tau, theta_tilde; missing tau, theta_tilde"):
        eight.unconstrain({"mu": 1.0})
    with pytest.raises(ValueError, match=r"'theta_tilde' must have shape \(8,\), got \(\)"):
        eight.unconstrain({"mu": 1.0, "tau": 2.0, "theta_tilde": 0.0})
    values = constrained.constrain(constrained.initial[0])
    with pytest.raises(FOREIGN_ERROR, match="not a valid simplex"):
        jax.block_until_ready(constrained.unconstrain(values | {"p": 2 * values["p"]}))


# compiled programs


def test_new_data_of_the_same_shape_do_not_retrace(eight):
    traces = []

    @eqx.filter_jit
    def program(target, z):
        traces.append(1)
        return jax.value_and_grad(target.log_density)(z), target.constrain(z)

    (value, _), _ = program(eight, eight.initial[1])
    moved = from_stan(EIGHT_SCHOOLS, SCHOOLS | {"y": SCHOOLS["y"] + 10}, name="eight_schools", seed=3)
    (other, _), _ = program(moved, eight.initial[1])
    assert len(traces) == 1 and value != other
    assert jax.tree.structure(moved) == jax.tree.structure(eight)
    np.testing.assert_allclose(program(eight, eight.initial[1])[0][0], value)  # and the first is as it was


def test_targets_may_be_stacked(eight):
    moved = from_stan(EIGHT_SCHOOLS, SCHOOLS | {"y": SCHOOLS["y"] + 10}, name="eight_schools")
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), eight, moved)
    z = eight.initial[1]
    values = jax.jit(jax.vmap(lambda target: target.log_density(z)))(both)
    np.testing.assert_array_equal(values, [eight.log_density(z), moved.log_density(z)])


def test_a_fit(eight):
    posterior = relbo.fit(eight, max_components=1, progress_bar=False)
    draws = posterior.sample(1000)
    assert draws["y_rep"].shape == (1000, 8) and np.isfinite(draws["mu"]).all()
    assert 2 < draws["mu"].mean() < 7  # 4.4 by long runs of HMC, and a standard deviation of 3.3


def test_a_fit_in_learned_coordinates(eight, tmp_path):
    """Values and gradients come from outside: only vector-Jacobian products go through the flow."""
    learned = relbo.fit(eight, precondition="flow", max_components=1, progress_bar=False)
    assert learned.whitened.flow is not None
    draws = learned.sample_unconstrained(200, seed=1)
    relbo.save(learned, tmp_path / "fit.relbo")
    again = relbo.load(tmp_path / "fit.relbo", target=eight)
    np.testing.assert_array_equal(again.log_prob(draws), learned.log_prob(draws))
    assert 2 < learned.sample(1000)["mu"].mean() < 7


# data and programs


def test_data_in_every_form_make_the_same_target(eight, tmp_path):
    text = '{"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}'
    program, data = tmp_path / "schools.stan", tmp_path / "schools.json"
    program.write_text(EIGHT_SCHOOLS)
    data.write_text(text)
    values = []
    for given in [text, data, str(data), {"J": np.int64(8), "y": jnp.asarray(SCHOOLS["y"]), "sigma": SCHOOLS["sigma"]}]:
        target = from_stan(EIGHT_SCHOOLS, given, name="eight_schools")
        values.append(target.log_density(eight.initial[1]))
        assert target.constant_data()["y"].shape == (8,)
    np.testing.assert_allclose(values, eight.log_density(eight.initial[1]), rtol=1e-6)


BAD_DATA = {
    "missing": (
        {"J": 8, "y": SCHOOLS["y"]},
        ValueError,
        "'eight_schools'. Stan says: .*variable name=sigma; dims declared=.8.; dims found=..",
    ),
    "no data": (None, ValueError, "Stan says: .*variable does not exist.*variable name=J"),
    "real for int": (SCHOOLS | {"J": 8.5}, ValueError, "Stan says: .*int variable contained non-int values.*J"),
    "wrong size": (SCHOOLS | {"J": 7}, ValueError, "Stan says: .*mismatch in dimension.*y"),
    "out of bounds": (
        SCHOOLS | {"sigma": -np.ones(8)},
        ValueError,
        "Stan says: .*sigma.* is -1.*greater than or equal",
    ),
    "ragged": (SCHOOLS | {"y": [1.0, [2.0]]}, ValueError, "Stan says: .*y"),
    "not numbers": (SCHOOLS | {"y": [object()]}, TypeError, "datum 'y' holds object"),
    "not JSON": ("{J = 8}", ValueError, "Expecting property name"),
    "not data": (8, TypeError, "must be a dict, JSON or the path of a .json file, got int"),
}


@pytest.mark.parametrize(("data", "error", "words"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_are_told_in_stans_words(eight, data, error, words):
    with pytest.raises(error, match=f"(?s){words}"):
        from_stan(EIGHT_SCHOOLS, data, name="eight_schools")


def test_no_usable_start_is_told_in_stans_words(constrained):
    with pytest.raises(ValueError, match=r"no usable starting point(.|\n)*Stan says: .*p\[1\] is above the ceiling -1"):
        from_stan(CONSTRAINED, COUNTS | {"ceiling": -1.0}, name="constrained")


def test_starting_points_are_usable_and_always_as_many(constrained):
    tight = from_stan(CONSTRAINED, COUNTS | {"ceiling": 0.1}, name="constrained")
    assert tight.initial.shape == constrained.initial.shape and tight.initial[0].any()
    assert np.isfinite(jax.vmap(tight.log_density)(tight.initial)).all()


def test_bad_programs():
    with pytest.raises(ValueError, match=r"(?s)does not accept .*'mine'.*Syntax error in 'mine.stan', line 1"):
        from_stan("parameters { real mu }", name="mine")
    with pytest.raises(ValueError, match=r"(?s)Semantic error.*Identifier 'nu' not in scope"):
        from_stan("parameters { real mu; } model { mu ~ normal(nu, 1); }")
    with pytest.raises(FileNotFoundError, match=r"absent.stan"):
        from_stan("absent.stan")
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        from_stan(EIGHT_SCHOOLS, SCHOOLS, seed=-1)


def test_a_bridgestan_model_is_a_callable(eight):
    class Model:  # the part of bridgestan.StanModel that is used
        def param_unc_num(self):
            return 10

        def log_density_gradient(self, theta_unc, propto=True, jacobian=True, out=None):
            value, gradient = jax.value_and_grad(eight.log_density)(jnp.asarray(theta_unc, jnp.float32))
            return float(value), np.asarray(gradient, np.float64)

    model = Model()
    target = from_callable(lambda z: model.log_density_gradient(z, propto=False), dim=model.param_unc_num())
    np.testing.assert_allclose(target.log_density(eight.initial[1]), eight.log_density(eight.initial[1]), rtol=1e-6)

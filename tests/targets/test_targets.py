"""The targets room: maps and Jacobians, starting points, host callbacks, compile counts."""

import subprocess
import sys
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from relbo.runtime.require import require
from relbo.targets import AbstractTarget, CallableTarget, JaxTarget, from_callable, from_log_density

PRECISION = np.diag([1.0, 4.0, 0.25]) + 0.1


def normal(z):
    return -0.5 * z @ jnp.asarray(PRECISION, z.dtype) @ z + z[0]


def normal_on_host(z):
    return -0.5 * z @ PRECISION @ z + z[0], -PRECISION @ z + np.eye(3)[0]


def negative_squares(params, *args):
    return -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def regression(params, y):
    residual = (y - params["mu"]) / params["sigma"]
    return -jnp.sum(residual**2) / 2 - y.size * jnp.log(params["sigma"]) - params["sigma"]


def everything(x):
    return x.reshape(-1)


# Support, example, and the entries of the value that are free: a chart, in which the Jacobian is square.
SUPPORTED = {
    "real": ("real", np.array([0.3, -2.0]), everything),
    "positive": ("positive", np.array([0.5, 2.0]), everything),
    "softplus_positive": ("softplus_positive", 0.7, everything),
    "unit_interval": ("unit_interval", np.array([[0.2, 0.9]]), everything),
    "interval": (("interval", -1, 3), np.array([0.0, 2.5]), everything),
    "array bounds": (("interval", np.array([0.0, 5.0]), np.array([1.0, 9.0])), np.array([0.5, 6.0]), everything),
    "greater_than": (("greater_than", 2.0), 3.5, everything),
    "less_than": (("less_than", 2.0), -3.5, everything),
    "simplex": ("simplex", np.array([0.2, 0.5, 0.3]), lambda x: x[:-1]),
    "ordered": ("ordered", np.array([-1.0, 0.5, 4.0]), everything),
    "positive_ordered_vector": ("positive_ordered_vector", np.array([0.1, 0.5, 4.0]), everything),
    "corr_cholesky": ("corr_cholesky", np.array([[1.0, 0.0], [0.6, 0.8]]), lambda x: x[jnp.tril_indices(2, -1)]),
    "lower_cholesky": ("lower_cholesky", np.array([[2.0, 0.0], [0.6, 0.8]]), lambda x: x[jnp.tril_indices(2)]),
    "constraint object": (constraints.independent(constraints.positive, 1), np.array([1.0, 3.0]), everything),
}

TARGETS = {
    "dict": lambda: from_log_density(
        regression, {"mu": 0.5, "sigma": 2.0}, args=(np.arange(4.0),), supports={"sigma": "positive"}
    ),
    "bare array": lambda: from_log_density(normal, np.array([0.1, -0.2, 0.3])),
    "nested": lambda: from_log_density(negative_squares, {"a": (1.0, {"b": np.ones((2, 2))}), "c": [np.ones(2)]}),
    "mixed supports": lambda: from_log_density(
        negative_squares, {"w": np.ones(3) / 3, "x": 0.5}, supports={"w": "simplex", "x": ("interval", 0, 1)}
    ),
    "not differentiable": lambda: from_log_density(lambda z: jnp.sum(jnp.floor(z)), np.ones(2), differentiable=False),
    "callable": lambda: from_callable(normal_on_host, 3),
    "callable, named": lambda: from_callable(normal_on_host, 3, names=["c", "a", "b"], init=np.ones((2, 3))),
    "callable, values only": lambda: from_callable(lambda z: normal_on_host(z)[0], 3, gradient=False),
}


# contracts, over a registry


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
def test_every_target_keeps_the_protocol(make):
    target = make()
    assert isinstance(target, AbstractTarget)
    assert target.initial.shape[1:] == (target.dim,) and len(target.initial) >= 1
    assert target.dtype == target.initial.dtype == np.dtype(np.float32)
    assert len(target.coordinate_names()) == len(set(target.coordinate_names())) == target.dim
    assert not target.twice_differentiable or target.differentiable

    z = target.initial[0]
    value = jax.jit(target.log_density)(z)
    assert value.shape == () and value.dtype == target.dtype and np.isfinite(value)
    back = jax.jit(lambda z: target.unconstrain(target.constrain(z)))(z)
    np.testing.assert_allclose(back, z, rtol=1e-4, atol=1e-6)
    values = jax.jit(jax.vmap(target.log_density))(jnp.stack([z, z + 0.1]))
    np.testing.assert_allclose(values[0], value, rtol=1e-5)
    with pytest.raises(ValueError, match=r"expected one point of shape .* Use jax.vmap"):
        target.log_density(jnp.zeros(target.dim + 1))
    hash(jax.tree.structure(target))


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
def test_a_target_made_twice_meets_the_same_compiled_program(make):
    traces = []

    @eqx.filter_jit
    def program(target, z):
        traces.append(1)
        return target.log_density(z)

    target = make()
    program(target, target.initial[0])
    leaves, treedef = jax.tree.flatten(target)
    program(jax.tree.unflatten(treedef, [leaf + 0 for leaf in leaves]), target.initial[0] + 1)
    assert len(traces) == 1


def test_new_data_of_the_same_shape_do_not_retrace_the_log_density():
    traces = []

    def log_density(params, y):
        traces.append(1)
        return regression(params, y)

    build = partial(from_log_density, log_density, {"mu": 0.0, "sigma": 1.0}, supports={"sigma": "positive"})
    program = eqx.filter_jit(lambda target, z: target.log_density(z))
    first = build(args=(np.arange(3.0),))
    value = program(first, first.initial[0])
    before = len(traces)
    second = build(args=(np.arange(3.0) + 5,))
    during_checks = len(traces) - before
    other = program(second, second.initial[0])
    assert value != other
    # eval_shape and the trace of the Hessian; the compiled probe is met again.
    assert len(traces) - before == during_checks <= 2


def test_changing_the_users_array_later_does_not_reach_the_target():
    data = np.arange(3.0, dtype=np.float32)
    target = from_log_density(regression, {"mu": 0.0, "sigma": 1.0}, args=(data,), supports={"sigma": "positive"})
    before = target.log_density(target.initial[0])
    data[:] = 100.0
    assert target.log_density(target.initial[0]) == before


# maps and Jacobians


@pytest.mark.parametrize(("support", "example", "chart"), SUPPORTED.values(), ids=SUPPORTED)
def test_the_map_is_inverted_and_its_log_determinant_added(support, example, chart):
    target = from_log_density(negative_squares, {"x": example}, supports={"x": support})

    @jax.jit
    def look(z):
        value = target.constrain(z)
        jacobian = jax.jacfwd(lambda z: chart(target.constrain(z)["x"]))(z)
        log_det = target.log_density(z) - negative_squares(value)
        return value["x"], target.unconstrain(value), log_det, jnp.linalg.slogdet(jacobian)[1]

    np.testing.assert_allclose(look(target.initial[0])[0], example, rtol=1e-4, atol=1e-5)
    z = np.random.default_rng(1).normal(size=target.dim).astype(np.float32)
    value, back, log_det, expected = look(z)
    assert value.shape == np.shape(example)
    np.testing.assert_allclose(back, z, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(log_det, expected, rtol=1e-4, atol=1e-4)


def test_zero_sum_is_an_isometry():
    target = from_log_density(negative_squares, np.array([1.0, 2.0, -3.0]), supports=("zero_sum", 1))
    assert target.dim == 2
    jacobian = jax.jacfwd(target.constrain)(target.initial[0])
    np.testing.assert_allclose(jacobian.T @ jacobian, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(target.log_density(target.initial[0]), -14.0, rtol=1e-5)


def test_exponential_density_integrates_to_one_over_the_real_line():
    target = from_log_density(lambda params: -params["rate"], {"rate": 1.0}, supports={"rate": "positive"})
    grid = jnp.linspace(-25.0, 6.0, 4001)
    density = jnp.exp(jax.jit(jax.vmap(target.log_density))(grid[:, None]))
    np.testing.assert_allclose(jnp.sum(density) * (grid[1] - grid[0]), 1.0, rtol=1e-4)


def test_dirichlet_density_integrates_to_one_over_the_plane():
    alpha = jnp.array([2.0, 3.0, 1.5])
    target = from_log_density(
        lambda w, alpha: dist.Dirichlet(alpha).log_prob(w), np.ones(3) / 3, args=(alpha,), supports="simplex"
    )
    assert target.dim == 2
    axis = jnp.linspace(-15.0, 15.0, 301)
    grid = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    total = jnp.sum(jnp.exp(jax.jit(jax.vmap(target.log_density))(grid))) * (axis[1] - axis[0]) ** 2
    np.testing.assert_allclose(total, 1.0, rtol=1e-3)


def test_coordinate_names():
    example = {"mu": 0.0, "theta": np.zeros(2), "deep": {"w": np.ones(3) / 3, "m": np.zeros((1, 2))}}
    target = from_log_density(negative_squares, example, supports={"deep": {"w": "simplex"}})
    assert sorted(target.coordinate_names()) == sorted(
        ["mu", "theta[0]", "theta[1]", "deep.w[0]", "deep.w[1]", "deep.m[0,0]", "deep.m[0,1]"]
    )
    assert TARGETS["bare array"]().coordinate_names() == ["z[0]", "z[1]", "z[2]"]


@pytest.mark.parametrize(
    "supports",
    [
        {"deep": {"s": "positive"}},
        {"deep.s": "positive"},
        {"deep": "positive", "deep.r": "real"},
        {"deep": {"s": constraints.positive, "r": None}},
        {"deep": "positive", "deep.r": constraints.real},
    ],
)
def test_supports_by_path_prefix_and_object_agree(supports):
    target = from_log_density(negative_squares, {"deep": {"s": np.ones(2), "r": -1.0}}, supports=supports)
    np.testing.assert_allclose(target.constrain(jnp.zeros(3))["deep"]["s"], np.ones(2))
    np.testing.assert_allclose(target.constrain(jnp.zeros(3))["deep"]["r"], 0.0)


def test_a_tuple_of_supports_is_told_from_one_support_with_bounds():
    example = (-1.0, (2.0, np.ones(2)))
    target = from_log_density(negative_squares, example, supports=("real", ("positive", ("interval", 0, 3))))
    first, (second, third) = target.constrain(jnp.zeros(4))
    np.testing.assert_allclose([first, second, *third], [0.0, 1.0, 1.5, 1.5])
    with pytest.raises(ValueError, match="lies outside its support"):
        from_log_density(negative_squares, example, supports=("interval", 0, 3))


def test_equal_supports_make_equal_static_fields_and_unequal_ones_do_not():
    def structure(support):
        return jax.tree.structure(from_log_density(negative_squares, {"x": 1.0}, supports={"x": support}))

    assert structure(("interval", 0.0, 2.0)) == structure(constraints.interval(0.0, 2.0))
    assert structure(("interval", 0.0, 2.0)) != structure(("interval", 0.0, 3.0))
    assert structure("positive") != structure("softplus_positive")  # which NumPyro itself calls equal


# dtypes


def test_dtype_follows_jax():
    make = partial(from_log_density, negative_squares)
    assert make({"a": np.float64(1.0)}).dtype == np.float32
    assert make({"a": jnp.ones(2, jnp.bfloat16)}).dtype == np.float32
    with jax.enable_x64(True):
        assert make({"a": 1.0}).dtype == np.float64
        assert make({"a": np.ones(2, np.float32)}).dtype == np.float32
        assert make({"a": np.float32(1.0), "b": 1.0}).dtype == np.float32
        mixed = make({"a": np.ones(2, np.float32), "b": np.ones(2)}, supports="positive")
        assert mixed.dtype == mixed.log_density(mixed.initial[0]).dtype == np.float64
        assert mixed.constrain(mixed.initial[0])["a"].dtype == np.float64
        assert from_callable(normal_on_host, 3).dtype == np.float64
        assert from_callable(normal_on_host, 3, dtype=np.float32).log_density(jnp.zeros(3)).dtype == np.float32


# starting points


def test_starting_points_are_the_example_and_then_init():
    example, extra = {"a": 1.0, "b": np.ones(2)}, {"b": np.full((3, 2), 2.0), "a": np.array([1.0, 2.0, 3.0])}
    target = from_log_density(negative_squares, example, supports={"a": "positive"}, init=extra)
    np.testing.assert_allclose(target.initial[:, 0], np.log([1.0, 1.0, 2.0, 3.0]), atol=1e-6)
    np.testing.assert_allclose(target.initial[:, 1:], [[1, 1], [2, 2], [2, 2], [2, 2]])


def test_prior_draws_that_underflow_are_left_out():
    draws = from_log_density(negative_squares, {"a": 1.0}, init=lambda key: {"a": jax.random.normal(key)})
    assert draws.initial.shape == (17, 1) and len(np.unique(draws.initial)) == 17
    clipped = from_log_density(
        negative_squares,
        {"a": 1.0},
        supports="positive",
        init=lambda key: {"a": jnp.maximum(jax.random.normal(key) + 0.8, 0.0)},
    )
    assert 1 < len(clipped.initial) < 17 and np.isfinite(clipped.initial).all()


def test_callable_starts_at_init_or_at_the_origin():
    assert not from_callable(normal_on_host, 3).initial.any()
    np.testing.assert_allclose(from_callable(normal_on_host, 3, init=np.ones(3)).initial, np.ones((1, 3)))
    assert from_callable(normal_on_host, 3, init=lambda key: jax.random.normal(key, (3,))).initial.shape == (16, 3)


# host callbacks


@pytest.mark.parametrize("batched", [False, True])
def test_callable_agrees_with_jax_under_jit_grad_and_vmap(batched):
    def on_host_batched(z):
        return -0.5 * np.einsum("ni,ij,nj->n", z, PRECISION, z) + z[:, 0], -z @ PRECISION + np.eye(3)[0]

    function = on_host_batched if batched else normal_on_host
    target = from_callable(function, 3, batched=batched)
    points = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)
    both = jax.jit(jax.vmap(jax.vmap(jax.value_and_grad(target.log_density))))(points)
    expected = jax.vmap(jax.vmap(jax.value_and_grad(normal)))(points)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), both, expected)


def test_a_batch_costs_one_callback_and_floats_arrive_as_float64():
    batches = []

    def function(z):
        batches.append((z.shape, z.dtype))
        return -0.5 * np.sum(z * z, axis=-1), -z

    target = from_callable(function, 3, batched=True)
    batches.clear()
    jax.block_until_ready(jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))(jnp.ones((7, 3))))
    assert batches == [((7, 3), np.dtype(np.float64))]


def test_the_function_may_write_into_its_argument():
    def function(z):
        z *= 2
        return -0.5 * z @ z / 4, -z / 2

    target = from_callable(function, 3)
    np.testing.assert_allclose(target.log_density(jnp.ones(3)), -1.5)


def half_normal(z):
    return (-0.5 * z @ z, -z) if z[0] > 0 else (-np.inf, np.full(2, np.nan))


def test_zero_density_has_gradient_zero_and_a_zero_cotangent_stays_zero():
    target = from_callable(half_normal, 2, init=np.ones(2))
    value, gradient = jax.value_and_grad(target.log_density)(jnp.array([-1.0, 1.0]))
    assert value == -jnp.inf and not gradient.any()
    steep = from_callable(lambda z: (-np.log(np.abs(z[0])), np.array([-1 / z[0]])), 1, init=np.ones(1))
    with np.errstate(divide="ignore"):
        masked = jax.grad(lambda z: jnp.where(z[0] == 0, 0.0, steep.log_density(z)))(jnp.zeros(1))
    assert masked == 0.0


def test_an_exception_in_the_function_surfaces_with_its_message_and_the_point():
    def function(z):
        if z[0] > 1:
            raise KeyError("no such thing")
        return normal_on_host(z)

    target = from_callable(function, 3)
    with pytest.raises(RuntimeError, match=r"raised KeyError: 'no such thing' \(at z = \[2, 2, 2\]\)"):
        jax.block_until_ready(jax.jit(jax.vmap(target.log_density))(jnp.full((4, 3), 2.0)))
    with pytest.raises(RuntimeError, match="raised ZeroDivisionError"):
        from_callable(lambda z: 1 / 0, 3)


def test_values_only_serve_the_score_estimator_and_refuse_a_gradient():
    target = from_callable(lambda z: normal_on_host(z)[0], 3, gradient=False)
    assert not target.differentiable

    def score(mean):
        z = jax.lax.stop_gradient(mean + 1.0)
        return target.log_density(z) * jnp.sum((z - mean) ** 2)

    assert np.isfinite(jax.jit(jax.grad(score))(jnp.ones(3))).all()
    with pytest.raises(TypeError, match='estimator="score"'):
        jax.grad(target.log_density)(jnp.ones(3))


def test_named_callable_keeps_the_order_of_its_coordinates():
    target = TARGETS["callable, named"]()
    assert target.coordinate_names() == ["c", "a", "b"]
    assert {name: float(value) for name, value in target.constrain(jnp.arange(3.0)).items()} == {"c": 0, "a": 1, "b": 2}
    np.testing.assert_allclose(target.unconstrain({"a": 1.0, "b": 2.0, "c": 0.0}), [0.0, 1.0, 2.0])


def test_twice_differentiable_is_found_by_tracing():
    host = from_callable(normal_on_host, 3)
    assert TARGETS["dict"]().twice_differentiable
    assert not host.twice_differentiable
    through = from_log_density(lambda z: host.log_density(z), np.zeros(3))
    assert isinstance(through, JaxTarget) and through.differentiable and not through.twice_differentiable
    assert isinstance(host, CallableTarget)


# optional packages


def test_require_names_the_install_line_and_never_hides_a_broken_install(tmp_path, monkeypatch):
    (tmp_path / "relbo_broken.py").write_text("import relbo_absent_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert require("numpy.linalg", extra="x") is np.linalg
    with pytest.raises(ImportError, match=r'pip install "relbo\[demo\]"') as missing:
        require("relbo_absent.part", extra="demo")
    assert not isinstance(missing.value, ModuleNotFoundError)
    for broken in ("relbo_broken", "numpy.absent_part"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            require(broken, extra="demo")


def test_real_targets_do_not_import_numpyro():
    code = (
        "import sys, numpy as np, relbo.targets as t\n"
        "t.from_log_density(lambda z: -(z @ z), np.ones(2), supports='real')\n"
        "assert 'numpyro' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

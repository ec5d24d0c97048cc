"""What every bad input to `from_log_density` and `from_callable` is told."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.targets import from_callable, from_log_density

RANDOM = np.random.default_rng(0)


def negative_squares(params, *args):
    return -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def normal_on_host(z):
    return -0.5 * z @ z, -z


# from_log_density


def counting():
    calls = []
    return lambda x: -(x**2) * (calls.append(1) or len(calls))


def leaking():
    kept = []

    def log_density(x):
        value = -(x**2) + (kept[0] if kept else 0.0)
        kept.append(x)
        return value

    return log_density


def callback(x):
    return jax.pure_callback(lambda z: -(z**2), jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")


BAD_FUNCTIONS = {
    "vector": (lambda x: -(x**2), np.ones(3), r"scalar, got shape \(3,\). Sum over observations inside it"),
    "tuple": (lambda x: (x, x), 1.0, "scalar, got tuple"),
    "None": (lambda x: None, 1.0, "scalar, got NoneType"),
    "integer": (lambda x: 3, 1.0, "must return a float, got dtype int"),
    "complex": (lambda x: x * 1j, 1.0, "must return a float, got dtype complex"),
    "not a function": (3, 1.0, "function"),
    "unhashable": (eqx.nn.Linear(2, "scalar", key=jax.random.key(0)), np.ones(2), "cannot be hashed"),
    "nan": (lambda x: x * jnp.nan, -1.0, r"nan \(broken arithmetic\) .* z = -1\. None of 100 other points"),
    "-inf": (lambda x: jnp.where(x > 9, -x, -jnp.inf), -1.0, "-inf .zero density.*None of 100 other points"),
    "+inf": (lambda x: 1 / x, 0.0, "inf .an infinite density"),
    "many": (lambda x: jnp.sum(jnp.log(-1 - x**2)), -np.ones(20), r"z\[7\] = -1 and 12 more"),
    "nan gradient": (
        lambda p: -jnp.sqrt(jnp.sum((0 * p["a"]) ** 2)) - p["b"] ** 2,
        {"a": np.zeros(2), "b": 0.0},
        r"gradient of log_density is not finite in a\[0\], a\[1\] at",
    ),
    "branch": (lambda x: x if x > 0 else -x, 1.0, "relbo.from_callable"),
    "numpy": (lambda x: np.log(np.asarray(x)), 1.0, "relbo.from_callable"),
    "float": (lambda x: float(x), 1.0, "relbo.from_callable"),
    "boolean index": (lambda x: x[x > 0].sum(), np.ones(3), "relbo.from_callable"),
    "rounding": (lambda x: -(jnp.sum(jnp.floor(x)) ** 2), np.full(2, 0.5), "differentiable=False .*score"),
    "one rounded": (lambda p: -(p["x"] ** 2) - jnp.floor(p["n"]), {"x": 0.5, "n": 0.5}, "changes with n but"),
    "callback": (callback, 1.0, "cannot differentiate it. Pass differentiable=False"),
    "random": (lambda x: -(x**2) + RANDOM.normal(), 1.0, "hidden randomness"),
    "counting": (counting(), 1.0, "hidden randomness"),
    "leaking": (leaking(), 1.0, "side effects"),
}


@pytest.mark.parametrize(("function", "example", "message"), BAD_FUNCTIONS.values(), ids=BAD_FUNCTIONS)
def test_bad_log_densities(function, example, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_log_density(function, example)


def test_what_is_flat_on_purpose_is_no_error():
    assert from_log_density(lambda x: jnp.where(jnp.all(jnp.abs(x) < 1), 0.0, -jnp.inf), np.zeros(3)).dim == 3
    assert from_log_density(lambda p: -(p["a"] ** 2), {"a": 0.5, "unused": 0.0}).dim == 2
    assert not from_log_density(lambda x: -jnp.floor(x), 0.5, differentiable=False).differentiable


BAD_EXAMPLES = {
    "integer": ({"k": 0}, "parameter 'k' .* dtype int.*Write 0.0 for 0; marginalise"),
    "boolean": ({"k": True}, "parameter 'k' .* dtype bool"),
    "complex": ({"k": 1j}, "parameter 'k' .* dtype complex128"),
    "text": ({"k": "a"}, "parameter 'k' .* must be real floats"),
    "empty": ({}, "holds no numbers"),
    "no entries": (np.zeros(0), "holds no numbers"),
    "nan": ({"a": np.array([0.0, np.nan])}, r"'a' .* is not finite in float32: \[0, nan\]"),
    "overflow": ({"a": 1e300}, "'a' .* is not finite in float32"),
    "same path": ({"a.b": 1.0, "a": {"b": 1.0}}, "same path"),
}


@pytest.mark.parametrize(("example", "message"), BAD_EXAMPLES.values(), ids=BAD_EXAMPLES)
def test_bad_examples(example, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_log_density(negative_squares, example)


BAD_SUPPORTS = {
    "outside": ("positive", -1.0, "'a' .* lies outside its support positive: -1"),
    "boundary": ("unit_interval", 1.0, "on the boundary of its support"),
    "typo": ("positve", 1.0, "unknown support 'positve' of a. Choose one of .*positive.*'interval', lower, upper"),
    "no bijection": ("sphere", np.ones(1), "unknown support 'sphere'"),
    "discrete": ("boolean", 1.0, "discrete.*Marginalise"),
    "no bounds": ("interval", 1.0, r"written \('interval', lower, upper\), got 0 bounds"),
    "bounds of none": (("positive", 3.0), 1.0, "takes no bounds"),
    "crossed": (("interval", 2, 1), 1.0, "must be below"),
    "infinite": (("interval", 0, np.inf), 1.0, "must be finite"),
    "other type": (3, 1.0, "must be a name .* got 3 of type int"),
    "scalar simplex": ("simplex", 1.0, r"shape \(\) cannot have the support simplex"),
    "constant": ("simplex", np.ones(1), "no free coordinates"),
    "not square": ("corr_cholesky", np.ones((2, 3)), r"shape \(2, 3\) cannot have the support corr_cholesky"),
    "bounds too large": (("greater_than", np.zeros((2, 1))), np.ones(3), r"makes shape \(2, 3\)"),
}


@pytest.mark.parametrize(("support", "example", "message"), BAD_SUPPORTS.values(), ids=BAD_SUPPORTS)
def test_bad_supports(support, example, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_log_density(negative_squares, {"a": example}, supports={"a": support})


def test_a_support_for_an_unknown_parameter_lists_the_names():
    with pytest.raises(ValueError, match=r"names 'sigm', .*: mu, sigma\. Did you mean 'sigma'"):
        from_log_density(negative_squares, {"mu": 1.0, "sigma": 1.0}, supports={"sigm": "positive"})


PAIR = {"a": 1.0, "b": np.ones(2)}
BAD_INITS = {
    "missing": ({"a": np.ones(3)}, "leaves a, b; got missing b"),
    "unexpected": ({"a": np.ones(3), "b": np.ones((3, 2)), "c": 1.0}, "got unexpected c"),
    "no leading axis": (PAIR, r"'a' of init must have shape \(num,\), got \(\)"),
    "shape": ({"a": np.ones(3), "b": np.ones((3, 4))}, r"'b' of init must have shape \(num, 2\), got \(3, 4\)"),
    "counts": ({"a": np.ones(3), "b": np.ones((4, 2))}, "agree on the number of points"),
    "integers": ({"a": np.ones(3, int), "b": np.ones((3, 2))}, "'a' of init must hold floats"),
    "outside": ({"a": np.array([1.0, -1.0]), "b": np.ones((2, 2))}, "point 1 of init lies outside"),
    "drawn with numpy": (lambda key: {"a": np.asarray(key), "b": np.ones(2)}, "Draw with jax.random"),
    "drawn shape": (lambda key: {"a": jnp.ones(2), "b": jnp.ones(2)}, r"'a' of init\(key\) must have shape \(num,\)"),
    "drawn outside": (lambda key: {"a": -jnp.ones(()), "b": jnp.ones(2)}, "16 of 16 draws"),
}


@pytest.mark.parametrize(("init", "message"), BAD_INITS.values(), ids=BAD_INITS)
def test_bad_init(init, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_log_density(negative_squares, PAIR, supports={"a": "positive"}, init=init)


def test_bad_args():
    with pytest.raises(TypeError, match=r"Write args=\(data,\)"):
        from_log_density(negative_squares, 1.0, args=np.ones(3))
    with pytest.raises(TypeError, match=r"args\[0\]\['mode'\] is of type str"):
        from_log_density(negative_squares, 1.0, args=({"mode": "fast"},))
    with pytest.raises(ValueError, match=r"The data contain NaN: args\[0\]\['y'\]"):
        from_log_density(lambda x, data: -jnp.sum((x - data["y"]) ** 2), 1.0, args=({"y": np.array([1, np.nan])},))


def test_unconstrain_checks_structure_and_shapes():
    target = from_log_density(negative_squares, PAIR)
    with pytest.raises(ValueError, match="missing b"):
        target.unconstrain({"a": 1.0})
    with pytest.raises(ValueError, match=r"'b' must have shape \(2,\), got \(3,\)"):
        target.unconstrain({"a": 1.0, "b": np.ones(3)})


# from_callable

BAD_CALLABLES = {
    "not a function": ((3, 3), {}, "function"),
    "dim": ((normal_on_host, 0), {}, "dim must be an integer of at least 1, got 0"),
    "vector": ((lambda z: (-z, -z), 3), {}, r"value .* must be a scalar, got shape \(3,\)"),
    "short gradient": ((lambda z: (0.0, z[:2]), 3), {}, r"gradient .* of shape \(3,\), got shape \(2,\)"),
    "no gradient": ((lambda z: -z @ z, 3), {}, r"must return \(value, gradient\), got float64. Pass gradient=False"),
    "complex": ((lambda z: (1j, z), 3), {}, "real numbers, got dtype complex128"),
    "nan": ((lambda z: (np.nan, z), 3), {"names": ["a", "b", "c"]}, "nan .broken arithmetic. .* a = 0, b = 0, c = 0"),
    "-inf": ((lambda z: (-np.inf, z), 3), {}, "-inf .zero density"),
    "nan gradient": ((lambda z: (0.0, np.array([0, np.nan, 0])), 3), {}, r"not finite in z\[1\] at"),
    "wrong sign": ((lambda z: (-z @ z / 2, z), 3), {"init": np.ones(3)}, "contradicts the value"),
    "random": ((lambda z: (RANDOM.normal(), z), 3), {}, "hidden randomness"),
    "float64 without x64": ((normal_on_host, 3), {"dtype": np.float64}, "needs x64"),
    "integer dtype": ((normal_on_host, 3), {"dtype": np.int32}, "must be float32 or float64"),
    "few names": ((normal_on_host, 3), {"names": ["a", "b"]}, "3 different strings"),
    "init shape": ((normal_on_host, 3), {"init": np.ones((2, 4))}, r"shape \(num, 3\), got \(2, 4\)"),
    "init empty": ((normal_on_host, 3), {"init": np.ones((0, 3))}, "holds no points"),
}


@pytest.mark.parametrize(("args", "options", "message"), BAD_CALLABLES.values(), ids=BAD_CALLABLES)
def test_bad_callables(args, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_callable(*args, **options)

"""Wrong use gets a sentence: what was wrong, what arrived, what to do. Never a raw error of Python, JAX or PyTensor."""

import pathlib
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest

import relbo
from lean_fits import lean_target
from stan_programs import EIGHT_SCHOOLS, SCHOOLS

# In a process of its own, for the run-time type checker of the tests would speak first.

PREAMBLE = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parents[1])!r})
import numpy as np, relbo
from lean_fits import SETTINGS, lean_target, undisturbed
target, posterior = lean_target(), undisturbed()
f = lambda z, x, y: -z**2
cases = [
"""
REST = """
]
for case in cases:
    try:
        case()
        print("nothing")
    except (ValueError, TypeError) as error:
        print(error)
"""
CASES = {
    'relbo.fit(target, seed="a")': "seed must be an integer of at least 0, got 'a'",
    "relbo.fit(target, seed=1.5)": "seed must be an integer of at least 0, got 1.5",
    "relbo.fit(target, seed=2**63)": "seed must be below 2**63",
    'relbo.fit(target, start="fit.relbo")': "start must be a posterior, what fit returned, got str",
    'relbo.fit(target, stop="soon")': "stop takes rules such as relbo.GapBelow(0.01), got 'soon'",
    "relbo.fit(target, checkpoint=3)": "checkpoint must be the path of a file, got 3",
    "relbo.fit(target, best_by=3)": "best_by must be a function of a posterior",
    "relbo.fit(target, callback=3)": "callback must be a function of a posterior",
    "posterior.sample(2.5)": "num_draws must be an integer of at least 1, got 2.5",
    "posterior.sample(0)": "num_draws must be an integer of at least 1, got 0",
    'posterior.sample(2, seed="a")': "seed must be an integer of at least 0, got 'a'",
    'posterior.log_prob({"x": 1.0})': "z must be an array of unconstrained points, of shape (..., 1), got dict.",
    "relbo.resample(posterior, 2.5)": "num_draws must be an integer of at least 1, got 2.5",
    "relbo.to_arviz(posterior, num_draws=2.5)": "num_draws must be an integer of at least 1, got 2.5",
    'relbo.to_arviz(posterior, seed="a")': "seed must be an integer of at least 0, got 'a'",
    'relbo.save(posterior, "/dev/null", num_draws=2.5)': "num_draws must be an integer of at least 0, got 2.5",
    'relbo.from_log_density(abs, "a")': "parameter 'z' of the example is 'a', of type str; parameters must",
    "relbo.from_log_density(f, 1.0, args=(1.0,))": "log_density(params, *args) takes (z, x, y), and was given 2",
    'relbo.from_log_density(f, 1.0, args=(np.array(["a"]), 1.0))': "args[0] is of type ndarray (dtype <U1), which",
    'relbo.from_stan("parameters {real x;}", seed="a")': "seed must be an integer of at least 0, got 'a'",
}


def test_wrong_values_get_a_sentence():
    script = PREAMBLE + "".join(f"    lambda: {case},\n" for case in CASES) + REST
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for (case, expected), said in zip(CASES.items(), done.stdout.splitlines(), strict=True):
        assert said.startswith(expected), case


def test_a_misspelt_setting_is_shown_all_of_them():
    with pytest.raises(TypeError, match=r"no setting max_component\. Did you mean 'max_components'\?") as raised:
        relbo.fit(lean_target(), max_component=3)
    for name in ("seed", "stop", "start", "checkpoint", "family", "max_memory"):
        assert f" {name}," in str(raised.value) or str(raised.value).endswith(f" {name}.")


def test_a_misspelt_name_is_shown_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown family 'norml'. Did you mean 'normal'"):
        relbo.fit(lean_target(), family="norml")


# NumPyro


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)


X, Y = np.arange(3.0), np.array([0.1, 1.2, 1.9])


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"the model takes \(x, y=None\), and was given 0 positional arguments: missing .* 'x'"),
        ((X, Y, Y), {}, "was given 3 positional arguments: too many"),
        ((X,), {"z": Y}, "was given 1 positional argument, z: got an unexpected keyword argument 'z'"),
        ((X, ["a", "b", "c"]), {}, "number 2 is a list: pass data as arrays, texts and categories encoded"),
        ((X,), {"y": "abc"}, "y is a str: pass data as arrays"),
        ((pd.Series(["a", "b"]), Y), {}, "is an array of dtype .*, which is not numeric. Encode strings"),
    ],
)
def test_arguments_that_a_numpyro_model_does_not_take(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        relbo.from_numpyro(line, *args, **kwargs)


def test_series_and_data_frames_are_arrays():
    def plane(x, y):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]))
        numpyro.sample("y", dist.Normal(x @ slopes, 1), obs=y)

    frame = pd.DataFrame({"a": X, "b": np.array([True, False, True])}, index=[5, 6, 7])
    target = relbo.from_numpyro(plane, frame, y=pd.Series(Y, name="y"))
    plain = relbo.from_numpyro(plane, np.column_stack([X, [1.0, 0.0, 1.0]]), y=Y)
    z = jnp.array([0.3, -0.7])
    assert target.log_density(z) == plain.log_density(z)
    assert target.predict({"slopes": np.zeros((4, 2))}, 0, frame[:2], y=None)["y"].shape == (4, 2)


# PyMC


@pytest.fixture(scope="module")
def pymc_target():
    with pm.Model(coords={"row": list("abcdef")}) as model:
        x = pm.Data("x", np.linspace(-1, 1, 6), dims="row")
        group = pm.Data("group", np.array([0, 1, 0, 1, 0, 1]), dims="row")
        slope = pm.Normal("slope", 0, 1, shape=2)
        pm.Normal("y", slope[group] * x, 1, observed=np.zeros(6), dims="row")
    return relbo.from_pymc(model)


DRAWS = {"slope": np.zeros((5, 2))}


def test_prediction_with_only_some_data_resized_names_the_others(pymc_target):
    with pytest.raises(
        ValueError, match=r"x from \(6,\) to \(3,\). Of the same length as before is group \(6,\): give new"
    ):
        pymc_target.predict(DRAWS, 0, x=np.ones(3))
    with pytest.raises(TypeError, match="'x' must hold real numbers, got dtype <U1"):
        pymc_target.predict(DRAWS, 0, x=np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"'x' must have 1 dimensions as in the model, got shape \(3, 2\)"):
        pymc_target.predict(DRAWS, 0, x=np.ones((3, 2)))


def test_prediction_takes_labels_as_set_data_does(pymc_target):
    new = {"x": np.ones(2), "group": np.zeros(2, int)}
    found = pymc_target.predict(DRAWS, 0, **new, coords={"row": ["p", "q"]})
    assert found["y"].shape == (5, 2)
    assert list(pymc_target.graphs.model.coords["row"]) == list("abcdef")
    assert list(pymc_target.with_data(coords={"row": list("uvwxyz")}).coords()["row"]) == list("uvwxyz")
    with pytest.raises(ValueError, match=r"cannot be run with these data: x from .* old length"):
        pymc_target.with_data(**new)
    with pytest.raises(ValueError, match="coords has 3 labels for 'row', and 'x' has length 2 there"):
        pymc_target.predict(DRAWS, 0, **new, coords={"row": [1, 2, 3]})
    with pytest.raises(ValueError, match="coords names 'rwo', and the model has the dims row"):
        pymc_target.predict(DRAWS, 0, **new, coords={"rwo": [1, 2]})
    with pytest.raises(ValueError, match="coords gives 'row' another length, and x, group lie along it"):
        pymc_target.predict(DRAWS, 0, coords={"row": [1, 2]})


# Stan


def test_a_stan_program_without_parameters_is_refused_before_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("RELBO_CACHE_DIR", str(tmp_path))
    begun = time.perf_counter()
    with pytest.raises(ValueError, match="has no parameters, so there is nothing to infer"):
        relbo.from_stan("data { int n; } generated quantities { real y = normal_rng(0, n); }", {"n": 3})
    assert not list(tmp_path.iterdir()) and time.perf_counter() - begun < 10


def test_prediction_with_stan_names_the_generated_quantities():
    target = relbo.from_stan(EIGHT_SCHOOLS, SCHOOLS, name="eight_schools")
    with pytest.raises(ValueError, match=r"predicts by its generated quantities .* this one computes .*y_rep"):
        target.predict({}, 0)

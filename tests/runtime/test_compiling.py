"""Compilations, counted by JAX: a new model compiles its door alone, and whatever else a fit does compiles nothing."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from helpers import TWO_MODES, door_of, target_of
from relbo.model.blocks import block_of
from relbo.model.precise import is_coarse

SMALL = {
    "oracle": relbo.NaturalOracle(num_steps=20, num_draws=16, num_restarts=2, starts=relbo.Starts(num_modes=4)),
    "refine": relbo.ascent.NaturalAscent(num_steps=20, num_draws=16),
    "progress_bar": False,
}
MOST_OF_A_FIT = 100
"""Programs of any fit here, the smallest sums included; a loop for every block would be a hundred more."""
ASKED_FOR_MEMORY = 2
"""Programs of every model of many dimensions, for few points and for more: what they take is seen, and none is run."""
_compilations: list[str] = []


def _listen(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _compilations.append(event)


@pytest.fixture(scope="module", autouse=True)
def _listening():
    jax.clear_caches()  # whatever other tests compiled
    jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations(function, *args, **kwargs) -> int:
    """How many programs XLA compiles while `function` runs."""
    before = len(_compilations)
    function(*args, **kwargs)
    return len(_compilations) - before


def skewed(z):
    return -0.5 * jnp.sum(z**2) - jnp.sum(jnp.exp(-z))


def two_hills(z, center):
    return jnp.logaddexp(-0.5 * jnp.sum((z - center) ** 2), -1.0 - 2.0 * jnp.sum((z + center) ** 2))


def test_a_second_model_of_the_same_dimension_compiles_exactly_one_program():
    """By default, and also by diagnosis: the door, and nothing but the door."""
    first = relbo.from_log_density(skewed, jnp.zeros(2))
    second = relbo.from_log_density(two_hills, jnp.zeros(2), args=(np.ones(2, np.float32),))
    assert compilations(relbo.fit, first, max_components=6, progress_bar=False) > 1
    assert compilations(relbo.fit, second, max_components=6, progress_bar=False) == 1
    assert compilations(relbo.fit, second, max_components=6, progress_bar=False) == 0
    other = relbo.from_log_density(two_hills, jnp.zeros(2), args=(np.array([2.0, -1.0], np.float32),))
    assert compilations(relbo.fit, other, max_components=6, progress_bar=False) == 0, "new data of the same shape"


def test_nothing_compiles_as_the_mixture_grows():
    """Up to its capacity of slots; at the next one, what works on slots, and not the model."""
    traces = []

    def counted(x):
        traces.append(x)
        return -0.5 * jnp.sum(jnp.abs(x - 0.3) ** 1.5)

    booster = relbo.make_booster(
        relbo.from_log_density(counted, jnp.zeros(1)),
        **{name: value for name, value in SMALL.items() if name != "progress_bar"},
        step="fixed",
    )
    state, _ = booster.init(jax.random.key(0))
    seen = []

    def step(iteration):
        nonlocal state
        state, _ = booster.step(jax.random.fold_in(jax.random.key(0), iteration), state)

    for iteration in range(1, 34):
        begun = len(traces)
        seen.append((state.mixture.capacity, compilations(step, iteration), len(traces) - begun))
    assert state.mixture.capacity == 64 and state.mixture.num_components == 34
    assert [index for index, (_, new, _) in enumerate(seen) if new and index] == [32 - 1]
    assert not any(traced for _, _, traced in seen), "the model was traced when the fit began"


def test_a_host_function_compiles_nothing():
    """A second one of the same dimension: there is no program with model code."""

    def target(center):
        return relbo.from_callable(lambda z: (-0.5 * np.sum((z - center) ** 2, -1), center - z), dim=2, batched=True)

    relbo.fit(target(0.0), max_components=2, stop=(), **SMALL)
    assert compilations(relbo.fit, target(1.0), max_components=2, stop=(), **SMALL) == 0


def test_polishing_compiles_nothing():
    """Round by round with smaller steps, by the program of refinement."""
    door, mixture = door_of(target_of("two_modes")), TWO_MODES.mixture(relbo.families.LocationScale(), 4)
    ascent, estimator = relbo.ascent.NaturalAscent(20, 16), relbo.objectives.StickingTheLanding()
    ascent.refine(jax.random.key(0), door, mixture, estimator)
    assert compilations(ascent.annealed(1).refine, jax.random.key(1), door, mixture, estimator) == 0


def far_down(z, widths):
    return -3e4 - 0.5 * jnp.sum((z / widths) ** 2)


def test_no_loop_is_compiled_for_every_block():
    """In 300 dimensions, where the determinant of the map (of low rank) is a loop, and at values that float32 rounds
    too coarsely, so that every block is evaluated in float64."""
    widths = np.linspace(0.5, 3.0, 300, dtype=np.float32)
    first, second = (relbo.from_log_density(far_down, jnp.zeros(300), args=(x,)) for x in (widths, widths[::-1].copy()))
    oracle = relbo.NaturalOracle(num_steps=5, num_draws=16, num_restarts=1, starts=relbo.Starts(num_modes=0))
    found = []

    def fit(target):
        found.append(relbo.fit(target, max_components=1, oracle=oracle, refine=False, progress_bar=False))

    assert ASKED_FOR_MEMORY < compilations(fit, first) < MOST_OF_A_FIT
    assert compilations(fit, second) == ASKED_FOR_MEMORY
    assert isinstance(found[1].whitened.affine.family.scale, relbo.families.LowRank)
    assert is_coarse(np.array([found[1].elbo.value])) and found[1].num_evaluations > 10 * block_of(second)


SHIPPED = """
import math, jax.numpy as jnp, relbo
from relbo.runtime.compiling import compile_options
options = [compile_options(optimized)["compiler_options"] for optimized in (True, False)]
assert [each.pop("xla_backend_optimization_level") for each in options] == [1, 0], options
assert all(each in ({}, {"xla_cpu_use_fusion_emitters": False}) for each in options), options
assert compile_options(over_data=True)["compiler_options"] == {"xla_backend_optimization_level": 1}
target = relbo.from_log_density(lambda x: -0.5 * jnp.sum((x - 3.0) ** 2), jnp.zeros(2))
posterior = relbo.fit(target, progress_bar=False, max_components=2)
assert abs(float(posterior.elbo.value) - math.log(2 * math.pi)) < 1e-4, posterior
rows = jnp.linspace(-1.0, 1.0, 2**15)  # many data are a program of their own kind
target = relbo.from_log_density(lambda x, rows: -0.5 * jnp.sum((rows - x) ** 2), 0.0, args=(rows,))
posterior = relbo.fit(target, progress_bar=False, max_components=1)
exact = -0.5 * float(jnp.sum(rows**2)) + 0.5 * math.log(2 * math.pi / len(rows))
assert abs(float(posterior.elbo.value) - exact) < 0.01, (posterior.elbo, exact)
"""


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="an accelerator has no options")
def test_the_options_that_are_shipped_compile_and_run():
    """All other tests have options of their own, so this one is a process without them."""
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", SHIPPED], check=True, env=plain)

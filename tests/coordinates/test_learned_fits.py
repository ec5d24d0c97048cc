"""Fits whose coordinates are learned, by default: what else a posterior can do, it can do there too."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_flow import DIM, bent, bent_log_density, bent_on_host

import relbo
from relbo.boosting.booster import Booster

SETTINGS = {"seed": 0, "progress_bar": False}


@pytest.fixture(scope="module")
def fitted():
    return relbo.fit(bent(), **SETTINGS)


def kinds(posterior):
    return [(record.kind, record.accepted) for record in posterior.trace]


def test_a_bent_target_is_straightened(fitted):
    assert kinds(fitted)[:2] == [("first", True), ("flow", True)]
    assert fitted.whitened.flow is not None
    assert -0.1 < fitted.elbo.value < 0.02


def test_one_component_is_one_normal():
    posterior = relbo.fit(bent(), max_components=1, **SETTINGS)
    assert posterior.whitened.flow is None and posterior.num_components == 1


def test_affine_is_affine():
    posterior = relbo.fit(bent(), precondition="affine", max_components=3, **SETTINGS)
    assert posterior.whitened.flow is None and "flow" not in posterior.evaluations


def test_two_bent_modes_are_both_kept():
    def two(z):
        shifted = z.at[0].add(-12.0)
        mirrored = (-z).at[0].add(-12.0)
        return jnp.logaddexp(bent_log_density(shifted), bent_log_density(mirrored)) - jnp.log(2.0)

    posterior = relbo.fit(relbo.from_log_density(two, jnp.zeros(DIM)), **SETTINGS)
    left = np.mean(np.asarray(posterior.sample_unconstrained(4000, seed=1))[:, 0] < 0)
    assert 0.4 < left < 0.6


def test_a_fit_goes_on_in_its_coordinates(fitted):
    more = relbo.fit(bent(), start=fitted, max_components=4, **SETTINGS)
    assert more.elbo.value > fitted.elbo.value - 3 * (more.elbo.std_err + fitted.elbo.std_err)
    for one, other in zip(*(jax.tree.leaves(p.whitened.flow) for p in (fitted, more)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_interrupted_before_its_flow_goes_on_to_the_same_bits(fitted, tmp_path, monkeypatch):
    path = tmp_path / "fit.relbo"

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="nterrupt"):
        patch.setattr(Booster, "learn", interrupted)
        half = relbo.fit(bent(), checkpoint=path, **SETTINGS)
    assert kinds(half) == [("first", True)]
    resumed = relbo.fit(bent(), checkpoint=path, **SETTINGS)
    assert kinds(resumed) == kinds(fitted)
    np.testing.assert_array_equal(resumed.sample_unconstrained(50, seed=3), fitted.sample_unconstrained(50, seed=3))


def test_memory_is_bounded_there_too():
    posterior = relbo.fit(bent(), precondition="flow", max_memory="20MB", max_components=2, **SETTINGS)
    assert posterior.whitened.flow is not None and posterior.elbo.value > -0.3


def test_a_function_on_the_host():
    target = relbo.from_callable(bent_on_host, DIM, gradient=True)
    posterior = relbo.fit(target, max_components=2, **SETTINGS)
    assert posterior.whitened.flow is not None and posterior.elbo.value > -0.2


def test_a_guide_draws_through_the_flow():
    def model():
        scale = numpyro.sample("log_scale", dist.Normal(0.0, 1.5))
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(scale)).expand([2]).to_event(1))

    posterior = relbo.fit(relbo.from_numpyro(model), max_components=2, **SETTINGS)
    assert posterior.whitened.flow is not None
    guide = posterior.as_guide()
    with numpyro.handlers.seed(rng_seed=0):
        trace = numpyro.handlers.trace(guide).get_trace()
    draw = {name: trace[name]["value"] for name in ("log_scale", "x")}
    assert draw["x"].shape == (2,)
    assert np.isfinite(float(posterior.log_prob(posterior.target.unconstrain(draw)[None])[0]))


def test_minibatches():
    x = np.random.default_rng(0).normal(size=200).astype(np.float32)

    def model(x):
        log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 1.0))
        center = numpyro.sample("center", dist.Normal(0.0, jnp.exp(log_scale)))
        with numpyro.plate("rows", len(x), subsample_size=50):
            batch = numpyro.subsample(x, event_dim=0)
            numpyro.sample("y", dist.Normal(center, 5.0), obs=batch)

    posterior = relbo.fit(relbo.from_numpyro(model, x), precondition="flow", max_components=2, **SETTINGS)
    assert posterior.whitened.flow is not None and np.isfinite(posterior.elbo.value)

"""What a finished fit warns of, one line each."""

import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.ascent import NaturalAscent

SETTINGS = {
    "oracle": relbo.NaturalOracle(num_steps=20, num_draws=16, num_restarts=2, starts=relbo.Starts(num_modes=8)),
    "refine": NaturalAscent(num_steps=20, num_draws=16),
    "max_components": 1,
    "progress_bar": False,
}


def cut(z, limit, beyond):
    """A standard normal below the limit; beyond it, something else."""
    return jnp.where(z[0] > limit, beyond, -0.5 * jnp.sum(z**2))


def said(recwarn, words: str) -> list[str]:
    return [str(warning.message) for warning in recwarn if words in str(warning.message)]


@pytest.mark.parametrize(("beyond", "words"), [(np.nan, "NaN log density"), (np.inf, "+inf at some draws")])
def test_broken_draws(beyond, words, recwarn):
    target = relbo.from_log_density(cut, -jnp.ones(1), args=(np.float32(1.8), np.float32(beyond)))
    posterior = relbo.fit(target, **SETTINGS)
    assert 0 < posterior.trace[-1].nan_fraction < 0.1
    assert len(said(recwarn, words)) == 1
    if beyond == np.inf:
        found = relbo.diagnose(posterior, num_draws=1000)
        assert found.num_infinite > 0 and found.status == "model" and "+inf at" in found.verdict


def test_a_sound_model_is_not_warned_of(recwarn):
    relbo.fit(relbo.from_log_density(cut, -jnp.ones(1), args=(np.float32(np.inf), np.float32(0.0))), **SETTINGS)
    assert not list(recwarn)


class Noisy:
    """Right while a target is tried, and then a hundredth of a nat off, differently every time."""

    def __init__(self):
        self.rng, self.num = np.random.default_rng(0), 0

    def __call__(self, z):
        self.num += 1
        noise = 0.01 * self.rng.normal() if self.num > 200 else 0.0
        return -0.5 * float(z @ z) + noise, -z


def test_noise_in_the_density(recwarn):
    target = relbo.from_callable(Noisy(), 1)
    relbo.fit(target, **SETTINGS)
    assert len(said(recwarn, "is random: twice at one point it differed")) == 1


@pytest.mark.parametrize(("power", "warned"), [(1.0, True), (2.0, False)])
def test_a_tail_that_falls_as_one_over_r(power, warned, recwarn):
    target = relbo.from_log_density(lambda z, a: -a * jnp.log1p(jnp.abs(z[0] - 0.3)), jnp.zeros(1), args=(power,))
    relbo.fit(target, **SETTINGS)
    assert bool(said(recwarn, "far out it falls only as r^-1 in the direction of z[0]")) == warned


@pytest.mark.parametrize(("center", "warned"), [(3e4, True), (3.0, False)])
def test_a_parameter_that_float32_cannot_tell(center, warned, recwarn):
    target = relbo.from_log_density(
        lambda z, m: -0.5 * jnp.sum(((z - m) / 0.05) ** 2), jnp.full(1, center), args=(np.float32(center),)
    )
    relbo.fit(target, **SETTINGS)
    assert bool(said(recwarn, "float32 rounds it to")) == warned

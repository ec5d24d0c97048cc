"""Models and oracles that break in the middle of a fit: it ends with what it has, or goes on without."""

import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from fault_worker import LEAN
from lean_fits import FRAGILE_SETTINGS, SETTINGS, Wild, fragile, lean_target


def test_a_log_density_that_raises_in_mid_fit(tmp_path, caplog):
    simulator, target, midway = fragile()

    def fail(values):
        raise ZeroDivisionError("the simulator broke")

    simulator.break_after(midway, fail)
    with pytest.warns(UserWarning, match="the simulator broke.*: returning the posterior after"):
        posterior = relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **FRAGILE_SETTINGS)
    assert "the simulator broke" in posterior.stop_reason and "ZeroDivisionError" in caplog.text
    assert 1 <= posterior.num_components < 6
    with pytest.warns(UserWarning, match="holds no draws, because the model failed"):
        relbo.save(posterior, tmp_path / "fit.relbo")
    assert relbo.load(tmp_path / "fit.relbo").num_components == posterior.num_components
    simulator.mend()
    assert relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **FRAGILE_SETTINGS).num_components == 6


def test_a_log_density_that_turns_nan_in_mid_fit():
    simulator, target, midway = fragile()
    simulator.break_after(midway, lambda values: np.full(len(values), np.nan))
    with pytest.warns(UserWarning, match="The fit stopped: .* NaN log density.*start=posterior"):
        posterior = relbo.fit(target, **FRAGILE_SETTINGS)
    assert "NaN log density" in posterior.stop_reason
    assert np.isfinite(np.asarray(posterior.sample(100))).all()
    simulator.mend()
    assert relbo.fit(target, start=posterior, stop=(), max_components=6).num_components == 6


@pytest.mark.parametrize("num", [4, pytest.param(19, marks=pytest.mark.slow)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_oracle_that_diverges(value, num):
    """Its proposals are rejected, and the mixture stays what it was."""
    oracle = LEAN["oracle"]
    wild = Wild(ascent=oracle.ascent, num_restarts=1, starts=oracle.starts, factor=jnp.float32(value))
    for step in ("fixed", "fully_corrective", "adaptive"):
        settings = {**SETTINGS, "oracle": wild, "step": step, "max_components": 3, "stop": (relbo.MaxIterations(num),)}
        posterior = relbo.fit(lean_target(), **settings)
        assert posterior.num_components == 1
        assert np.isfinite(np.asarray(posterior.sample(100))).all()
        assert not any(record.accepted for record in posterior.trace[1:])
        assert "iterations were done" in posterior.stop_reason  # it is not the model that is broken


@pytest.mark.parametrize(("offset", "casts", "warned"), [(1e3, True, False), (3e5, False, False), (3e5, True, True)])
def test_float32_that_is_too_coarse_is_warned_of(offset, casts, warned, recwarn):
    def log_density(z, low):
        value = -low - 0.5 * jnp.sum(z**2)
        return value.astype(jnp.float32) if casts else value

    target = relbo.from_log_density(log_density, jnp.zeros(1), args=(offset,))
    relbo.fit(target, **{**SETTINGS, "max_components": 1})
    said = [str(warning.message) for warning in recwarn if "is rounded to" in str(warning.message)]
    assert bool(said) == warned and all("casts to float32" in text for text in said)

"""Files that relbo wrote before the door (version 0.1 of 2026-11-15): they load, agree with themselves, and go on."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from fault_worker import log_density

FILES = pathlib.Path(__file__).parent / "files"


@pytest.mark.parametrize("precision", [32, 64])
@pytest.mark.parametrize("kind", ["relbo", "ckpt"])
def test_yesterdays_files_load_and_go_on(kind, precision):
    """A fit of three components by a step rule with a memory, which was kept in the precision of the fit."""
    with jax.enable_x64(precision == 64):
        loaded = relbo.load(FILES / f"float{precision}.{kind}")
        assert loaded.num_components == len(loaded.trace) == 3 and loaded.mixture.dtype == f"float{precision}"
        assert np.isfinite(loaded.trace[-1].elbo.value) and loaded.trace[-1].spent == {}
        assert loaded.num_evaluations == sum(record.evaluations for record in loaded.trace) > 0
        if kind == "relbo":
            stored = loaded.target.draws
            np.testing.assert_allclose(loaded.log_prob(stored.z), stored.log_q, rtol=1e-4, atol=1e-4)
            assert np.isfinite(relbo.diagnose(loaded).elbo.value)
        target = relbo.from_log_density(log_density, jnp.zeros(1))
        more = relbo.fit(target, start=loaded, seed=3, stop=(), max_components=4, progress_bar=False)
        assert more.num_components == 4 and len(more.trace) == 4
        assert sum(more.trace[-1].spent.values()) == more.trace[-1].evaluations


def test_a_flow_without_skewed_coordinates_loads_and_goes_on():
    """From before flows skewed coordinates (2026-11-18): the header has sizes of layers alone."""

    def log_density(z):
        first, second = z
        return -0.5 * first**2 - 0.5 * (second * jnp.exp(-first)) ** 2 - first

    loaded = relbo.load(FILES / "flow32.relbo")
    stored = loaded.target.draws
    np.testing.assert_allclose(loaded.log_prob(stored.z), stored.log_q, rtol=1e-4, atol=1e-4)
    flow = loaded.whitened.flow
    assert flow is not None and flow.skew is None and flow.num_layers == 3
    target = relbo.from_log_density(log_density, jnp.zeros(2))
    more = relbo.fit(target, start=loaded, seed=3, max_components=2, progress_bar=False)
    assert more.whitened.flow is not None and more.whitened.flow.skew is None
    assert more.elbo.value > loaded.elbo.value - 5 * more.elbo.std_err

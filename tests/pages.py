"""For the tests of the report: a posterior with the worst of names, made by hand, and a browser."""

import functools
import pathlib
import shutil
import tempfile

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from handmade import full_normals, posterior_of
from relbo.oracles import NaturalOracle, Starts
from relbo.targets import from_log_density

EVIL = "<script>alert(1)</script>"
WORSE = '</script><img src=x onerror="alert(2)">'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, as from: apt-get install chromium")


def log_density(params):
    """Of three normals, the first two apart: what the mixture below is."""
    first, second = params[EVIL], params[WORSE]
    left = -0.5 * ((first + 2) / 0.5) ** 2 - jnp.log(0.5) + jnp.log(0.3)
    right = -0.5 * (first - 1.5) ** 2 + jnp.log(0.7)
    return jnp.logaddexp(left, right) - 0.5 * jnp.sum(second**2)


@functools.cache
def evil_posterior() -> relbo.Posterior:
    """Two components in three dimensions, and a trace of four iterations, one of them rejected."""
    target = from_log_density(log_density, {EVIL: 0.0, WORSE: np.zeros(2, np.float32)})
    factors = [np.diag([0.5, 1.0, 1.0]), np.eye(3)]
    order = [target.coordinate_names().index(name) for name in (EVIL, f"{WORSE}[0]", f"{WORSE}[1]")]
    means = np.array([[-2.0, 0.0, 0.0], [1.5, 0.0, 0.0]])[:, np.argsort(order)]
    factors = [factor[np.ix_(np.argsort(order), np.argsort(order))] for factor in factors]
    mixture = full_normals(means, factors, [0.3, 0.7])
    posterior = posterior_of(mixture, target, oracle=NaturalOracle(starts=Starts(num_modes=0)))
    return eqx.tree_at(lambda made: made.trace, posterior, [_record(number) for number in range(4)])


def _record(number: int) -> relbo.Record:
    weights = np.array([1.0]) if number == 0 else np.array([0.7, 0.3])
    gap = None if number == 0 else relbo.Estimate(0.5 / 10**number, 0.002, 1000)
    return relbo.Record(
        iteration=number,
        kind="first" if number == 0 else "fully-corrective",
        accepted=number < 3,
        num_components=len(weights),
        weights=weights,
        step_size=1.0,
        elbo=relbo.Estimate(1.0 - 0.2 / 2**number, 0.01, 1000),
        improvement=None,
        gap=gap,
        objective=None,
        seconds=1.5,
        evaluations=1000,
        num_nan=0,
        num_zero=0,
        nan_fraction=0.0,
    )


@functools.cache
def loaded_posterior() -> relbo.Posterior:
    """The same, as it comes from a file, without model or data."""
    with tempfile.TemporaryDirectory() as folder:
        relbo.save(evil_posterior(), pathlib.Path(folder) / "fit.relbo")
        return relbo.load(pathlib.Path(folder) / "fit.relbo")

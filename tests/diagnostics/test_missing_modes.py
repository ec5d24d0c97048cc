"""A mode that the mixture lacks is sought before a fit gives up, and when it is continued."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from test_diagnostics import measured, student_3

import relbo
from helpers import Known
from relbo.ascent import NaturalAscent
from relbo.diagnostics import diagnosis_of, modes_of

FAR = Known(np.array([0.3, 0.7]), np.array([[-9.0], [8.0]]), np.array([[[0.5]], [[1.0]]]), 1.7)
SETTINGS = {
    "oracle": relbo.NaturalOracle(num_steps=20, num_draws=16, num_restarts=3, starts=relbo.Starts(num_modes=8)),
    "refine": NaturalAscent(num_steps=20, num_draws=16),
    "progress_bar": False,
}


def blind(self, key, door, known=None):
    """As if every walk had ended where the first component is."""
    del key, known
    return jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[:1], 8, axis=0), self._alone(door).params)


@pytest.fixture
def target():
    return FAR.target()


def test_modes_are_sought_before_a_fit_gives_up(target, monkeypatch):
    monkeypatch.setattr(relbo.Booster, "find_modes", blind)
    posterior = relbo.fit(target, max_components=8, stop=relbo.Stalled(2), **SETTINGS)
    assert len(modes_of(posterior)) == 2
    assert posterior.num_evaluations == sum(posterior.evaluations.values())


def test_a_continued_fit_begins_at_the_modes_that_it_lacks(target, monkeypatch):
    monkeypatch.setattr(relbo.Booster, "find_modes", blind)
    one = relbo.fit(target, max_components=1, **SETTINGS)
    assert len(modes_of(one)) == 1
    more = relbo.fit(target, start=one, max_components=2, stop=(), progress_bar=False)
    assert len(modes_of(more)) == 2


def test_a_search_without_fruit_ends(target, monkeypatch):
    """Modes that the oracle can make nothing of are not sought again and again."""
    calls = []
    seek = relbo.loop.running.Run._seek
    monkeypatch.setattr(relbo.loop.running.Run, "_seek", lambda self: calls.append(1) or seek(self))
    monkeypatch.setattr(relbo.Booster, "find_modes", blind)
    monkeypatch.setattr(relbo.Booster, "_is_gain", lambda self, *args: False)
    posterior = relbo.fit(target, max_components=8, stop=relbo.Stalled(2), **SETTINGS)
    assert posterior.num_components == 1 and len(calls) == 1
    assert "did not improve" in posterior.stop_reason


@pytest.mark.parametrize(
    ("stop", "advice"),
    [
        (relbo.Stop("budget", "8 components were reached", "components"), "a larger max_components"),
        (relbo.Stop("budget", "the budget of 10 s was spent", "seconds"), "a larger budget"),
        (
            relbo.Stop("stalled", "the last 5 iterations did not improve the ELBO"),
            r"start=posterior\)\. It begins at the modes",
        ),
    ],
)
def test_the_advice_follows_from_why_the_fit_stopped(stop, advice):
    seen = diagnosis_of(measured(student_3, stop=stop))
    found = dataclasses.replace(seen, missed_mass=relbo.Estimate(0.17, 0.01, 100))
    assert found.status == "not converged" and re.search(advice, found.verdict)

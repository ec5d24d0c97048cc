"""A fit that ends in its first iteration: a posterior, if a poor one, and it says so."""

import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.ascent import NaturalAscent
from relbo.model.door import Door

SETTINGS = {
    "oracle": relbo.NaturalOracle(num_steps=20, num_draws=16, num_restarts=2, starts=relbo.Starts(num_modes=8)),
    "refine": NaturalAscent(num_steps=20, num_draws=16),
    "progress_bar": False,
}


@pytest.fixture
def target():
    return relbo.from_log_density(lambda z: -0.5 * jnp.sum((z - 3.0) ** 2 / 0.25), jnp.zeros(1))


def at_purpose(purpose: str, number: int, action):
    """`Door.__call__` that does something else at a call of some purpose."""
    call, calls = Door.__call__, []

    def changed(self, points, what, *rest, **more):
        calls.append(what)
        if calls.count(purpose) == number:
            action()
        return call(self, points, what, *rest, **more)

    return changed


def interrupt():
    raise KeyboardInterrupt


def test_a_budget_of_evaluations_spent_in_the_race(target, tmp_path):
    """The normal that leads the race is the result; no checkpoint is made of it."""
    whole = relbo.fit(target, max_components=1, **SETTINGS).trace[0].spent
    num = sum(whole[purpose] for purpose in ("walks", "curvature", "race"))
    with pytest.warns(UserWarning, match="evaluations was spent before the first component.*a poor posterior"):
        posterior = relbo.fit(target, max_evaluations=num, checkpoint=tmp_path / "fit.ckpt", **SETTINGS)
    assert "before the first component was fitted" in posterior.stop_reason
    assert 0 < posterior.num_evaluations <= num and np.isfinite(posterior.elbo.value)
    assert abs(np.mean(posterior.sample(500)) - 3.0) < 1.0
    assert "stopped because the budget of" in repr(posterior) and not (tmp_path / "fit.ckpt").exists()


def test_no_time_at_all(target):
    with pytest.warns(UserWarning, match="0 s was spent before the first component.*around the start"):
        posterior = relbo.fit(target, max_seconds=0.0, **SETTINGS)
    assert posterior.num_components == 1 and np.isfinite(posterior.elbo.value)
    found = relbo.diagnose(posterior, num_draws=500)
    assert found.stopped_early and found.status != "good"


@pytest.mark.parametrize("wrong", [-1, float("nan"), True])
def test_a_budget_of_time_is_a_number(target, wrong):
    with pytest.raises(ValueError, match="a number of seconds, got"):
        relbo.fit(target, max_seconds=wrong, **SETTINGS)


def test_a_budget_too_small_for_anything(target):
    with pytest.raises(ValueError, match=r"no result: the budget of 3 evaluations .* Give it more"):
        relbo.fit(target, max_evaluations=3, **SETTINGS)


def skewed(z):
    """Too skewed for the curvature of its mode to say all."""
    return -0.5 * jnp.sum(z**2) - jnp.sum(jnp.exp(-z))


def test_ctrl_c_in_the_race(monkeypatch):
    monkeypatch.setattr(Door, "__call__", at_purpose("race", 15, interrupt))
    with pytest.warns(UserWarning, match="interrupted before the first component was fitted: returning the normal"):
        posterior = relbo.fit(relbo.from_log_density(skewed, jnp.zeros(2)), **SETTINGS)
    assert posterior.stop_reason.startswith("it was interrupted before")
    assert np.isfinite(np.asarray(posterior.sample(10))).all()


def test_ctrl_c_before_there_is_anything(target, monkeypatch):
    monkeypatch.setattr(Door, "__call__", at_purpose("walks", 1, interrupt))
    with pytest.raises(KeyboardInterrupt, match="before there was anything to return"):
        relbo.fit(target, **SETTINGS)


def test_a_budget_of_time_holds_within_one_call(target):
    """Many points of a model with much data take seconds: the clock is looked at between their blocks."""
    from relbo.model.door import BudgetSpent, watched
    from relbo.model.whitening import identity_map

    door, seen = Door(identity_map(target, "none")), []

    def watch(num: int, purpose: str) -> None:
        seen.append(num)
        if len(seen) == 3:
            raise BudgetSpent(relbo.Stop("budget", "enough"))

    with watched(watch), pytest.raises(BudgetSpent, match="enough"):
        door.numbers(np.zeros((20 * door.block, 1)), "measuring")
    assert seen == [20 * door.block, 0, 0]

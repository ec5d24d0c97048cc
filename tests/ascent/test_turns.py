"""Refinement of many components in many dimensions: some at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import door_of
from relbo.ascent import NaturalAscent
from relbo.ascent.turns import Turns
from relbo.families import LocationScale
from relbo.mixture import empty_mixture, weights_of
from relbo.objectives import StickingTheLanding
from relbo.targets import from_log_density

FULL, DIM, NUM = LocationScale(), 40, 11


@pytest.mark.parametrize("num_active", [1, 7, 8, 9, 16, 21, 24])
def test_every_component_has_its_turn_and_as_many_as_the_others(num_active):
    turns = Turns.of(24, num_active, DIM)
    moved = np.zeros(24, int)
    for step in range(turns.rounded(10)):
        turn = turns.at(step)
        assert turn.then == turns.at(step + 1).first
        moved[turn.first : turn.first + turns.num_used(step)] += 1
    assert (moved[:num_active] > 0).all() and (moved[num_active:] == 0).all()
    assert len(set(moved[:num_active])) == 1


def test_the_newest_move_first():
    turns = Turns.of(32, 20, DIM)
    assert [int(turns.at(step).first) for step in range(4)] == [16, 8, 0, 16]


def test_the_last_turn_of_an_odd_capacity_lies_within():
    turns = Turns.of(13, 13, DIM)
    assert [(int(turns.at(step).first), turns.num_used(step)) for step in range(2)] == [(5, 8), (0, 8)]


def test_in_few_dimensions_all_move_together():
    turns = Turns.of(32, 20, 4)
    assert turns.num == 1 and turns.num_moving == 32 and turns.num_used(0) == 20


def cosines(z):
    return -jnp.sum(jnp.log(jnp.cosh(z)))


def test_all_components_are_refined_and_empty_slots_left_alone():
    mixture = empty_mixture(FULL, DIM, 16, jnp.float32)
    rng = np.random.default_rng(0)
    for slot in range(NUM):
        member = FULL.init(jnp.asarray(0.1 * rng.normal(size=DIM), jnp.float32), 0.5 * jnp.ones(DIM))
        mixture = mixture.place(slot, member, -np.log(NUM))
    door = door_of(from_log_density(cosines, np.zeros(DIM, np.float32)))
    refined, num_nan = NaturalAscent(30, 32).refine(jax.random.key(0), door, mixture, StickingTheLanding())
    before, after = (np.asarray(each.params.loc) for each in (mixture, refined))
    assert num_nan == 0
    assert (np.abs(after[:NUM] - before[:NUM]).max(axis=1) > 0.01).all()
    np.testing.assert_array_equal(after[NUM:], before[NUM:])
    np.testing.assert_array_equal(weights_of(refined)[NUM:], 0.0)
    widths = np.exp(np.diagonal(np.asarray(refined.params.scale)[:NUM], axis1=1, axis2=2))
    assert (widths.mean(axis=1) > 0.8).all(), "all grew towards the standard deviations of the target, pi / 2"

"""Between iterations: modes that the mixture lacks, and the state of a fit that is taken up again."""

import dataclasses
from collections import Counter
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.diagnostics.defensive import has_heavy_mode, missing_modes
from relbo.posterior.posterior import Posterior


def seek(booster: Booster, key: Key[Array, ""], state: State, spent: Counter) -> State | None:
    """The state with modes that its mixture lacks as starts, None if there are none; `spent` counts evaluations."""
    num_modes = booster.oracle.starts.num_modes
    if not num_modes or not booster.target.differentiable:
        return None
    door = booster.door(state.target, spent)
    lacking = missing_modes(jax.random.fold_in(key, state.iteration), door, state.mixture, float(state.elbo.value))
    if not lacking.any:
        return None
    num = min(num_modes, int(np.sum(lacking.log_weights > -np.inf)))
    old = state.modes if state.modes is not None else lacking.members
    modes = jax.tree.map(
        lambda new, known: np.concatenate([np.asarray(new)[:num], np.asarray(known)])[:num_modes], lacking.members, old
    )
    return dataclasses.replace(state, modes=modes, explore=2)


def has_other_mode(booster: Booster, state: State, spent: Counter) -> bool:
    """Whether the first component lacks a heavy mode, which a flow, one hill, would lack too."""
    if state.modes is None:
        return False
    return has_heavy_mode(booster.door(state.target, spent), state.mixture, state.modes, float(state.elbo.value))


def resumed(booster: Booster, key: Key[Array, ""], start: Posterior) -> State:
    """The state in which boosting left a posterior, with this booster's target and a memory of its step rule."""
    state = start.state
    whitened = booster.rebased(state.target)
    fresh = booster.step_rule.init()
    shape: Any = jax.tree.structure(fresh)
    if jax.tree.structure(state.memory) != shape:  # the memory of another rule, or a bare one from a file
        leaves = jax.tree.leaves(state.memory)
        fits = len(leaves) == shape.num_leaves and "step_rule" in start.booster.missing
        state = dataclasses.replace(state, memory=jax.tree.unflatten(shape, leaves) if fits else fresh)
    num_modes = 0 if state.modes is None else jax.tree.leaves(state.modes)[0].shape[0]
    if num_modes != booster.oracle.starts.num_modes:
        state = dataclasses.replace(state, modes=booster.find_modes(key, booster.door(whitened)))
    if state.other is not None:
        other = dataclasses.replace(state.other, target=booster.rebased(state.other.target))
        state = dataclasses.replace(state, other=other)
    return dataclasses.replace(state, target=whitened)

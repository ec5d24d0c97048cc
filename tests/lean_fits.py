"""Small fits for the tests of what may happen to a fit: one target, one set of programs, one undisturbed result."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import relbo
from fault_worker import LEAN, log_density

SETTINGS = {**LEAN, "seed": 3, "max_components": 8, "progress_bar": False}


@functools.cache
def lean_target():
    return relbo.from_log_density(log_density, jnp.zeros(1))


@functools.cache
def undisturbed() -> relbo.Posterior:
    """What a fit with `SETTINGS` finds if nothing happens to it."""
    return relbo.fit(lean_target(), **SETTINGS)


def same(one: relbo.Posterior, other: relbo.Posterior) -> bool:
    kept = [(posterior.mixture, posterior.state.mixture) for posterior in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, kept), strict=True))


def interrupting(step, num: int, error=KeyboardInterrupt):
    """`Booster.step` that is interrupted at its call number `num`, when its work is done but not yet handed over."""
    calls = iter(range(1000))

    def interrupted(self, *args):
        found = step(self, *args)
        if next(calls) == num:
            raise error
        return found

    return interrupted


# A simulator that may break in mid-fit


FRAGILE_SETTINGS = {
    "stop": (),
    "min_improvement": -np.inf,
    "precondition": "none",
    "refine": False,
    "family": "mean_field_normal",
    "oracle": relbo.NaturalOracle(num_steps=5, num_draws=16, num_restarts=1, starts=relbo.Starts(num_modes=0)),
    "max_components": 6,
}


class Simulator:
    """A standard normal, evaluated on the host, that once does something else after a number of evaluations."""

    def __init__(self):
        self.num, self.limit, self.accident = 0, np.inf, None

    def __call__(self, z):
        self.num += len(z)
        values = -0.5 * np.sum(z**2, axis=1)
        return values if self.num <= self.limit else self.accident(values)

    def break_after(self, num: int, accident) -> None:
        """From so many evaluations on, `accident` takes the values and gives those that are returned."""
        self.num, self.limit, self.accident = 0, num, accident

    def mend(self) -> None:
        self.limit = np.inf


@functools.cache
def fragile() -> tuple[Simulator, relbo.targets.AbstractTarget, int]:
    """The simulator, its target, and the evaluations after which a fit is in the middle of its iterations."""
    simulator = Simulator()
    target = relbo.from_callable(simulator, dim=1, batched=True, gradient=False)
    first, whole = (relbo.fit(target, **{**FRAGILE_SETTINGS, "max_components": num}) for num in (1, 6))
    return simulator, target, (first.num_evaluations + whole.num_evaluations) // 2


class Wild(relbo.oracles.AscentOracle):
    """An oracle whose proposals are multiplied by a number that is none."""

    factor: jax.Array = eqx.field(kw_only=True)

    def propose(self, *args):
        found = super().propose(*args)
        return type(found)(jax.tree.map(lambda leaf: leaf * self.factor, found.params), found.objective, found.num_nan)

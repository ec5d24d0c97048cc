r"""L-BFGS from many points at once, for modes, paths and starts.

By hand, because a walk must wait for its function: Optax and the others want to call it from inside a compiled
program. Here every walk is a little machine that asks for a value and gradient at its next trial point; one program
takes the answers of all walks, and what it returns are the next questions. A trial that does not rise enough (Armijo's
condition) is halved and tried again; pairs with negative curvature are left out of the memory (Nocedal and Wright
2006, chapter 7). A walk ends when it gains no more, and asks for its last point again.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from relbo.budgets import budget
from relbo.mixture import Numbers
from relbo.model.door import Seen
from relbo.runtime.compiling import compiled

_MEMORY = 10  # pairs: of the 3 to 20 that Nocedal and Wright recommend
_RISE = 1e-4  # of what the slope promises, to accept a step
_SMALL_GAIN = 1e-3  # nats
_MAX_IDLE = 3  # small gains in a row, after which a walk has arrived
_MAX_FAILS = 15  # cuts, to a millionth of the step: what does not rise by then never will
_LOOK_EVERY = 8  # steps between two looks at whether all walks have ended
MANY = 4
"""Times the few walks of a budget, side by side."""

Evaluate = Callable[[Numbers, int], Seen]
"""Of points, and how many of them count: the others only fill up."""


class Walks(eqx.Module):
    """Many walks: where they stand, what they remember, and the trial points at which they want to know more."""

    at: Float[Array, "*num dim"]
    value: Float[Array, "*num"]
    slope: Float[Array, "*num dim"]
    steps: Float[Array, "*num memory dim"]
    bends: Float[Array, "*num memory dim"]
    """Differences of positions and of negative gradients, the newest last."""
    kept: Bool[Array, "*num memory"]
    direction: Float[Array, "*num dim"]
    length: Float[Array, "*num"]
    idle: Int[Array, "*num"]
    fails: Int[Array, "*num"]

    @property
    def trial(self) -> Float[Array, "num dim"]:
        return self.at + self.length[:, None] * self.direction

    @property
    def ended(self) -> Bool[Array, " num"]:
        return (self.idle >= _MAX_IDLE) | (self.fails >= _MAX_FAILS)


def lbfgs_paths(
    evaluate: Evaluate, points: Float[Numbers, "num dim"], num_steps: int, num_kept: int
) -> Float[np.ndarray, "num num_kept dim"]:
    """Ascend from every point; positions kept after `num_kept` numbers of evaluations, the last of them the end.

    `evaluate` gives values and gradients at many points. A path that meets a value or gradient that is not finite
    stays where it was. Any number of walks meets the same program, which is made for many.
    """
    kept = set(kept_steps(num_steps, num_kept).tolist())
    num, together = len(points), MANY * budget(points.shape[1]).num_walks
    points = np.concatenate([points, np.repeat(points[:1], -num % together, axis=0)])
    walks, trial = _begin(points, evaluate(points, num))
    path = []
    for step in range(num_steps):
        walks, trial, all_ended = _advance(walks, evaluate(trial, num), np.asarray(num))
        if step in kept:
            path.append(np.asarray(walks.at))
        if step % _LOOK_EVERY == _LOOK_EVERY - 1 and all_ended:
            break
    path += [np.asarray(walks.at)] * (num_kept - len(path))
    return np.stack(path, axis=1)[:num]


def kept_steps(num_steps: int, num_kept: int) -> np.ndarray:
    """Which steps of a path are kept: the last one always, the others denser towards the beginning."""
    return np.round(np.geomspace(num_steps, min(3, num_steps), num_kept)[::-1]).astype(int) - 1


@compiled
def _begin(points, seen: Seen) -> tuple[Walks, Array]:
    num, dim = points.shape
    memory = jnp.zeros((num, _MEMORY, dim), points.dtype)
    broken = ~(jnp.isfinite(seen.values) & jnp.all(jnp.isfinite(seen.slopes), axis=1))
    slope = jnp.where(broken[:, None], 0.0, seen.slopes)
    length = 1 / jnp.maximum(jnp.linalg.norm(slope, axis=1), 1.0)
    fails, idle = jnp.where(broken, _MAX_FAILS, 0), jnp.zeros(num, int)
    never = jnp.zeros((num, _MEMORY), bool)
    walks = Walks(points, jnp.asarray(seen.values), slope, memory, memory, never, slope, length, idle, fails)
    return walks, walks.trial


@compiled
def _advance(walks: Walks, seen: Seen, num_used) -> tuple[Walks, Array, Array]:
    """The walks after an answer, their next questions, and whether all that count have ended."""
    moved = jax.vmap(_advance_one)(walks, seen.values, seen.slopes)
    return moved, moved.trial, jnp.all(moved.ended | (jnp.arange(moved.ended.shape[0]) >= num_used))


def _advance_one(walk: Walks, value, slope) -> Walks:
    """One walk (fields without their first axis) after the answer at its trial point."""
    going = (walk.idle < _MAX_IDLE) & (walk.fails < _MAX_FAILS)
    step = walk.length * walk.direction
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))
    slope = jnp.where(finite, slope, 0.0)
    rises = finite & (value >= walk.value + _RISE * (step @ walk.slope))
    accepted = going & rises
    bend = walk.slope - slope
    curved = accepted & (step @ bend > 1e-8 * jnp.sqrt((step @ step) * (bend @ bend)))
    steps, bends, kept = (
        jnp.where(curved, jnp.roll(memory, -1, axis=0).at[-1].set(new), memory)
        for memory, new in ((walk.steps, step), (walk.bends, bend), (walk.kept, jnp.asarray(True)))
    )
    at, height, here = jnp.where(accepted, walk.at + step, walk.at), walk.value, walk.slope
    height, here = jnp.where(accepted, value, height), jnp.where(accepted, slope, here)
    direction = _uphill(here, steps, bends, kept)
    # Without curvature to go by, a step that went well is doubled; one that failed is cut, by more if it met nothing.
    unknown = accepted & ~jnp.any(kept)
    shorter = jnp.where(finite, 0.4, 0.1) * walk.length
    length = jnp.where(accepted, jnp.where(unknown, 2 * walk.length, 1.0), shorter)
    idle = jnp.where(accepted, jnp.where(value - walk.value > _SMALL_GAIN, 0, walk.idle + 1), walk.idle)
    fails = jnp.where(accepted, 0, walk.fails + 1)
    direction = jnp.where(accepted, direction, walk.direction)
    after = Walks(at, height, here, steps, bends, kept, direction, length, idle, fails)
    ended = eqx.tree_at(lambda w: w.length, walk, jnp.zeros_like(walk.length))
    return jax.tree.map(lambda new, old: jnp.where(going, new, old), after, ended)


def _uphill(slope, steps, bends, kept) -> Float[Array, " dim"]:
    """The quasi-Newton direction, by the two-loop recursion over what is remembered."""
    products = jnp.where(kept, jnp.sum(steps * bends, axis=1), 1.0)

    def back(carry, pair):
        step, bend, product, is_kept = pair
        share = jnp.where(is_kept, step @ carry / product, 0.0)
        return carry - share * bend, share

    rest, shares = jax.lax.scan(back, slope, (steps, bends, products, kept), reverse=True)
    newest = jnp.where(kept[-1], products[-1] / jnp.maximum(bends[-1] @ bends[-1], jnp.finfo(slope.dtype).tiny), 1.0)

    def forth(carry, pair):
        step, bend, product, is_kept, share = pair
        other = jnp.where(is_kept, bend @ carry / product, 0.0)
        return carry + jnp.where(is_kept, share - other, 0.0) * step, None

    direction, _ = jax.lax.scan(forth, newest * rest, (steps, bends, products, kept, shares))
    return jnp.where(jnp.all(jnp.isfinite(direction)) & (direction @ slope > 0), direction, slope)

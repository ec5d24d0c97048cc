"""L-BFGS from many points at once (Optax's), for modes, paths and starts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from relbo.mixture import map_chunks

MAX_LINESEARCH_STEPS = 15
_SMALL_GAIN = 1e-3  # nats
_MAX_IDLE = 3


def lbfgs_paths(
    function, points: Float[Array, "num dim"], num_steps: int, num_kept: int, points_at_once: int
) -> Float[Array, "num num_kept dim"]:
    """Ascend `function` from every point; positions kept at `num_kept` steps, the last of them the end.

    A path that meets a value or gradient that is not finite stays where it was.
    """
    kept = kept_steps(num_steps, num_kept)
    return map_walks(lambda point: lbfgs_path(function, point, num_steps)[kept], points, points_at_once)


def map_walks(walk, starts, points_at_once: int):
    """`vmap(walk)(starts)`, of as many walks at a time as may be.

    Limits of the target's own (`targets.Limited`) would not do: the two branches of a vmapped line search are
    independent of each other, and would be two loops side by side (see `map_chunks`).
    """
    if jax.tree.leaves(starts)[0].shape[0] <= points_at_once:
        return jax.vmap(walk)(starts)
    return map_chunks(walk, starts, points_at_once)


def kept_steps(num_steps: int, num_kept: int) -> np.ndarray:
    """Which steps of a path are kept: the last one always, the others denser towards the beginning."""
    return np.round(np.geomspace(num_steps, min(3, num_steps), num_kept)[::-1]).astype(int) - 1


def lbfgs_path(function, point: Float[Array, " dim"], num_steps: int) -> Float[Array, "num_steps dim"]:
    """The positions of one ascent, step by step. It ends early when it gains no more, and stays there.

    Without that every line search at a mode would be a long one, in vain.
    """
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=MAX_LINESEARCH_STEPS)
    optimizer = optax.lbfgs(memory_size=10, linesearch=search)

    def loss(at):
        return -function(at)

    value_and_grad = optax.value_and_grad_from_state(loss)

    def body(carry):
        step, at, state, last_value, num_idle, path = carry
        value, grad = value_and_grad(at, state=state)
        updates, new_state = optimizer.update(grad, state, at, value=value, grad=grad, value_fn=loss)
        moved = optax.apply_updates(at, updates)
        good = jnp.all(jnp.isfinite(moved)) & jnp.isfinite(value)
        at, state = jax.tree.map(lambda new, old: jnp.where(good, new, old), (moved, new_state), (at, state))
        num_idle = jnp.where(last_value - value > _SMALL_GAIN, 0, num_idle + 1)
        return step + 1, at, state, value, num_idle, path.at[step].set(at)

    def goes_on(carry):
        step, _, _, _, num_idle, _ = carry
        return (step < num_steps) & (num_idle < _MAX_IDLE)

    path = jnp.zeros((num_steps, *point.shape), point.dtype)
    start = (0, point, optimizer.init(point), jnp.asarray(jnp.inf, point.dtype), 0, path)
    num_done, end, _, _, _, path = jax.lax.while_loop(goes_on, body, start)
    return jnp.where(jnp.arange(num_steps)[:, None] < num_done, path, end)


def lbfgs_evaluations(num_points: int, num_steps: int) -> int:
    """Gradient evaluations of `lbfgs_paths`, counting two for every line search, which is what is seen in practice."""
    return 2 * num_points * num_steps

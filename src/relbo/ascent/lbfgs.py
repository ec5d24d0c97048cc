"""L-BFGS from many points at once (Optax's), for modes, paths and starts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

MAX_LINESEARCH_STEPS = 15


def lbfgs_paths(
    function, points: Float[Array, "num dim"], num_steps: int, num_kept: int
) -> Float[Array, "num num_kept dim"]:
    """Ascend `function` from every point; positions kept at `num_kept` steps, the last of them the end.

    A path that meets a value or gradient that is not finite stays where it was.
    """
    kept = kept_steps(num_steps, num_kept)
    return jax.vmap(lambda point: lbfgs_path(function, point, num_steps)[kept])(points)


def kept_steps(num_steps: int, num_kept: int) -> np.ndarray:
    """Which steps of a path are kept: the last one always, the others denser towards the beginning."""
    return np.round(np.geomspace(num_steps, min(3, num_steps), num_kept)[::-1]).astype(int) - 1


def lbfgs_path(function, point: Float[Array, " dim"], num_steps: int) -> Float[Array, "num_steps dim"]:
    """The positions of one ascent, step by step."""
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps=MAX_LINESEARCH_STEPS)
    optimizer = optax.lbfgs(memory_size=10, linesearch=search)

    def loss(at):
        return -function(at)

    value_and_grad = optax.value_and_grad_from_state(loss)

    def body(carry, _):
        at, state = carry
        value, grad = value_and_grad(at, state=state)
        updates, new_state = optimizer.update(grad, state, at, value=value, grad=grad, value_fn=loss)
        moved = optax.apply_updates(at, updates)
        good = jnp.all(jnp.isfinite(moved)) & jnp.isfinite(value)
        at, state = jax.tree.map(lambda new, old: jnp.where(good, new, old), (moved, new_state), (at, state))
        return (at, state), at

    return jax.lax.scan(body, (point, optimizer.init(point)), length=num_steps)[1]


def lbfgs_evaluations(num_points: int, num_steps: int) -> int:
    """Gradient evaluations of `lbfgs_paths`, counting two for every line search, which is what is seen in practice."""
    return 2 * num_points * num_steps

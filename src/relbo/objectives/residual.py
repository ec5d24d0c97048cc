r"""What an oracle maximises over a component $s$, given the mixture $q$ so far. The one file where signs are decided.

An objective is a pointwise *residual* $r(z)$, to be averaged over $z \sim s$; larger is better:

| objective | $r(z)$ |
|---|---|
| ELBO | $\log p - \log s$ |
| RELBO | $\log p - \lambda_t \log s - \log q$ |
| finite step | $\log p - \log((1-\gamma_t)\, q + \gamma_t\, s)$ |

Its gradient is that of $z \mapsto r(z)$ along the draws, with the parameters of $s$ inside $r$ held fixed (the
estimators differ in noise, not in mean). For ELBO and RELBO this is the full gradient, because scores have mean zero.
For the finite step it is $1/\gamma$ times the full gradient of $\mathrm{ELBO}((1-\gamma)q + \gamma s)$: the component
is chosen for the mixture that the step will really make. That objective is bounded by $\log Z$, where the RELBO of a
target with heavier tails than $q$ has its optimum at infinity.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]


class AbstractObjective(eqx.Module):
    """A residual of one point; `iteration` is 0 for the first component."""

    @abstractmethod
    def residual(
        self,
        log_p: Float[Array, ""],
        log_q: Float[Array, ""],
        log_s: Float[Array, ""],
        iteration: Int[Array, ""],
    ) -> Float[Array, ""]: ...

    def with_slopes(self, log_p, log_q, log_s, iteration) -> tuple[Array, tuple[Array, Array, Array]]:
        """Residuals at many draws, and their derivatives by log p, log q and log s."""
        slope = jax.value_and_grad(self.residual, argnums=(0, 1, 2))
        return jax.vmap(lambda p, q, s: slope(p, q, s, iteration))(log_p, log_q, log_s)

    @abstractmethod
    def entropy_weight(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """The factor of the score of $s$ that a plainly reparameterised gradient carries along."""


class ELBO(AbstractObjective):
    """The evidence lower bound of $s$ alone: the objective of the first component."""

    def residual(self, log_p, log_q, log_s, iteration):
        return log_p - log_s

    def entropy_weight(self, iteration):
        return jnp.asarray(1.0)


class Constant(eqx.Module):
    """The same lambda at every iteration. A class, so that equal constants share compiled programs."""

    value: float = eqx.field(static=True)

    def __call__(self, iteration):
        return jnp.asarray(self.value)


def inverse_sqrt(iteration):
    """lambda = 1 / sqrt(t + 1), the paper's."""
    return 1 / jnp.sqrt(iteration + 1.0)


def inverse(iteration):
    """lambda = 1 / (t + 1)."""
    return 1 / (iteration + 1.0)


def inverse_log(iteration):
    """lambda = 1 / log(t + 2)."""
    return 1 / jnp.log(iteration + 2.0)


SCHEDULES: dict[str, Schedule] = {
    "1/sqrt(t+1)": inverse_sqrt,
    "1/(t+1)": inverse,
    "1/log(t+2)": inverse_log,
}


class RELBO(AbstractObjective):
    """The paper's residual ELBO with its schedule of lambda: a name, a number, or a function of the iteration."""

    schedule: Schedule = eqx.field(static=True)

    def __init__(self, schedule: str | float | Schedule = "1/sqrt(t+1)"):
        if isinstance(schedule, str):
            if schedule not in SCHEDULES:
                raise ValueError(
                    f"Unknown schedule {schedule!r}. Choose one of {list(SCHEDULES)}, a number or a function."
                )
            self.schedule = SCHEDULES[schedule]
        else:
            self.schedule = schedule if callable(schedule) else Constant(float(schedule))

    def residual(self, log_p, log_q, log_s, iteration):
        return log_p - self.schedule(iteration) * log_s - log_q

    def entropy_weight(self, iteration):
        return self.schedule(iteration)


def open_loop(iteration):
    """gamma = 1 / (t + 2)."""
    return 1 / (iteration + 2.0)


def after_step(log_p, log_q, log_s, log_rest, log_step, numpy: Any = jnp):
    r"""The finite-step residual $\log p - \log((1-\gamma)\, q + \gamma\, s)$, from $\log(1-\gamma)$ and $\log\gamma$.

    `numpy` is the library that computes it: NumPy itself on the host, in double precision.
    """
    return log_p - numpy.logaddexp(log_rest + log_q, log_step + log_s)


class FiniteStep(AbstractObjective):
    """The residual ELBO of the mixture after a step of size gamma, by default 1 / (t + 2)."""

    step_size: Schedule = eqx.field(static=True, default=open_loop)

    def residual(self, log_p, log_q, log_s, iteration):
        gamma = self.step_size(iteration)
        return after_step(log_p, log_q, log_s, jnp.log1p(-gamma), jnp.log(gamma))

    def entropy_weight(self, iteration):
        return jnp.asarray(1.0)

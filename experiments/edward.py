"""The optimiser of Edward, which the authors' code runs on: Adam, 0.1 times 0.9 to the number of hundreds of steps."""

import optax

RATE, DECAY, EVERY = 0.1, 0.9, 100
ADAM = optax.adam(optax.exponential_decay(RATE, EVERY, DECAY, staircase=True))
"""One object for all fits, since another would be compiled anew."""


def last_rate(num_steps: int) -> float:
    """The learning rate of the last of so many steps."""
    return RATE * DECAY ** ((num_steps - 1) // EVERY)

"""The models of `make scaling`: one that grows in rows, one that grows in dimensions, one for many components."""

import jax
import jax.numpy as jnp
import numpy as np

COLUMNS = 20


def log_prior(beta):
    return -jnp.sum(beta**2) / 2


def log_likelihood(beta, rows):
    logits = rows["x"] @ beta
    return rows["y"] * logits - jax.nn.softplus(logits)


def logistic(beta, x, y):
    """Logistic regression: the cost of a gradient is proportional to the rows."""
    return log_prior(beta) + jnp.sum(log_likelihood(beta, {"x": x, "y": y}))


def logistic_blocks(num_rows: int, num_columns: int, block: int = 2**16):
    """Its data, some rows at a time."""
    rng = np.random.default_rng(0)
    beta = 0.3 * rng.normal(size=num_columns)
    for start in range(0, num_rows, block):
        x = rng.normal(size=(min(block, num_rows - start), num_columns)).astype(np.float32)
        yield start, x, (rng.random(len(x)) < 1 / (1 + np.exp(-x @ beta))).astype(np.float32)


def logistic_data(num_rows: int, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.empty((num_rows, num_columns), np.float32), np.empty(num_rows, np.float32)
    for start, some_x, some_y in logistic_blocks(num_rows, num_columns):
        x[start : start + len(some_x)], y[start : start + len(some_x)] = some_x, some_y
    return x, y


def counts_data(dim: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.poisson(np.exp(0.5 + 0.5 * rng.normal(size=dim - 1))).astype(np.float32)


def counts(z, y):
    """Counts with log rates around a common level: skewed coordinates, all tied to one; linear cost in them."""
    level, rates = z[0], z[1:]
    return -0.5 * level**2 - 2.0 * jnp.sum((rates - level) ** 2) + jnp.sum(y * rates - jnp.exp(rates))


def bent(z):
    """A standard normal law with two coordinates bent and heavier tails in the rest: no mixture is exact."""
    return -0.5 * z[0] ** 2 - 0.5 * (z[1] - 0.5 * z[0] ** 2) ** 2 - jnp.sum(jnp.log(jnp.cosh(z[2:])))


def numpyro_logistic(x, y):
    import numpyro
    import numpyro.distributions as dist

    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def numpyro_counts(y):
    import numpyro
    import numpyro.distributions as dist

    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", len(y)):
        rate = numpyro.sample("rate", dist.Normal(level, 0.5))
        numpyro.sample("y", dist.Poisson(jnp.exp(rate)), obs=y)

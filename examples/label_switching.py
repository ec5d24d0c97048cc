"""A mixture model whose groups have no names: six ways to label them, six modes, and plain VI sees one.

    python examples/label_switching.py [--quick]

The discrete memberships are summed out by enumeration. Needs the extras numpyro and enumeration.
"""

import itertools
import sys

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo

CENTERS = np.array([-5.0, 0.0, 5.0])


def simulate(num: int = 90) -> np.ndarray:
    rng = np.random.default_rng(0)
    return CENTERS[np.arange(num) % 3] + rng.normal(size=num)


def model(points):
    means = numpyro.sample("means", dist.Normal(0, 6).expand([3]).to_event(1))
    with numpyro.plate("point", points.shape[0]):
        group = numpyro.sample("group", dist.Categorical(jnp.ones(3) / 3))
        numpyro.sample("x", dist.Normal(means[group], 1.0), obs=points)


def main(quick: bool = False) -> dict[tuple[int, ...], float]:
    """The share of draws under every labelling; each should have a sixth."""
    posterior = relbo.fit(relbo.from_numpyro(model, simulate()), seed=0, max_components=8 if quick else 32)
    means = posterior.sample(6000, seed=1)["means"]
    orders = np.argsort(means, axis=1)
    shares = {order: float(np.all(orders == order, axis=1).mean()) for order in itertools.permutations(range(3))}
    print(posterior)
    for order, share in shares.items():
        print(f"labels {order}: {share:.3f} of the draws, a sixth is {1 / 6:.3f}")
    return shares


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)

"""Logistic regression on 200,000 rows in minibatches of 512.

    python examples/minibatch.py [--quick]

A plate with `subsample_size` is all it takes: ascents climb on minibatches (with a control variate, so that they need
not be small steps), while ELBO, gap and weights are measured on all rows. Needs the extra numpyro.
"""

import sys
import time

import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo

NUM_FEATURES = 10


def simulate(num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    truth = rng.normal(size=NUM_FEATURES)
    labels = rng.random(num_rows) < 1 / (1 + np.exp(-features @ truth))
    return features, labels.astype(np.float32), truth


def model(features, labels, batch_size):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([NUM_FEATURES]).to_event(1))
    with numpyro.plate("row", features.shape[0], subsample_size=batch_size) as rows:
        numpyro.sample("label", dist.Bernoulli(logits=features[rows] @ beta), obs=labels[rows])


def main(quick: bool = False) -> tuple[relbo.Posterior, np.ndarray]:
    features, labels, truth = simulate(200_000)
    target = relbo.from_numpyro(model, features, labels, 512)
    begun = time.perf_counter()
    posterior = relbo.fit(target, seed=0, max_components=2 if quick else 32)
    draws = posterior.sample(2000, seed=1)["beta"]
    scores = (draws.mean(0) - truth) / draws.std(0)
    print(f"{posterior} after {time.perf_counter() - begun:.0f} s")
    print(f"distance of the posterior mean from the truth, in posterior sds: {np.round(scores, 1)}")
    return posterior, scores


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)

"""The examples run, and their answers are right."""

import importlib.util
import pathlib

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    tested = {"eight_schools", "paper_appendix", "label_switching", "minibatch"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


@pytest.mark.slow
def test_eight_schools_through_four_doors():
    posteriors = load("eight_schools").main(quick=True)
    elbos = {name: posterior.elbo for name, posterior in posteriors.items()}
    halved = {name: elbo.value + (np.log(2) if name == "Stan" else 0.0) for name, elbo in elbos.items()}
    # The best normal of one posterior, found from starts of their own: two of its optima lie within half a nat.
    assert np.ptp(list(halved.values())) < 0.5
    means = [posterior.sample(4000, seed=1)["mu"].mean() for posterior in posteriors.values()]
    assert np.ptp(means) < 1.0  # the posterior's standard deviation is 3.3


def test_the_papers_appendix():
    elbos = load("paper_appendix").main(quick=True)
    assert elbos[-1] > elbos[0] - 0.1


@pytest.mark.slow
def test_label_switching():
    shares = load("label_switching").main(quick=True)
    np.testing.assert_allclose(list(shares.values()), 1 / 6, atol=0.03)


@pytest.mark.slow
def test_minibatches_on_200_000_rows():
    example = load("minibatch")
    posterior, scores = example.main(quick=True)
    assert np.abs(scores).max() < 4.5
    # With so many rows the posterior is normal, and its covariance the inverse of the information at the mean.
    features, _, _ = example.simulate(200_000)
    draws = posterior.sample(4000, seed=2)["beta"].astype(np.float64)
    chances = 1 / (1 + np.exp(-features @ draws.mean(0)))
    information = (features * (chances * (1 - chances))[:, None]).T @ features + np.eye(features.shape[1])
    sds = np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose(draws.std(0), sds, rtol=5 / np.sqrt(2 * 4000))

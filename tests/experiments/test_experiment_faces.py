"""Pieces of the faces experiment: the density, the scores, what is held out."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import relbo
from experiments.coordinate_ascent import coordinate_ascent
from experiments.factorization import NOISES, Matrix, Task, drawn_mse, scores, train_log_lik

SMALL = Matrix("small", np.random.default_rng(3).random((7, 11)).astype(np.float32))


@pytest.fixture(scope="module", params=NOISES)
def fitted(request):
    task = Task(SMALL, 2, request.param, 0)
    return task, relbo.fit(task.target, **relbo.paper("fixed") | {"max_components": 2}, progress_bar=False)


def spread(task, values):
    if task.noise == NOISES[0]:
        return np.ones(np.shape(values["U"])[:-2])
    return task.matrix.entries[task.observed == 1].std() * np.exp(0.1 * np.asarray(values["log_sd"]))


def test_the_log_density_is_that_of_the_model(fitted):
    task, _ = fitted
    values = task.target.constrain(task.target.initial[0] + 0.3)
    seen = task.observed == 1
    product, sd = np.asarray(values["U"]).T @ np.asarray(values["V"]), spread(task, values)
    expected = stats.norm.logpdf(SMALL.entries[seen], product[seen], sd).sum()
    expected += sum(stats.norm.logpdf(np.asarray(values[name])).sum() for name in "UV")
    if task.noise != NOISES[0]:
        expected -= 0.5 * (0.1 * float(values["log_sd"])) ** 2
    np.testing.assert_allclose(task.target.log_density(task.target.initial[0] + 0.3), expected, rtol=1e-5)


def test_held_out_entries_are_not_seen(fitted):
    task, _ = fitted
    changed = np.where(task.observed == 1, SMALL.entries, 99.0).astype(np.float32)
    other = Task(Matrix("small", changed), task.rank, task.noise, task.seed)
    point = task.target.initial[0]
    assert float(task.target.log_density(point)) == float(other.target.log_density(point))
    assert 0.2 < task.observed.mean() < 0.8


def test_scores_are_of_the_mean_and_of_the_mixture(fitted):
    task, posterior = fitted
    found = scores(task, posterior)
    at = posterior.constrain(jnp.asarray(posterior.locations))
    products = np.einsum("kri,krj->kij", at["U"], at["V"])
    held = task.observed == 0
    error = np.tensordot(posterior.weights, products, 1) - SMALL.entries
    np.testing.assert_allclose(found["test_mse"], np.mean(error[held] ** 2), rtol=1e-4)
    np.testing.assert_allclose(found["train_mse"], np.mean(error[~held] ** 2), rtol=1e-4)
    draws = posterior.sample(64, seed=1)
    each = np.einsum("nri,nrj->nij", draws["U"], draws["V"])
    densities = stats.norm.pdf(SMALL.entries, each, spread(task, draws)[:, None, None]).mean(0)
    np.testing.assert_allclose(found["test_log_lik"], np.log(densities)[held].mean(), rtol=1e-4)
    sd = np.exp(posterior.weights @ np.log(spread(task, at)))
    expected = stats.norm.logpdf(error[~held], 0.0, sd).mean()
    np.testing.assert_allclose(train_log_lik(task, posterior), expected, rtol=1e-4)


def test_the_error_as_edward_measures_it_has_the_noise_of_its_draws(fitted):
    task, posterior = fitted
    draws = posterior.sample(500, seed=2)
    mean = np.einsum("nri,nrj->ij", draws["U"], draws["V"]) / 500
    held = task.observed == 0
    np.testing.assert_allclose(
        drawn_mse(task, posterior), np.mean((mean - SMALL.entries)[held] ** 2) + 0.002, rtol=1e-4
    )


def test_the_authors_program_begins_near_zero():
    start = Task(SMALL, 2, NOISES[0], 0, small_start=True).target.initial[0]
    bound = np.repeat([np.sqrt(6 / (2 + 7)), np.sqrt(6 / (2 + 11))], [14, 22])
    assert np.all(np.abs(start) <= bound) and np.abs(start / bound).max() > 0.8


def test_coordinate_ascent_finds_a_matrix_of_low_rank():
    """The noise of the model is 1, so that the entries must be larger for the prior not to matter."""
    rng = np.random.default_rng(5)
    entries = (8 * rng.normal(size=(40, 2)) @ rng.normal(size=(2, 60))).astype(np.float32)
    row = coordinate_ascent(Task(Matrix("low rank", entries), 2, NOISES[0], 0))["rows"][0]
    assert row["test_mse"] < 0.05 * entries.var()
    nothing = coordinate_ascent(Task(Matrix("noise", 1e-3 * entries), 2, NOISES[0], 0))["rows"][0]
    np.testing.assert_allclose(nothing["test_mse"], np.mean((1e-3 * entries) ** 2), rtol=0.2)  # the prior wins

"""Comparison with reference draws: floors hold at their rate, errors are found, every form of reference is read."""

import functools

import numpy as np
import pytest
from scipy import stats

import relbo
from handmade import full_normals, posterior_of
from helpers import FALSE_ALARM, TWO_BLOBS, within
from relbo.comparison.differences import parameter_differences, sliced_difference
from relbo.comparison.effective import effective_size
from relbo.comparison.wasserstein import chance_distances, chance_limit, distance
from relbo.targets import from_log_density


def exact_draws(num, seed=0):
    rng = np.random.default_rng([seed, 77])
    chosen = rng.choice(2, num, p=TWO_BLOBS.weights)
    noise = rng.standard_normal((num, 2))
    return TWO_BLOBS.means[chosen] + np.einsum("nij,nj->ni", TWO_BLOBS.factors[chosen], noise)


@functools.cache
def target():
    return TWO_BLOBS.target()


def posterior(shift=0.0, scale=1.0, weights=TWO_BLOBS.weights):
    kept = [index for index, weight in enumerate(weights) if weight > 0]
    means, factors = TWO_BLOBS.means[kept] + shift, scale * TWO_BLOBS.factors[kept]
    return posterior_of(full_normals(means, factors, np.asarray(weights)[kept]), target())


@pytest.fixture(scope="module")
def exact():
    return posterior()


# Floors


def skewed_and_bimodal(rng, num):
    draws = rng.standard_normal((num, 4))
    draws[:, 1] = np.exp(draws[:, 1])
    draws[:, 2] += 0.9 * draws[:, 0]
    draws[:, 3] += np.where(rng.random(num) < 0.3, -3.0, 3.0)
    return draws


@pytest.mark.parametrize("repeats", [30, pytest.param(80, marks=pytest.mark.slow)])
def test_two_samples_of_one_law_stay_below_the_floors(repeats):
    """Each kind of difference may exceed its floor anywhere at a rate of 0.002."""
    rng = np.random.default_rng(4)
    found = {"mean": 0, "sd": 0, "wasserstein": 0, "sliced": 0}
    for _ in range(repeats):
        ours, theirs = skewed_and_bimodal(rng, 500), skewed_and_bimodal(rng, 300)
        parameters = parameter_differences(list("abcd"), ours, theirs, num_chains=0)
        for kind in ("mean", "sd", "wasserstein"):
            found[kind] += any(getattr(one, kind).found for one in parameters)
        found["sliced"] += sliced_difference(ours, theirs, 0, rng).found
    # Skewed squares are not yet normal with 300 draws: the rates may be a few times what they should be, no more.
    assert max(found.values()) <= stats.binom.ppf(1 - FALSE_ALARM, repeats, 0.004), found


def test_the_chance_distance_is_that_of_brownian_bridges():
    """For a uniform law the integral of |B| has mean sqrt(pi / 32) and a known tail."""
    draws = chance_distances(np.linspace(0, 1, 4001)[:, None])[:, 0]
    assert within(draws.mean(), draws.std() / np.sqrt(len(draws)), np.sqrt(np.pi / 32), rounding=1e-3)
    rng = np.random.default_rng(0)
    real = np.array([distance(rng.random(100), rng.random(100))[0] * np.sqrt(50) for _ in range(4000)])
    assert np.sum(real > chance_limit(draws, 0.002)) <= stats.binom.ppf(1 - FALSE_ALARM, len(real), 0.002)
    assert np.sum(real > chance_limit(draws, 0.05)) >= stats.binom.ppf(FALSE_ALARM, len(real), 0.03)


def test_distance_is_that_of_scipy_and_its_error_is_honest():
    rng = np.random.default_rng(2)
    scores = []
    for _ in range(400):
        one, other = rng.normal(0.5, 1.5, 300), rng.standard_normal(200)
        value, own, theirs = distance(one, other)
        scores.append((value, np.sqrt(own / 300 + theirs / 200)))
    np.testing.assert_allclose(value, stats.wasserstein_distance(one, other), rtol=1e-10)
    values, errors = np.array(scores).T
    ratio = values.std(ddof=1) / np.sqrt(np.mean(errors**2))
    assert abs(ratio - 1) < stats.norm.isf(FALSE_ALARM / 2) / np.sqrt(2 * 400) + 0.03  # the bias near zero


def test_effective_size_of_a_known_chain():
    """AR(1) with coefficient a: num (1 - a) / (1 + a)."""
    rng, num = np.random.default_rng(1), 20_000
    noise = rng.standard_normal((4, num))
    chains = noise.copy()
    for step in range(1, num):
        chains[:, step] += 0.8 * chains[:, step - 1]
    found = effective_size(chains.ravel(), 4)
    assert abs(found / (4 * num / 9) - 1) < 0.1
    assert effective_size(noise.ravel(), 4) > 0.9 * 4 * num
    stuck = noise + np.array([[0.0], [0.0], [5.0], [5.0]])
    assert effective_size(stuck.ravel(), 4) < 20
    assert effective_size(noise.ravel(), 0) == 4 * num


# What is found


def test_exact_draws_agree(exact):
    found = relbo.compare(exact, exact_draws(4000), num_draws=4000)
    assert found.agrees, str(found)
    assert [one.name for one in found.parameters] == ["z[0]", "z[1]"] and len(found.modes) == 2
    assert "No difference beyond Monte Carlo error" in str(found) and "independent" in found.notes[0]


def test_a_shift_is_found():
    found = relbo.compare(posterior(shift=np.array([0.15, 0.0])), exact_draws(4000))
    first, second = found.parameters
    assert first.mean.found and first.wasserstein.found and not second.mean.found and not first.sd.found
    sd = np.sqrt(TWO_BLOBS.covariance[0, 0])
    assert within(first.mean.value.value, first.mean.value.std_err, 0.15 / sd)
    assert "worst z[0]" in found.verdict and not found.agrees


def test_a_wrong_width_is_found():
    found = relbo.compare(posterior(scale=1.3), exact_draws(4000))
    own = np.sqrt(np.diag(TWO_BLOBS.covariance))
    within_parts = np.tensordot(TWO_BLOBS.weights, TWO_BLOBS.factors @ TWO_BLOBS.factors.transpose(0, 2, 1), 1)
    wide = np.sqrt(np.diag(TWO_BLOBS.covariance + (1.3**2 - 1) * within_parts))
    for index, one in enumerate(found.parameters):
        assert one.sd.found and not one.mean.found
        assert within(one.sd.value.value, one.sd.value.std_err, wide[index] / own[index] - 1)


def test_a_lost_mode_and_wrong_masses_are_found():
    lost = relbo.compare(posterior(weights=[0.0, 1.0]), exact_draws(4000))
    assert lost.sliced_wasserstein.found and all(one.wasserstein.found for one in lost.parameters)
    tilted = relbo.compare(posterior(weights=[0.5, 0.5]), exact_draws(4000))
    assert all(mode.difference.found for mode in tilted.modes) and "of the reference" in tilted.verdict
    assert abs(sum(mode.reference for mode in tilted.modes) - 1) < 1e-9


# What is read


def log_density(params):
    return -0.5 * params["a"] ** 2 - 0.5 * ((params["b"] - 1.0) ** 2).sum()


@pytest.fixture(scope="module")
def named():
    """A posterior over a scalar and a pair, one of the names hidden in the other's shape."""
    tree = {"a": 0.0, "b": np.zeros(2, np.float32)}
    mixture = full_normals([[0.0, 1.0, 1.0]], [np.eye(3)], [1.0])
    return posterior_of(mixture, from_log_density(log_density, tree))


def test_every_form_of_reference_gives_the_same_answer(named):
    import arviz

    rng = np.random.default_rng(0)
    draws = {"a": rng.standard_normal((4, 500)), "b": 1.0 + rng.standard_normal((4, 500, 2))}
    points = np.concatenate([draws["a"][..., None], draws["b"]], axis=-1)
    forms = [draws, arviz.from_dict(posterior=draws), points]
    answers = [relbo.compare(named, form, num_draws=1000) for form in forms]
    assert answers[0].agrees and answers[0].notes == [] and 0 < answers[0].reference_ess <= 2000
    for other in answers[1:]:
        for one, same in zip(answers[0].parameters, other.parameters, strict=True):
            assert one.name == same.name
            np.testing.assert_allclose(float(one.mean.value.value), float(same.mean.value.value), atol=1e-5)
    flat = {name: value.reshape(2000, *value.shape[2:]) for name, value in draws.items()}
    assert relbo.compare(named, flat, num_draws=1000).reference_ess == 2000
    assert relbo.compare(named, named, num_draws=1000).agrees


def test_part_of_the_parameters_will_do(named):
    found = relbo.compare(named, {"a": np.random.default_rng(0).standard_normal(500), "c": np.zeros(3)}, num_draws=500)
    assert [one.name for one in found.parameters] == ["a"] and found.modes == []
    assert any("lacks b" in note for note in found.notes)


def test_sticky_chains_have_higher_floors(named):
    rng = np.random.default_rng(3)
    chains = rng.standard_normal((4, 1000))
    sticky = np.repeat(rng.standard_normal((4, 50)), 20, axis=1)
    free, held = (relbo.compare(named, {"a": one}, num_draws=4000).parameters[0] for one in (chains, sticky))
    assert held.mean.floor > 2 * free.mean.floor and held.wasserstein.floor > 2 * free.wasserstein.floor


def test_wrong_references_are_explained(named):
    with pytest.raises(ValueError, match="no variable in common: x against a, b"):
        relbo.compare(named, {"x": np.zeros(100)})
    with pytest.raises(ValueError, match=r"'b' must have shape .* \(2,\), got \(100, 3\)"):
        relbo.compare(named, {"b": np.zeros((100, 3))})
    with pytest.raises(ValueError, match=r"\(num, 3\) .* got float64 of shape \(100, 2\)"):
        relbo.compare(named, np.zeros((100, 2)))
    with pytest.raises(ValueError, match="different numbers of draws"):
        relbo.compare(named, {"a": np.zeros(100), "b": np.zeros((50, 2))})
    with pytest.raises(ValueError, match="'a' are not all finite"):
        relbo.compare(named, {"a": np.full(100, np.nan)})
    with pytest.raises(ValueError, match="nothing to compare with"):
        relbo.compare(named, {"a": np.zeros(100)})
    with pytest.raises(ValueError, match="has 5 draws, too few"):
        relbo.compare(named, {"a": np.zeros(5)})
    with pytest.raises(ValueError, match="at least 100, got 10"):
        relbo.compare(named, {"a": np.zeros(100)}, num_draws=10)

"""Step rules: one contract for all, and for each what it promises, against quadrature and closed forms."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from helpers import GRID, TWO_MODES, integrate, kl_to, mean_is, normals
from relbo.families import Laplace, LocationScale
from relbo.mixture import weights_of
from relbo.steps import STEPS, Adaptive, Away, Fixed, FullyCorrective, LineSearch, NormCorrective, Pairwise
from relbo.steps.base import weight_problem
from relbo.steps.norm_corrective import inner_products, nearest_weights

SLOT = 2
SLOTS = np.array([SLOT])


def two_modes(log_z=TWO_MODES.log_z, level=np.inf, value=0.0):
    """The log density of the two modes; beyond `level` it is `value`."""
    return lambda z: np.where(z > level, value, TWO_MODES.log_density(z.reshape(-1, 1)).reshape(z.shape) + log_z - 1.7)


TARGET = two_modes()
PROPOSALS = {"good": (-2.0, 0.5), "useless": (8.0, 0.3), "a copy": (1.2, 1.5)}
every_step = pytest.mark.parametrize("name", STEPS)


def before(proposal="good", weights=(0.85, 0.15, 0.0, 0.0)):
    """Two components that miss the left mode, a proposal in slot 2, and an empty slot."""
    loc, scale = PROPOSALS[proposal]
    return normals([1.2, 3.0, loc, 5.0], [1.5, 0.6, scale, 1.0], weights)


def draws_of(mixture, num_draws, seed):
    """(slots, num), or their quantiles (the limit of many draws) without a seed."""
    noise = stats.norm.ppf((np.arange(num_draws) + 0.5) / num_draws)[None]
    if seed is not None:
        noise = np.random.default_rng(seed).standard_normal((mixture.capacity, num_draws))
    locs, scales = np.asarray(mixture.params.loc, float), np.exp(np.asarray(mixture.params.scale, float)[:, 0])
    return locs + scales * noise, locs[:, 0], scales[:, 0]


def problem_of(mixture, num_draws, seed=0, target=TARGET, slots=SLOTS):
    draws, locs, scales = draws_of(mixture, max(1, num_draws), seed)
    log_s = stats.norm(locs, scales).logpdf(draws[..., None])
    return weight_problem(weights_of(mixture), slots, target(draws) if num_draws else np.nan * draws, log_s)


def run(rule, mixture, seed=0, target=TARGET, iteration=1, slots=SLOTS, num_draws=None):
    problem = problem_of(mixture, num_draws or rule.num_draws, seed, target, slots)
    update, memory = rule.update(problem, mixture, slots, iteration, rule.init())
    with np.errstate(divide="ignore"):
        after = mixture.reweight(jnp.asarray(np.log(update.weights), mixture.dtype))
    return update, after, memory


# The contract


@every_step
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_weights_are_weights(name, proposal):
    rule, mixture = STEPS[name], before(proposal)
    update, after, _ = run(rule, mixture)
    weights = update.weights
    assert np.all(weights >= 0), "and none is NaN"
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-9)
    assert weights[3] == 0, "an empty slot stays empty"
    assert update.step_size >= 0 and 0 <= update.kind < len(rule.kinds) and rule.at_once >= 1
    if rule.monotone and proposal == "good":
        assert kl_to(TWO_MODES, after) < kl_to(TWO_MODES, mixture)
    if rule.monotone:
        problem = problem_of(mixture, rule.num_draws)
        assert problem.num_nan == 0
        assert problem.value(weights) <= problem.value(problem.weights) + 1e-5


@pytest.mark.parametrize("name", ["line_search", "adaptive", "pairwise"])
def test_a_useless_proposal_gets_nothing(name):
    update, _, _ = run(STEPS[name], before("useless"))
    assert update.step_size == 0 and update.weights[SLOT] == 0
    np.testing.assert_allclose(update.weights, [0.85, 0.15, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("log_z", [-60.0, 60.0])
@pytest.mark.parametrize("value", [np.nan, -np.inf], ids=["nan", "zero"])
@pytest.mark.parametrize("name", [name for name in STEPS if name != "fixed"])
def test_a_proposal_without_density_gets_nothing(name, value, log_z):
    """All its draws are broken, or outside the support: nothing is known in its favour, whatever log Z is."""
    target = two_modes(log_z, 12.0, value)
    update, _, _ = run(STEPS[name], normals([0.0, 1.5, 30.0, 0.0], np.ones(4), [0.5, 0.5, 0.0, 0.0]), target=target)
    assert not np.any(np.isnan(update.weights))
    assert update.weights[SLOT] < 1e-5


@pytest.mark.parametrize("name", [name for name in STEPS if name != "fixed"])
def test_broken_draws_are_counted_and_those_of_zero_density_are_not(name):
    rule, mixture = STEPS[name], normals([0.0, 1.5, 2.0, 9.0], np.ones(4), [0.5, 0.5, 0.0, 0.0])
    draws, _, _ = draws_of(mixture, rule.num_draws, 0)
    for value, count in ((np.nan, np.sum(draws[:3] > 2.0)), (-np.inf, 0)):
        target = two_modes(0.0, 2.0, value)
        update, _, _ = run(rule, mixture, target=target)
        np.testing.assert_allclose(update.weights.sum(), 1.0, rtol=1e-9)
        assert problem_of(mixture, rule.num_draws, target=target).num_nan == count


# The cached problem


MANY = 20_000  # quantiles, as good as quadrature


@functools.cache
def exact_gradient(weights, proposal="good"):
    """g_i = E_i[log q_w - log p], by quadrature on a grid."""
    mixture = before(proposal)
    _, locs, scales = draws_of(mixture, 1, 0)
    densities = stats.norm(locs, scales).pdf(GRID[:, None])
    ratio = np.log(densities @ np.asarray(weights)) - TARGET(GRID)
    return np.array([integrate(density * ratio) for density in densities.T])


def test_the_cached_problem_is_unbiased():
    """g_i = E_i[log q_w - log p], over replications, against quadrature; f is the weighted sum of them."""
    mixture, weights = before(), np.array([0.5, 0.2, 0.3, 0.0])
    problems = [problem_of(mixture, 64, seed) for seed in range(400)]
    gradient = np.stack([problem.gradient(weights) for problem in problems])
    exact = exact_gradient(tuple(weights))
    assert mean_is(gradient[:, :3], exact[:3])
    np.testing.assert_array_equal(gradient[:, 3], 0.0)
    assert mean_is([problem.value(weights) for problem in problems], weights @ exact)
    np.testing.assert_allclose(problem_of(mixture, MANY, None).gradient(weights)[:3], exact[:3], atol=2e-3)
    kl = kl_to(TWO_MODES, mixture.reweight(jnp.log(jnp.asarray(weights, jnp.float32))))
    np.testing.assert_allclose(weights @ exact, kl - TWO_MODES.log_z, rtol=1e-4)


@pytest.mark.parametrize("start", [(0.6, 0.4, 0.0, 0.0), (0.999, 0.001, 0.0, 0.0), (1e-6, 1 - 1e-6, 0.0, 0.0)])
def test_mirror_descent_descends_at_every_step(start):
    """On exact gradients the unit step never rises, from any start: f is 1-smooth relative to the entropy."""
    mixture = before(weights=start)
    problem, values = problem_of(mixture, MANY, None), []
    for num_steps in (1, 2, 3, 5, 10, 20, 40):
        rule = FullyCorrective(num_steps=num_steps, drop=0.0)
        weights = rule.update(problem, mixture, SLOTS, 1, ())[0].weights
        values.append(weights @ exact_gradient(tuple(weights)))
    assert np.all(np.diff(values) <= 1e-6), np.diff(values).max()
    assert values[-1] < values[0] - 1e-4


# Each rule


@pytest.mark.parametrize("delta", [1.0, 0.5])
@pytest.mark.parametrize("iteration", [1, 2, 7])
def test_fixed_steps(iteration, delta):
    gamma = 2 / (delta * iteration + 2)
    mixture = before()
    update, _, _ = run(Fixed(delta=delta), mixture, iteration=iteration)
    np.testing.assert_allclose(update.step_size, gamma, rtol=1e-6)
    expected = [0.85 * (1 - gamma), 0.15 * (1 - gamma), gamma, 0.0]
    np.testing.assert_allclose(update.weights, expected, rtol=1e-5)


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.5, float("nan")])
def test_fixed_refuses_a_wrong_delta(delta):
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\]"):
        Fixed(delta=delta)


def two_parts(weights):
    """The parts of the target: what is missing is exactly the proposal."""
    return normals([1.5, 6.0, -2.0, 0.0], [1.0, 0.5, 0.5, 1.0], weights)


@pytest.mark.parametrize("name", ["line_search", "fully_corrective", "pairwise"])
def test_exact_parts_get_their_exact_weights(name):
    """At the optimum log q - log p is constant on every draw: no Monte Carlo error is left."""
    update, after, _ = run(STEPS[name], two_parts([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(update.weights, [0.7, 0.0, 0.3, 0.0], atol=2e-4)
    np.testing.assert_allclose(update.step_size, 0.3, atol=2e-4)
    assert kl_to(TWO_MODES, after) < 1e-6


def line_searches(target, mixture):
    """The steps of a hundred independent searches."""
    searches = (run(LineSearch(), mixture, seed, target, num_draws=1024)[0] for seed in range(100))
    return np.asarray([update.step_size for update in searches])


def test_line_search_finds_the_best_step():
    """Where parts are not exact: over replications, the mean of the steps is the minimum found on a fine grid."""
    mixture = normals([1.0, 3.0, -1.5, 0.0], [1.3, 0.6, 0.9, 1.0], [0.8, 0.2, 0.0, 0.0])
    log_s = [stats.norm(loc, scale).logpdf(GRID) for loc, scale in ((1.0, 1.3), (3.0, 0.6), (-1.5, 0.9))]
    log_q = np.logaddexp(np.log(0.8) + log_s[0], np.log(0.2) + log_s[1])
    log_p = TWO_MODES.log_density(GRID[:, None])

    def kl(gamma):
        log_mix = np.logaddexp(np.log1p(-gamma) + log_q, np.log(gamma) + log_s[2])
        return integrate(np.exp(log_mix) * (log_mix - log_p))

    steps = np.linspace(0.01, 0.99, 981)
    best = steps[np.argmin([kl(gamma) for gamma in steps])]
    gammas = line_searches(TARGET, mixture)
    assert 0.1 < best < 0.9
    # The root of a noisy slope is biased at second order; the grid has a step of 0.001.
    assert mean_is(gammas, best, rounding=0.0005 + 2 * gammas.var())


def test_line_search_on_a_truncated_support():
    """p is zero beyond one: the best step is that of the mixture restricted to p > 0, whose ELBO is measured."""
    parts = (-1.5, 0.8), (1.6, 1.0), (-2.2, 0.5)
    densities = np.stack([stats.norm(*part).pdf(GRID) for part in parts]) * (GRID <= 1.0)
    log_p = TWO_MODES.log_density(GRID[:, None])

    def restricted_kl(gamma):
        q = densities.T @ [0.3 * (1 - gamma), 0.7 * (1 - gamma), gamma]
        q = q / integrate(q)
        return integrate(q * (np.log(np.maximum(q, 1e-300)) - log_p))

    steps = np.linspace(0.01, 0.99, 981)
    best = steps[np.argmin([restricted_kl(gamma) for gamma in steps])]
    mixture = normals([-1.5, 1.6, -2.2, 0.0], [0.8, 1.0, 0.5, 1.0], [0.3, 0.7, 0.0, 0.0])
    gammas = line_searches(two_modes(level=1.0, value=-np.inf), mixture)
    assert mean_is(gammas, best, rounding=0.0005 + 2 * gammas.var())


def test_fully_corrective_drops_a_useless_component():
    update, after, _ = run(FullyCorrective(), two_parts([0.6, 0.4, 0.0, 0.0]))
    assert update.weights[1] == 0 and update.weights[3] == 0
    np.testing.assert_allclose(update.weights, [0.7, 0.0, 0.3, 0.0], atol=2e-4)
    assert after.num_components == 2


def test_fully_corrective_is_mirror_descent():
    """One step by hand, on the same draws, from weights that give all components, old and new, their turn."""
    mixture, rule = before(), FullyCorrective(num_steps=1)
    update, _, _ = run(rule, mixture, 3)
    start = np.array([0.85 * 2 / 3, 0.15 * 2 / 3, 1 / 3, 0.0])
    moved = start * np.exp(-problem_of(mixture, rule.num_draws, 3).gradient(start))
    np.testing.assert_allclose(update.weights, moved / moved.sum(), rtol=1e-6)


def test_several_proposals_are_weighed_together():
    """Both parts of the target come at once; what there was before is dropped."""
    mixture, slots = normals([6.0, 1.5, -2.0, 0.0], [0.5, 1.0, 0.5, 1.0], [1.0, 0.0, 0.0, 0.0]), np.array([1, 2])
    update, after, _ = run(FullyCorrective(), mixture, slots=slots)
    np.testing.assert_allclose(update.weights, [0.0, 0.7, 0.3, 0.0], atol=2e-4)
    np.testing.assert_allclose(update.step_size, 1.0, rtol=1e-9)
    assert kl_to(TWO_MODES, after) < 1e-6 and FullyCorrective.at_once >= len(slots)


def test_pairwise_takes_from_the_worst_alone():
    weights = (0.85, 0.15, 0.0, 0.0)
    worst = int(np.argmax(exact_gradient(weights)[:2]))
    other = 1 - worst
    update, _, _ = run(Pairwise(), before(weights=weights))
    after = update.weights
    np.testing.assert_allclose(after[other], weights[other], rtol=1e-5)
    np.testing.assert_allclose(after[worst] + after[SLOT], weights[worst], rtol=1e-5)
    np.testing.assert_allclose(after[SLOT], update.step_size, rtol=1e-5)
    assert after[SLOT] > 0


def test_away_drops_a_component_that_only_hurts():
    """The worst component is far from all mass, the proposal no better: it is dropped, the rest share its weight."""
    mixture = normals([1.2, 9.0, 8.0, -2.0], [1.5, 0.3, 0.3, 0.6], [0.7, 0.1, 0.0, 0.2])
    update, after, _ = run(Away(), mixture)
    assert Away.kinds[update.kind] == "away"
    assert update.weights[1] == 0 and update.weights[SLOT] == 0
    np.testing.assert_allclose(update.weights, [0.7 / 0.9, 0.0, 0.0, 0.2 / 0.9], rtol=1e-5)
    np.testing.assert_allclose(update.step_size, 0.1 / 0.9, rtol=1e-5)
    assert after.num_components == 2


def test_away_from_one_component_alone_goes_towards():
    update, _, _ = run(Away(), two_parts([1.0, 0.0, 0.0, 0.0]))
    assert Away.kinds[update.kind] == "frank-wolfe"
    np.testing.assert_allclose(update.weights, [0.7, 0.0, 0.3, 0.0], atol=2e-4)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_adaptive_steps_satisfy_their_condition(proposal):
    """f(q_gamma) <= f(q) - gamma g + gamma^2 C / 2 with gamma = min(1, g / C), C the curvature it remembers."""
    rule, mixture = Adaptive(), before(proposal)
    update, _, curvature = run(rule, mixture, 4)
    problem = problem_of(mixture, rule.num_draws, 4)
    weights = problem.weights
    direction = (np.arange(4) == SLOT) - weights

    def slope(gamma):
        return direction @ problem.gradient(weights + gamma * direction)

    gap = -slope(0.0)
    gamma = np.clip(gap / float(curvature), 0, 1)
    np.testing.assert_allclose(update.step_size, gamma, rtol=1e-4, atol=1e-6)
    # The difference of f as the integral of its slope, which is what the gap is a slope of, draw by draw.
    difference = gamma * np.mean([slope(gamma * (n + 0.5) / 200) for n in range(200)])
    assert difference <= -gamma * gap + 0.5 * gamma**2 * float(curvature) + 1e-5
    np.testing.assert_allclose(update.weights, weights + gamma * direction, atol=1e-6)


def test_adaptive_remembers_a_curvature_that_is_there():
    """Also where the gap is below the noise of the draws: a huge C, once remembered, stops all later iterations.

    Backtracking ends at the latest at `growth` times the largest second derivative of f along the step, which is
    known by quadrature; another factor of two is for the draws.
    """
    mixture = normals([-2.0, 1.5, -1.9, 0.0], [0.5, 1.0, 0.5, 1.0], [0.29, 0.71, 0.0, 0.0])
    s = stats.norm(-1.9, 0.5).pdf(GRID)
    q = 0.29 * stats.norm(-2.0, 0.5).pdf(GRID) + 0.71 * stats.norm(1.5, 1.0).pdf(GRID)
    largest = max(integrate((s - q) ** 2 / (q + gamma * (s - q))) for gamma in np.linspace(0, 0.5, 11))
    rule = Adaptive()
    for seed in range(8):
        _, _, curvature = run(rule, mixture, seed)
        assert curvature <= 2 * rule.growth * largest


def test_adaptive_curvature_falls_when_it_can():
    """Memory shrinks by `shrink` and grows by powers of `growth`: nothing else."""
    rule = Adaptive()
    _, _, curvature = run(rule, before())
    power = np.log2(float(curvature) / rule.shrink)
    np.testing.assert_allclose(power, round(power), atol=1e-4)


def quadratic(weights, start, slope, inner):
    offset = weights - start
    return offset @ slope + 0.5 * np.einsum("...i,ij,...j", offset, inner, offset)


def brute_force(start, slope, inner):
    """The minimum over the simplex: of the stationary points of all faces, the best that is feasible."""
    num, best = len(start), np.inf
    for face in itertools.chain.from_iterable(itertools.combinations(range(num), k + 1) for k in range(num)):
        part = list(face)
        system = np.block([[inner[np.ix_(part, part)], np.ones((len(part), 1))], [np.ones((1, len(part))), 0.0]])
        right = np.append((inner @ start - slope)[part], 1.0)
        found = np.zeros(num)
        found[part] = np.linalg.lstsq(system, right, rcond=None)[0][:-1]
        if np.all(found >= -1e-12) and abs(found.sum() - 1) < 1e-9:
            best = min(best, quadratic(found, start, slope, inner))
    return best


def test_nearest_weights_are_the_minimum_of_all_faces():
    """Whatever the scales of the components: their norms differ by six orders of magnitude here."""
    generator, num = np.random.default_rng(4), 5
    for trial in range(8):
        scales = 10.0 ** generator.uniform(-3, 0, num)
        factor = generator.normal(size=(num, num + 2)) * scales[:, None]
        inner, start = factor @ factor.T, generator.dirichlet(np.ones(num - 1))
        start = np.append(start, 0.0)  # the proposal
        slope = generator.normal(size=num) * 10.0 ** generator.uniform(-6, 1)
        found = nearest_weights(start, slope, inner, np.ones(num, bool), 5000)
        np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-9)
        assert np.all(found >= 0)
        best = brute_force(start, slope, inner)
        assert quadratic(found, start, slope, inner) <= best + 1e-6 * abs(best), trial


@pytest.mark.parametrize("curvature", [0.3, 3.0, 1000.0])
def test_norm_corrective_weights_are_nearest_in_l2(curvature):
    """To the density after a gradient step, q - (log q - log p) / L, by quadrature over a grid of all weights."""
    mixture, start = before(), np.array([0.85, 0.15, 0.0, 0.0])
    gradient = exact_gradient(tuple(start))
    densities = np.stack([stats.norm(m, s).pdf(GRID) for m, s in ((1.2, 1.5), (3.0, 0.6), (-2.0, 0.5))])
    q = start[:3] @ densities
    stepped = q - (np.log(q) - TWO_MODES.log_density(GRID[:, None])) / curvature
    ticks = np.linspace(0, 1, 101)
    grid = np.array([(a, b, 1 - a - b) for a in ticks for b in ticks if a + b <= 1 + 1e-9])
    distances = [integrate(row) for row in (grid @ densities - stepped) ** 2]
    usable = np.array([True, True, True, False])
    inner = inner_products(mixture, usable)
    largest = stats.norm(0, np.sqrt(2) * 0.5).pdf(0)  # the norm of the narrowest, by which all were divided
    np.testing.assert_allclose(inner[2, 2], 1.0, rtol=1e-6)
    np.testing.assert_allclose(inner[0, 1] * largest, integrate(densities[0] * densities[1]), rtol=1e-5)
    np.testing.assert_array_equal(inner[3], 0.0)
    found = nearest_weights(start, gradient / (curvature * largest), inner, usable, 500)
    np.testing.assert_allclose(found[:3], grid[np.argmin(distances)], atol=0.02)
    assert found[3] == 0


def test_norm_corrective_moves_old_weights_too():
    """A component that only hurts gives up its weight, which a step towards the proposal alone would not do."""
    mixture = normals([1.2, 9.0, -2.0, 0.0], [1.5, 0.3, 0.5, 1.0], [0.6, 0.4, 0.0, 0.0])
    update, after, _ = run(NormCorrective(), mixture)
    assert update.weights[1] == 0 and after.num_components == 2
    assert kl_to(TWO_MODES, after) < kl_to(TWO_MODES, mixture)


def test_norm_corrective_needs_inner_products():
    NormCorrective().check(LocationScale())
    with pytest.raises(ValueError, match=r"inner products.*Laplace.*truncated_normal"):
        NormCorrective().check(LocationScale(Laplace()))

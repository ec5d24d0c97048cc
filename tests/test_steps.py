"""Step rules: one contract for all, and for each what it promises, against quadrature and closed forms."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from helpers import GRID, GRID_STEP, TWO_MODES, integrate, kl_to, log_density, mean_is, normals
from relbo.families import Laplace, LocationScale
from relbo.precondition import identity_map
from relbo.steps import (
    STEPS,
    Adaptive,
    Away,
    Fixed,
    FullyCorrective,
    LineSearch,
    NormCorrective,
    Pairwise,
    WeightProblem,
)
from relbo.steps.base import weight_problem
from relbo.steps.norm_corrective import inner_products, nearest_weights
from relbo.targets import from_log_density

SLOT = 2
PARTS = tuple(np.asarray(x, np.float32) for x in (TWO_MODES.weights, TWO_MODES.means, TWO_MODES.factors))


def two_modes(z, log_z, level, value):
    """The two modes; beyond `level` the log density is `value`. One function, so that all tests share programs."""
    return jnp.where(z[0] > level, value, log_density(z, *PARTS, log_z))


def target_of(log_z=TWO_MODES.log_z, level=np.inf, value=0.0):
    target = from_log_density(two_modes, np.zeros(1, np.float32), args=(log_z, level, value))
    return identity_map(target, "none")


TARGET = target_of()
PROPOSALS = {"good": (-2.0, 0.5), "useless": (8.0, 0.3), "a copy": (1.2, 1.5)}
every_step = pytest.mark.parametrize("name", STEPS)


def before(proposal="good", weights=(0.85, 0.15, 0.0, 0.0)):
    """Two components that miss the left mode, a proposal in slot 2, and an empty slot."""
    loc, scale = PROPOSALS[proposal]
    return normals([1.2, 3.0, loc, 5.0], [1.5, 0.6, scale, 1.0], weights)


@eqx.filter_jit
def update_of(rule, key, target, mixture, iteration):
    return rule.update(key, target, mixture, jnp.asarray(SLOT), iteration, rule.init(mixture.dtype))


@eqx.filter_jit
def problem_of(key, target, mixture, num_draws):
    return weight_problem(key, target, mixture, jnp.asarray(SLOT), num_draws)


def run(rule, mixture, key=None, target=TARGET, iteration=1):
    key = jax.random.key(0) if key is None else key
    update, memory = update_of(rule, key, target, mixture, jnp.asarray(iteration))
    return update, mixture.reweight(update.log_weights), memory


# The contract


@every_step
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_weights_are_weights(name, proposal):
    rule, mixture = STEPS[name], before(proposal)
    update, after, _ = run(rule, mixture)
    weights = np.exp(np.asarray(update.log_weights, float))
    assert not np.any(np.isnan(update.log_weights)) and np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-5)
    assert weights[3] == 0, "an empty slot stays empty"
    assert update.step_size >= 0 and 0 <= update.kind < len(rule.kinds) and update.num_nan == 0
    if rule.monotone and proposal == "good":
        assert kl_to(TWO_MODES, after) < kl_to(TWO_MODES, mixture)
    if rule.monotone:
        problem = problem_of(jax.random.key(0), TARGET, mixture, rule.num_draws)
        assert problem.value(jnp.asarray(weights, jnp.float32)) <= problem.value(jnp.exp(mixture.log_weights)) + 1e-5


@pytest.mark.parametrize("name", ["line_search", "adaptive", "pairwise"])
def test_a_useless_proposal_gets_nothing(name):
    update, _, _ = run(STEPS[name], before("useless"))
    assert update.step_size == 0 and update.log_weights[SLOT] == -np.inf
    np.testing.assert_allclose(np.exp(update.log_weights), [0.85, 0.15, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("log_z", [-60.0, 60.0])
@pytest.mark.parametrize("value", [np.nan, -np.inf], ids=["nan", "zero"])
@pytest.mark.parametrize("name", [name for name in STEPS if name != "fixed"])
def test_a_proposal_without_density_gets_nothing(name, value, log_z):
    """All its draws are broken, or outside the support: nothing is known in its favour, whatever log Z is."""
    target = target_of(log_z, 12.0, value)
    update, _, _ = run(STEPS[name], normals([0.0, 1.5, 30.0, 0.0], np.ones(4), [0.5, 0.5, 0.0, 0.0]), target=target)
    assert not np.any(np.isnan(update.log_weights))
    assert np.exp(update.log_weights[SLOT]) < 1e-5


@pytest.mark.parametrize("name", [name for name in STEPS if name != "fixed"])
def test_broken_draws_are_counted_and_those_of_zero_density_are_not(name):
    rule, mixture = STEPS[name], normals([0.0, 1.5, 2.0, 9.0], np.ones(4), [0.5, 0.5, 0.0, 0.0])
    draws = np.asarray(mixture.sample_stratified(jax.random.key(0), rule.num_draws))[:3, :, 0]
    for value, count in ((np.nan, np.sum(draws > 2.0)), (-np.inf, 0)):
        update, _, _ = run(rule, mixture, target=target_of(0.0, 2.0, value))
        np.testing.assert_allclose(np.exp(update.log_weights).sum(), 1.0, rtol=1e-5)
        assert update.num_nan == count


# The cached problem


def exact_problem(mixture, dtype=np.float64):
    """By quadrature instead of draws: every component has the grid, weighted by its density."""
    log_s = np.stack(
        [
            stats.norm(loc, np.exp(log_scale)).logpdf(GRID)
            for loc, log_scale in zip(mixture.params.loc[:, 0], mixture.params.scale[:, 0, 0], strict=True)
        ]
    )
    num = len(log_s)
    log_p = np.tile(TWO_MODES.log_density(GRID[:, None]), (num, 1))
    valid = np.exp(log_s) * GRID_STEP * 1e3  # the gradient divides by the sum
    usable = np.asarray(mixture.active.at[SLOT].set(True))
    shared = np.tile(log_s.T, (num, 1, 1))
    return WeightProblem(*(jnp.asarray(x, dtype) for x in (log_p, shared, valid)), jnp.asarray(usable))


def test_the_cached_problem_is_unbiased():
    """g_i = E_i[log q_w - log p], over replications, against quadrature; f is the weighted sum of them."""
    mixture, weights = before(), np.array([0.5, 0.2, 0.3, 0.0])
    keys = jax.random.split(jax.random.key(1), 400)

    @jax.jit
    def gradients(target):
        def one(key):
            problem = weight_problem(key, target, mixture, jnp.asarray(SLOT), 64)
            return problem.gradient(jnp.asarray(weights, jnp.float32)), problem.value(jnp.asarray(weights, jnp.float32))

        return jax.vmap(one)(keys)

    gradient, value = gradients(TARGET)
    with jax.enable_x64(True):
        exact = np.asarray(exact_problem(mixture).gradient(jnp.asarray(weights)))
    assert mean_is(gradient[:, :3], exact[:3])
    np.testing.assert_array_equal(gradient[:, 3], 0.0)
    assert mean_is(value, weights @ exact)
    kl = kl_to(TWO_MODES, mixture.reweight(jnp.log(jnp.asarray(weights, jnp.float32))))
    np.testing.assert_allclose(weights @ exact, kl - TWO_MODES.log_z, rtol=1e-4)


def test_mirror_descent_descends_at_every_step():
    """On exact gradients the unit step never rises, from any start: f is 1-smooth relative to the entropy."""
    with jax.enable_x64(True):
        problem = exact_problem(before())

        @jax.jit
        def descend(log_weights):
            def body(now, _):
                moved = now - problem.gradient(jnp.exp(now))
                moved = moved - jax.scipy.special.logsumexp(moved)
                return moved, problem.value(jnp.exp(now))

            return jax.lax.scan(body, log_weights, length=60)[1]

        starts = np.array([[0.4, 0.3, 0.3, 0.0], [0.998, 0.001, 0.001, 0.0], [1e-6, 1e-6, 1 - 2e-6, 0.0]])
        for start in starts:
            values = np.asarray(descend(jnp.log(start)))
            assert np.all(np.diff(values) <= 1e-12), np.diff(values).max()
            assert values[-1] < values[0] - 1e-3


# Each rule


@pytest.mark.parametrize("delta", [1.0, 0.5])
@pytest.mark.parametrize("iteration", [1, 2, 7])
def test_fixed_steps(iteration, delta):
    gamma = 2 / (delta * iteration + 2)
    mixture = before()
    update, _ = Fixed(delta=delta).update(
        jax.random.key(0), TARGET, mixture, jnp.asarray(SLOT), jnp.asarray(iteration), ()
    )
    np.testing.assert_allclose(update.step_size, gamma, rtol=1e-6)
    expected = [0.85 * (1 - gamma), 0.15 * (1 - gamma), gamma, 0.0]
    np.testing.assert_allclose(np.exp(update.log_weights), expected, rtol=1e-5)


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
    np.testing.assert_allclose(np.exp(update.log_weights), [0.7, 0.0, 0.3, 0.0], atol=2e-4)
    np.testing.assert_allclose(update.step_size, 0.3, atol=2e-4)
    assert kl_to(TWO_MODES, after) < 1e-6


def line_searches(target, mixture):
    """The steps of a hundred independent searches."""
    update = _line_searches(jax.random.split(jax.random.key(2), 100), target, mixture)
    return np.asarray(update.step_size, float)


@eqx.filter_jit
def _line_searches(keys, target, mixture):
    rule = LineSearch(num_draws=1024)
    return jax.vmap(lambda key: rule.update(key, target, mixture, jnp.asarray(SLOT), jnp.asarray(1), ())[0])(keys)


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
    gammas = line_searches(target_of(level=1.0, value=-np.inf), mixture)
    assert mean_is(gammas, best, rounding=0.0005 + 2 * gammas.var())


def test_fully_corrective_drops_a_useless_component():
    update, after, _ = run(FullyCorrective(), two_parts([0.6, 0.4, 0.0, 0.0]))
    assert update.log_weights[1] == -np.inf and update.log_weights[3] == -np.inf
    np.testing.assert_allclose(np.exp(update.log_weights), [0.7, 0.0, 0.3, 0.0], atol=2e-4)
    assert after.num_components == 2


def test_fully_corrective_is_mirror_descent():
    """One step by hand, on the same draws, from the weights that a step of 1 / (t + 1) would give."""
    mixture, key, iteration = before(), jax.random.key(3), 3
    rule = FullyCorrective(num_steps=1)
    update, _, _ = run(rule, mixture, key, iteration=iteration)
    problem = problem_of(key, TARGET, mixture, rule.num_draws)
    start = np.array([0.85 * 0.75, 0.15 * 0.75, 0.25, 0.0])
    moved = start * np.exp(-np.asarray(problem.gradient(jnp.asarray(start, jnp.float32)), float))
    np.testing.assert_allclose(np.exp(update.log_weights), moved / moved.sum(), rtol=1e-4)


@functools.cache
def exact_gradient(weights):
    with jax.enable_x64(True):
        return np.asarray(exact_problem(before()).gradient(jnp.asarray(weights)))


def test_pairwise_takes_from_the_worst_alone():
    weights = (0.85, 0.15, 0.0, 0.0)
    worst = int(np.argmax(exact_gradient(weights)[:2]))
    other = 1 - worst
    update, _, _ = run(Pairwise(), before(weights=weights))
    after = np.exp(np.asarray(update.log_weights, float))
    np.testing.assert_allclose(after[other], weights[other], rtol=1e-5)
    np.testing.assert_allclose(after[worst] + after[SLOT], weights[worst], rtol=1e-5)
    np.testing.assert_allclose(after[SLOT], update.step_size, rtol=1e-5)
    assert after[SLOT] > 0


def test_away_drops_a_component_that_only_hurts():
    """The worst component is far from all mass, the proposal no better: it is dropped, the rest share its weight."""
    mixture = normals([1.2, 9.0, 8.0, -2.0], [1.5, 0.3, 0.3, 0.6], [0.7, 0.1, 0.0, 0.2])
    update, after, _ = run(Away(), mixture)
    assert Away.kinds[int(update.kind)] == "away"
    assert update.log_weights[1] == -np.inf and update.log_weights[SLOT] == -np.inf
    np.testing.assert_allclose(np.exp(update.log_weights), [0.7 / 0.9, 0.0, 0.0, 0.2 / 0.9], rtol=1e-5)
    np.testing.assert_allclose(update.step_size, 0.1 / 0.9, rtol=1e-5)
    assert after.num_components == 2


def test_away_from_one_component_alone_goes_towards():
    update, _, _ = run(Away(), two_parts([1.0, 0.0, 0.0, 0.0]))
    assert Away.kinds[int(update.kind)] == "frank-wolfe"
    np.testing.assert_allclose(np.exp(update.log_weights), [0.7, 0.0, 0.3, 0.0], atol=2e-4)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_adaptive_steps_satisfy_their_condition(proposal):
    """f(q_gamma) <= f(q) - gamma g + gamma^2 C / 2 with gamma = min(1, g / C), C the curvature it remembers."""
    rule, mixture, key = Adaptive(), before(proposal), jax.random.key(4)
    update, _, curvature = run(rule, mixture, key)
    problem = problem_of(key, TARGET, mixture, rule.num_draws)
    weights = jnp.exp(mixture.log_weights)
    direction = jnp.zeros(4).at[SLOT].set(1.0) - weights
    slope = jax.jit(jax.vmap(lambda gamma: direction @ problem.gradient(weights + gamma * direction)))
    gap = -float(slope(jnp.zeros(1))[0])
    gamma = np.clip(gap / float(curvature), 0, 1)
    np.testing.assert_allclose(update.step_size, gamma, rtol=1e-4, atol=1e-6)
    # The difference of f as the integral of its slope, which is what the gap is a slope of, draw by draw.
    difference = gamma * np.mean(slope(jnp.asarray(gamma * (np.arange(200) + 0.5) / 200, jnp.float32)))
    assert difference <= -gamma * gap + 0.5 * gamma**2 * float(curvature) + 1e-5
    np.testing.assert_allclose(jnp.exp(update.log_weights), weights + gamma * direction, atol=1e-6)


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
        _, _, curvature = run(rule, mixture, jax.random.key(seed))
        assert curvature <= 2 * rule.growth * largest


def test_adaptive_curvature_falls_when_it_can():
    """Memory shrinks by `shrink` and grows by powers of `growth`: nothing else."""
    rule = Adaptive()
    _, _, curvature = run(rule, before())
    power = np.log2(float(curvature) / rule.shrink)
    np.testing.assert_allclose(power, round(power), atol=1e-4)


_nearest = jax.jit(nearest_weights, static_argnums=4)


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
    with jax.enable_x64(True):
        for trial in range(30):
            scales = 10.0 ** generator.uniform(-3, 0, num)
            factor = generator.normal(size=(num, num + 2)) * scales[:, None]
            inner, start = factor @ factor.T, generator.dirichlet(np.ones(num - 1))
            start = np.append(start, 0.0)  # the proposal
            slope = generator.normal(size=num) * 10.0 ** generator.uniform(-6, 1)
            found = np.asarray(_nearest(start, jnp.asarray(slope), jnp.asarray(inner), jnp.ones(num, bool), 5000))
            np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-9)
            assert np.all(found >= 0)
            best = brute_force(start, slope, inner)
            assert quadratic(found, start, slope, inner) <= best + 1e-6 * abs(best), trial


@pytest.mark.parametrize("curvature", [0.3, 3.0, 1000.0])
def test_norm_corrective_weights_are_nearest_in_l2(curvature):
    """To the density after a gradient step, q - (log q - log p) / L, by quadrature over a grid of all weights."""
    mixture, start = before(), np.array([0.85, 0.15, 0.0, 0.0])
    with jax.enable_x64(True):
        gradient = np.asarray(exact_problem(mixture).gradient(jnp.asarray(start)))
    densities = np.stack([stats.norm(m, s).pdf(GRID) for m, s in ((1.2, 1.5), (3.0, 0.6), (-2.0, 0.5))])
    q = start[:3] @ densities
    stepped = q - (np.log(q) - TWO_MODES.log_density(GRID[:, None])) / curvature
    ticks = np.linspace(0, 1, 101)
    grid = np.array([(a, b, 1 - a - b) for a in ticks for b in ticks if a + b <= 1 + 1e-9])
    distances = [integrate(row) for row in (grid @ densities - stepped) ** 2]
    usable = jnp.array([True, True, True, False])
    inner = jax.jit(inner_products)(mixture, usable)
    largest = stats.norm(0, np.sqrt(2) * 0.5).pdf(0)  # the norm of the narrowest, by which all were divided
    np.testing.assert_allclose(inner[2, 2], 1.0, rtol=1e-6)
    np.testing.assert_allclose(inner[0, 1] * largest, integrate(densities[0] * densities[1]), rtol=1e-5)
    np.testing.assert_array_equal(inner[3], 0.0)
    slope = jnp.asarray(gradient / (curvature * largest), jnp.float32)
    found = np.asarray(_nearest(jnp.asarray(start, jnp.float32), slope, inner, usable, 500))
    np.testing.assert_allclose(found[:3], grid[np.argmin(distances)], atol=0.02)
    assert found[3] == 0


def test_norm_corrective_moves_old_weights_too():
    """A component that only hurts gives up its weight, which a step towards the proposal alone would not do."""
    mixture = normals([1.2, 9.0, -2.0, 0.0], [1.5, 0.3, 0.5, 1.0], [0.6, 0.4, 0.0, 0.0])
    update, after, _ = run(NormCorrective(), mixture)
    assert update.log_weights[1] == -np.inf and after.num_components == 2
    assert kl_to(TWO_MODES, after) < kl_to(TWO_MODES, mixture)


def test_norm_corrective_needs_inner_products():
    NormCorrective().check(LocationScale())
    with pytest.raises(ValueError, match=r"inner products.*Laplace.*truncated_normal"):
        NormCorrective().check(LocationScale(Laplace()))

"""Pieces of the experiments figure1 and theory: quadrature, the exact oracle, the curvature constant, the bounds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from experiments import convergence, correcting, curvature, exact, failures, figure1, figure1_why
from experiments.hull import FAMILY, Hull, LatticeNormal, Problem, chi_square
from helpers import door_of
from relbo.ascent import Aim
from relbo.families import Diagonal, LocationScale
from relbo.mixture import empty_mixture

HULL = Hull.of(np.linspace(-1, 1, 7), np.array([0.9, 1.0]), 1, 301)
PLANE = Hull.of(np.linspace(-1, 1, 3), np.array([0.9, 1.0]), 2, 41)


def inside_problem(hull):
    """A target that is itself a mixture of three components of the hull."""
    weights = np.zeros(len(hull.locations))
    weights[[0, 5, len(weights) - 2]] = [0.3, 0.5, 0.2]
    return Problem(hull, np.log(weights @ hull.densities)), weights


def outside_problem(hull):
    setting = convergence.Setting("", convergence.skewed, hull)
    return setting.problem()


def some_weights(rng, num):
    return rng.dirichlet(np.full(num, 0.3))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def normals(weights, locations, scales, family=None):
    family = family or LocationScale(scale=Diagonal())
    locations, scales = jnp.asarray(locations, jnp.float32), jnp.asarray(scales, jnp.float32)
    mixture = empty_mixture(family, locations.shape[1], 8, jnp.float32)
    for slot, weight in enumerate(weights):
        mixture = mixture.place(slot, family.init(locations[slot], scales[slot]), math.log(weight))
    return mixture


def test_chi_square_is_the_integral():
    z = np.linspace(-20, 20, 40001)
    for loc, scale, other, other_scale in [(1.0, 1.0, -0.3, 0.9), (0.2, 0.5, 0.1, 0.8), (0.0, 1.3, 0.5, 1.0)]:
        s, r = (np.exp(-0.5 * ((z - m) / sd) ** 2) / sd / math.sqrt(2 * math.pi) for m, sd in
                [(loc, scale), (other, other_scale)])  # fmt: skip
        integral = np.trapezoid(s**2 / r, z) - 1
        np.testing.assert_allclose(chi_square([loc], [scale], [other], [other_scale]), integral, rtol=1e-6)
    assert chi_square([0.0], [1.5], [0.0], [1.0]) == math.inf
    both = (1 + chi_square([1.0], [1.0], [0.0], [0.9])) * (1 + chi_square([0.5], [0.9], [0.0], [1.0])) - 1
    np.testing.assert_allclose(chi_square([1.0, 0.5], [1.0, 0.9], [0.0, 0.0], [0.9, 1.0]), both)


@pytest.mark.parametrize("hull", [HULL, PLANE])
def test_no_curvature_exceeds_the_constant_and_one_pair_attains_it(hull, rng):
    problem, constant = outside_problem(hull) if hull.dim == 1 else inside_problem(hull)[0], hull.curvature()
    num = len(hull.locations)
    for _ in range(20):
        towards = np.eye(num)[rng.integers(num)]
        assert problem.path_curvature(some_weights(rng, num), towards) <= constant
    pairs = [(np.eye(num)[i], np.eye(num)[j]) for i in range(num) for j in range(num) if i != j]
    np.testing.assert_allclose(max(problem.path_curvature(*pair) for pair in pairs), constant, rtol=2e-3)


@pytest.mark.parametrize("hull", [HULL, PLANE])
def test_best_mixture_is_found_where_it_is_known(hull):
    problem, truth = inside_problem(hull)
    weights, gap = problem.best()
    assert gap < 1e-9
    assert -1e-12 < problem.value(weights) < 1e-9
    np.testing.assert_allclose(weights @ hull.densities, truth @ hull.densities, atol=1e-4)


def test_gradient_is_that_of_the_value(rng):
    problem, num = outside_problem(HULL), len(HULL.locations)
    weights, towards, step = some_weights(rng, num), some_weights(rng, num), 1e-5
    ahead, behind = (problem.value(weights + sign * step * (towards - weights)) for sign in (1, -1))
    expected = problem.gradient(weights) @ (towards - weights)
    np.testing.assert_allclose((ahead - behind) / (2 * step), expected, rtol=1e-6)


def test_the_gap_bounds_the_primal_error(rng):
    problem, num = outside_problem(HULL), len(HULL.locations)
    best, certified = problem.best()
    for _ in range(50):
        weights = some_weights(rng, num)
        assert problem.gap(weights) >= problem.value(weights) - problem.value(best)
    assert certified < 1e-9 < problem.value(best)


@pytest.mark.parametrize("delta", [1.0, 0.5])
def test_the_oracle_finds_what_brute_force_finds(delta, rng):
    problem = outside_problem(HULL)
    door = door_of(relbo.from_log_density(convergence.skewed, jnp.zeros(1)))
    oracle = HULL.oracle(delta)
    for seed in range(5):
        weights = np.zeros(len(HULL.locations))
        weights[rng.choice(len(weights), 3, replace=False)] = rng.dirichlet(np.ones(3))
        used = np.flatnonzero(weights)
        mixture = normals(weights[used], HULL.locations[used], HULL.scales[used], FAMILY)
        np.testing.assert_allclose(HULL.weights(mixture), weights, atol=1e-6)
        aim = Aim(mixture, relbo.RELBO(0.0), relbo.objectives.StickingTheLanding(), 1)
        found = oracle.propose(jax.random.key(seed), door, aim, None, None, 4)
        proposal = found.best
        gradient = problem.gradient(weights)
        gaps = weights @ gradient - gradient
        expected = np.argmin(np.where(gaps >= delta * gaps.max(), gaps, np.inf))
        np.testing.assert_allclose(proposal.loc, HULL.locations[expected], atol=1e-6)
        np.testing.assert_allclose(np.exp(proposal.scale), HULL.scales[expected], rtol=1e-6)


def test_a_mixture_of_other_components_is_refused():
    with pytest.raises(ValueError, match="not of this hull"):
        HULL.weights(normals([1.0], [[0.123]], [[0.8]], FAMILY))


@pytest.mark.parametrize("dim", [1, 2])
def test_lattice_draws_are_standard_normals(dim):
    draws = np.asarray(LatticeNormal().sample(jax.random.key(3), (), 4096, dim, jnp.float32), np.float64)
    np.testing.assert_allclose(draws.mean(0), 0, atol=5e-3)
    np.testing.assert_allclose(np.cov(draws.T).reshape(dim, dim), np.eye(dim), atol=1e-2)
    np.testing.assert_allclose(np.mean(draws > 1.0, axis=0), 0.158655, atol=2e-3)


@pytest.mark.parametrize("delta", [1.0, 0.5])
@pytest.mark.parametrize("rule", ["fixed", "line_search"])
def test_the_theorem_follows_from_its_induction(delta, rule):
    """With the curvature at its largest in every step, the bound of the steps made stays below the theorem's."""
    step = relbo.Fixed(delta=delta) if rule == "fixed" else relbo.LineSearch()
    variant = convergence.Variant("", step, delta)
    for constant, first in [(5.0, 0.1), (5.0, 9.0), (0.5, 2.0)]:
        own = np.array(convergence._own_bound(variant, first, [constant] * 100))
        theorem = convergence.theorem_bound(variant, first, constant, 100)
        assert np.all(own <= theorem * (1 + 1e-12))
        assert own[-1] > 0.05 * theorem[-1]  # and not by being empty


def test_slopes_are_those_of_power_laws(rng):
    errors = [1.0] + [3 * t**-1.5 for t in range(1, 40)]
    found = convergence.slope(errors, 5)
    np.testing.assert_allclose(found.value, -1.5)
    assert found.std_err < 1e-10
    noise = np.exp(0.1 * rng.normal(size=40))
    scores = [convergence.slope(list(np.array(errors) * np.exp(0.1 * rng.normal(size=40))), 5) for _ in range(200)]
    spread = np.std([score.value for score in scores])
    np.testing.assert_allclose(np.mean([score.std_err for score in scores]), spread, rtol=0.2)
    assert math.isnan(convergence.slope(list(1e-9 * noise), 5).value)


def test_kl_by_quadrature_is_the_closed_form():
    target = exact.normal_mixture([1.0], [[0.5, -1.0]], [[1.2, 0.7]])
    mixture = normals([1.0], [[0.0, -0.5]], [[0.8, 1.1]])
    ratio, shift = np.array([0.8, 1.1]) / [1.2, 0.7], np.array([0.5, -0.5]) / [1.2, 0.7]
    expected = np.sum(0.5 * (ratio**2 + shift**2 - 1) - np.log(ratio))
    np.testing.assert_allclose(exact.kl(mixture, target), expected, rtol=1e-5)


def test_kl_of_a_mixture_is_zero_at_the_target_and_right_far_from_it():
    target = exact.normal_mixture([0.4, 0.6], [-1.0, 1.0], [0.5, 0.5])
    same = normals([0.6, 0.4], [[1.0], [-1.0]], [[0.5], [0.5]])
    assert abs(exact.kl(same, target)) < 1e-5
    wide = normals([0.5, 0.5], [[0.0], [1.0]], [[50.0], [0.5]])  # no one grid serves both
    draws = np.asarray(wide.sample(jax.random.key(0), 20_000))
    log_q = jax.vmap(wide.log_prob)(draws)
    ratios = np.asarray(log_q - jax.vmap(target.log_density)(draws), np.float64)
    error = ratios.std() / math.sqrt(len(ratios))
    assert abs(exact.kl(wide, target) - ratios.mean()) < 4.5 * error  # one in 10^5


def test_a_fit_is_measured_iterate_by_iterate():
    spec = failures.TARGETS["two modes"]
    found = exact.fitted(spec, "fixed", 0, 2, np.linspace(-6, 6, 601))
    assert [len(found[name]) for name in ("kl", "gap", "components", "seconds")] == [3, 3, 3, 3]
    np.testing.assert_allclose(np.sum(found["density"]) * 0.02, 1, atol=1e-3)
    own, std_err = np.array(found["own_kl"]), np.array(found["own_std_err"])
    assert np.all(np.abs(own - found["kl"]) < 5 * std_err + 1e-5)  # the fit's own estimate, at 6e-7 each


@pytest.mark.parametrize("ratio", [1.2, 1.5, 1.9])
def test_the_curvature_has_its_limit_where_the_chi_square_is_finite(ratio):
    found = curvature.curve(ratio, (0, 3, 6, 12, 15))
    np.testing.assert_allclose(found["limit"], chi_square([0.0], [math.sqrt(ratio)], [0.0], [1.0]))
    np.testing.assert_allclose(found["value"][-1], found["limit"], rtol=0.02)
    assert found["limit_of_the_proof"] < 0.1 * found["limit"]


@pytest.mark.parametrize("ratio", [2.5, 4.0])
def test_the_curvature_grows_without_bound_beyond_twice_the_variance(ratio):
    found = curvature.curve(ratio, (3, 6, 9, 12, 15))
    assert np.all(np.diff(found["value"]) > 0) and found["limit"] == math.inf
    np.testing.assert_allclose(found["exponent"], found["exponent_expected"], atol=0.03)  # up to a logarithm


def test_the_divergence_of_a_whole_step_is_the_closed_form():
    """At gamma = 1 it is KL(s || q) of two normals."""
    np.testing.assert_allclose(curvature.divergence(3.0, 1.0), 0.5 * (3 - 1 - math.log(3)), rtol=1e-6)
    z = np.linspace(-30, 30, 200_001)
    s, q = (np.exp(-0.5 * z**2 / r) / math.sqrt(2 * math.pi * r) for r in (2.5, 1.0))
    np.testing.assert_allclose(curvature.squared_distance(2.5), np.sum((s - q) ** 2) * (z[1] - z[0]), rtol=1e-6)


def test_the_median_seed_is_shown_not_the_luckiest():
    fits = [{"system": "fixed", "change": "", "seed": seed, "kl": [1.0, kl]} for seed, kl in enumerate((0.3, 0.1, 0.2))]
    assert figure1.median_fit(fits, "fixed")["kl"][-1] == 0.2


def test_what_is_read_from_a_fit():
    fit = {"kl": [0.2, 0.2, 0.1], "gap": [None, 0.5, 0.3], "gap_std_err": [None, 0.1, 0.05]}
    np.testing.assert_array_equal(failures.gap_points(fit), [[0.2, 0.5, 0.1], [0.2, 0.3, 0.05]])
    assert failures.num_stuck([0.2, 0.2, 0.195, 0.1]) == 2
    assert failures.num_stuck([0.2, 0.1]) == 0
    assert failures.num_stuck([0.2, 0.2, 0.3]) == 2


def test_symmetric_modes_hold_the_relbo_in_the_middle_and_not_the_finite_step():
    places = np.linspace(-2, 2, 41)
    found = failures.profiles(places)
    np.testing.assert_allclose(found["RELBO"], found["RELBO"][::-1], atol=1e-9)
    assert places[np.argmax(found["RELBO"])] == pytest.approx(0)
    assert 0.8 < abs(places[np.argmax(found["finite step"])]) < 1.4


def test_warm_seconds_leave_out_what_compiles_and_what_polishes():
    result = {
        "system": "fixed",
        "change": "",
        "seconds": [9.0, 8.0, 0.1, 0.2, 5.0],
        "kind": ["first", "a", "a", "a", "polish"],
    }
    np.testing.assert_array_equal(figure1._warm_seconds([result], "fixed"), [0.1, 0.2])


SPEC = ((0.4, 0.6), (-1.0, 1.0), (0.5, 0.5))


def crowded():
    """Weights far from right on the target's components and on a third one between them."""
    return normals([0.5, 0.2, 0.3], [[-1.0], [1.0], [0.0]], [[0.5], [0.5], [1.1]])


def test_the_best_weights_of_the_targets_own_components_are_its_own():
    mixture = crowded()
    least, gap = correcting.corrected(SPEC, mixture)
    assert gap < 1e-8 and abs(least) < 1e-6
    own = exact.kl(mixture, exact.normal_mixture(*SPEC))
    used = np.flatnonzero(np.asarray(mixture.log_weights) > -np.inf)
    problem = correcting.problem_of(SPEC, *correcting.spread_of(mixture, used))
    np.testing.assert_allclose(problem.value(np.exp(np.asarray(mixture.log_weights, float))[used]), own, atol=1e-6)


@pytest.mark.parametrize("every", [False, True])
def test_steps_by_quadrature_are_the_best_of_their_kind(every):
    """The proposal is the second component; what is sought is found among many weights tried."""
    mixture = crowded()
    weights = np.exp(np.asarray(mixture.log_weights, float))
    weights[1] = 0.0
    weights /= weights.sum()
    step = correcting.ByQuadrature(SPEC, every)

    class Cached:
        pass

    cached = Cached()
    cached.weights = weights
    found, _ = step.update(cached, mixture, np.array([1]), 1, ())
    problem = correcting.problem_of(SPEC, *correcting.spread_of(mixture, np.arange(3)))
    if every:
        np.testing.assert_allclose(found.weights[:3], [0.4, 0.6, 0.0], atol=1e-4)
        return
    corner = np.array([0.0, 1.0, 0.0])
    tried = [weights[:3] + gamma * (corner - weights[:3]) for gamma in np.linspace(0, 1, 201)]
    assert problem.value(found.weights[:3]) <= min(map(problem.value, tried)) + 1e-9
    np.testing.assert_allclose(found.weights[0] / found.weights[2], 0.5 / 0.3, rtol=1e-5)


def test_the_line_search_of_the_authors_script_moves_a_little_from_the_open_loop_step():
    class Sloped:
        """KL grows, or falls, towards the proposal everywhere: the slope is that number."""

        weights = np.array([1.0, 0.0])

        def __init__(self, slope):
            self.slope = slope

        def gradient(self, weights):
            return np.array([0.0, self.slope])

    moved = 0.1 * sum(1 / number for number in range(1, 11))
    for slope in (0.2, -0.2):
        found, _ = correcting.ShortSearch().update(Sloped(slope), None, np.array([1]), 3, ())
        np.testing.assert_allclose(found.step_size, 2 / 5 - slope * moved)
    assert correcting.ShortSearch().update(Sloped(50.0), None, np.array([1]), 3, ())[0].step_size == 0.0


def test_what_is_changed_of_a_variant_is_what_is_said():
    parts = {
        exact.QUADRATURE: {"step"},
        exact.KEPT: {"step"},
        exact.FINITE: {"objective"},
        exact.SCRIPT: {"oracle"},
        exact.GROWING: {"objective"},
    }
    assert set(parts) == set(figure1_why.RUN) == set(figure1_why.CHANGES)
    for change, (_, systems) in figure1_why.RUN.items():
        for system in systems:
            plain, changed = relbo.paper(system), exact.changed(SPEC, system, change)
            more = {"step"} if (change, system) == (exact.SCRIPT, "line_search") else set()
            assert {name for name in plain if plain[name] != changed[name]} == parts[change] | more, (change, system)

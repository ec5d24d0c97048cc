"""Diagnosis: the numbers are right, k-hat is ArviZ's, the verdict is about what is at stake, rules read the trace."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import relbo
from helpers import TWO_MODES, Known, mean_is, target_of, two_modes_posterior, within
from relbo.diagnostics import Measurements, diagnosis_of, modes_of, psis
from relbo.diagnostics.defensive import Heavy, Heights, uncovered
from relbo.diagnostics.estimates import balanced, weigh, worth
from relbo.diagnostics.parameters import named_columns
from relbo.diagnostics.psis import tail_stake
from relbo.records.estimate import Estimate, format_estimate
from relbo.records.outcome import Stop

FAR_MODES = Known(np.array([0.3, 0.7]), np.array([[-9.0], [8.0]]), np.array([[[0.5]], [[1.0]]]), 1.7)
"""Of the same shapes as TWO_MODES: both share compiled programs."""


@pytest.fixture(scope="module")
def posterior():
    return two_modes_posterior()


@pytest.fixture(scope="module")
def one_component():
    return relbo.fit(target_of("two_modes"), max_components=1, progress_bar=False)


def test_diagnose_measures_the_known_truth(posterior):
    found = relbo.diagnose(posterior, num_draws=4000, seed=5)
    assert within(found.log_z.value, found.log_z.std_err, TWO_MODES.log_z, rounding=1e-5)
    assert found.log_z_bound == found.elbo and found.elbo.value <= found.log_z.value + 1e-4
    # k-hat knows the shape of the ratios' tail and not their size: of a fit as good as this one it says little.
    assert math.isfinite(found.k_hat)
    assert found.status == "good" and found.verdict.startswith("Good")
    assert 0.9 * 4000 < found.ess <= 4000.5
    assert len(found.modes) == 2 and within(found.modes, 0.0, [0.7, 0.3], rounding=0.02)
    text = str(found)
    assert "ELBO" in text and "k-hat" in text and "+-" in text and found.verdict in text
    assert relbo.diagnose(posterior, num_draws=4000, seed=5) == found


def test_one_component_for_two_modes_has_not_converged(one_component):
    found = relbo.diagnose(one_component, num_draws=4000)
    assert found.status == "not converged" and found.verdict.startswith("Not converged: add components")
    assert within(found.log_z.value, found.log_z.std_err, TWO_MODES.log_z)
    (check,) = found.parameters
    assert check.name == "z[0]" and set(found.k_hats) == {"z[0]"}


def test_a_missed_mode_is_found_and_weighed():
    posterior = relbo.fit(FAR_MODES.target(), max_components=1, progress_bar=False)
    assert len(modes_of(posterior)) == 1
    found = relbo.diagnose(posterior, num_draws=4000)
    missed = 0.3 if posterior.locations[0, 0] > 0 else 0.7
    assert found.status == "not converged" and "modes that the mixture lacks" in found.verdict
    assert within(found.missed_mass.value, found.missed_mass.std_err, missed, rounding=0.01)
    assert within(found.log_z.value, found.log_z.std_err, FAR_MODES.log_z)
    assert found.gap.value > 20
    mended = relbo.resample(posterior, 2000)
    right = np.asarray(mended)[:, 0] > 0
    assert abs(right.mean() - 0.7) < 4 * math.sqrt(0.21 / found.defensive.ess) + 4 * math.sqrt(0.21 / 2000)


def test_resampling_mends_a_mixture(one_component):
    draws = np.asarray(relbo.resample(one_component, 2000, seed=3))
    assert draws.shape == (2000, 1)
    share = (draws[:, 0] < -0.8).mean()
    truth = float(0.3 * stats.norm.cdf(-0.8, -2.0, 0.5) + 0.7 * stats.norm.cdf(-0.8, 1.5, 1.0))
    raw = (np.asarray(one_component.sample(2000, seed=3))[:, 0] < -0.8).mean()
    error = math.sqrt(2 * truth * (1 - truth) / 2000)  # of the weights, and of choosing by them
    assert abs(share - truth) < 4 * error < abs(raw - truth)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        relbo.resample(one_component, 0)


def test_too_few_draws_are_refused(posterior):
    with pytest.raises(ValueError, match="num_draws must be at least 100, got 10"):
        relbo.diagnose(posterior, num_draws=10)


# Numbers from plain arrays: no device, no mixture


STALLED = Stop("stalled", "the last 5 iterations did not improve the ELBO")


def measured(log_p, scale=1.0, num=8000, **changes) -> Measurements:
    """What `measure` would see of q = N(0, scale^2) for a density on the line given by its logarithm."""
    rng = np.random.default_rng(7)
    z = np.concatenate([scale * rng.standard_normal(num), scale * rng.standard_t(2, num // 4)])
    log_q, log_t = stats.norm.logpdf(z, 0, scale), stats.t.logpdf(z, 2, 0, scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = log_p(z) - log_q
    values = {
        "log_ratio": log_ratio, "log_heavy": log_t - log_q, "at_new_mode": np.zeros(len(z), bool), "num_own": num,
        "names": ("x",), "values": z[:, None], "gap": relbo.Estimate(0.0, 0.01, 100), "certifies": "", "modes": (1.0,),
        "num_components": 1, "irreproducible": 0.0, "decay": 9.0, "trace": (),
        "stop": STALLED,
    }  # fmt: skip
    return Measurements(**(values | changes))


def student_3(z):
    return stats.t.logpdf(z, 3)


def test_where_p_is_proportional_to_q_everything_is_exact():
    found = diagnosis_of(measured(lambda z: stats.norm.logpdf(z) + 2.5))
    assert abs(found.log_z.value - 2.5) < 1e-9 and found.log_z.std_err < 1e-9
    assert abs(found.kl.value) < 1e-9 and found.misplaced < 0.005  # the tail of the weights is smoothed
    assert found.status == "good"


def test_k_hat_is_not_held_against_a_fit_with_nothing_at_stake():
    """Ratios of 1 +- 1e-4 with a tail of infinite variance: k-hat above one, and no harm."""

    def nearly(z):
        return stats.norm.logpdf(z) + 1e-5 / np.maximum(np.abs(z - 0.3), 1e-6) ** 0.9

    seen = measured(nearly)
    found = diagnosis_of(seen)
    assert found.k_hat > found.k_hat_limit and found.defensive.stake < 0.01
    assert found.status == "good" and "k-hat" in found.verdict


def test_missing_tails_are_seen_and_mended():
    found = diagnosis_of(measured(student_3))
    assert found.status == "resample" and "importance resampling" in found.verdict
    assert within(found.log_z.value, found.log_z.std_err, 0.0)
    assert found.defensive.needed and found.defensive.reliable
    (check,) = found.parameters
    assert check.log_sd_error.value < -0.3  # the sd is 1.73, not 1
    assert "sd of x" in str(found)


def test_tails_that_weights_cannot_mend():
    """Without defensive draws a normal cannot mend a student-t."""
    seen = measured(student_3)
    alone = dataclasses.replace(
        seen,
        **{name: getattr(seen, name)[: seen.num_own] for name in ("log_ratio", "log_heavy", "at_new_mode", "values")},
    )
    found = diagnosis_of(alone)
    assert found.status == "tails" and found.verdict.startswith("Do not trust the tails")
    assert "not reliable" in str(found)


def test_a_large_kl_after_a_budget_is_not_converged():
    def two(z):
        return np.logaddexp(stats.norm.logpdf(z, -2, 0.5), stats.norm.logpdf(z, 1, 0.4)) - math.log(2)

    seen = measured(two, scale=1.5, stop=Stop("budget", "2 components were reached, the most allowed", "components"))
    assert diagnosis_of(seen).status == "not converged"
    # By itself the same fit came to an end: its weights are what is left.
    assert diagnosis_of(dataclasses.replace(seen, stop=STALLED)).status == "resample"


def test_a_large_kl_is_mended_only_by_weights_that_have_a_variance():
    """A regularised horseshoe: 0.43 nats by such weights, and 0.75 in truth."""
    seen = diagnosis_of(measured(student_3))
    large = dataclasses.replace(seen, kl=Estimate(0.43, 0.01, 12_500))

    def with_k_hat(value):
        return dataclasses.replace(large, defensive=dataclasses.replace(large.defensive, k_hat=value))

    assert with_k_hat(0.6).defensive.reliable and with_k_hat(0.6).status == "not converged"
    assert with_k_hat(0.3).status == "resample"


def test_a_broken_model_is_named():
    normal = stats.norm.logpdf
    nan = diagnosis_of(measured(lambda z: np.where(z > 1, np.nan, normal(z))))
    assert nan.status == "model" and "NaN" in nan.verdict and nan.num_nan == nan.rejected
    zero = diagnosis_of(measured(lambda z: np.where(z > -1.5, -np.inf, normal(z))))
    assert zero.status == "model" and "outside its support" in zero.verdict and zero.num_zero > 0
    random = diagnosis_of(measured(normal, irreproducible=0.3))
    assert random.status == "model" and "random" in random.verdict
    improper = diagnosis_of(measured(normal, decay=0.8))
    assert improper.status == "model" and "improper" in improper.verdict
    nothing = diagnosis_of(measured(lambda z: np.full_like(z, np.nan)))
    assert nothing.status == "model" and nothing.num_nan == nothing.num_draws and str(nothing)


def test_one_infinite_draw_is_a_broken_model():
    """Whatever its share of the draws."""
    assert diagnosis_of(measured(stats.norm.logpdf)).status == "good"
    assert diagnosis_of(measured(stats.norm.logpdf, num_infinite=1)).status == "model"


def test_a_gap_that_says_nothing_is_said_in_words():
    """Of 2305 nats beside a KL of nearly zero a reader cannot tell what to believe."""
    loose = diagnosis_of(measured(stats.norm.logpdf, gap=relbo.Estimate(2305.0, 30.0, 100)))
    assert "not usable: it bounds log Z - ELBO from above" in str(loose) and "The gap " not in str(loose)
    none = diagnosis_of(measured(stats.norm.logpdf, gap=relbo.Estimate(-3.0, 0.1, 100)))
    assert "the oracle found nothing to add (-3.00 +- 0.10)" in str(none)
    tight = diagnosis_of(measured(student_3, gap=relbo.Estimate(0.01, 0.01, 100), certifies="bounds"))
    assert tight.gap_problem is None and "The gap bounds." in str(tight)


def test_nan_is_not_zero_density():
    seen = measured(lambda z: np.where(z > 2.6, np.nan, stats.norm.logpdf(z)))
    found = worth(seen.log_ratio, seen.log_heavy, seen.num_own)
    kept = ~np.isnan(seen.log_ratio)
    assert found.elbo.num_draws == kept[: seen.num_own].sum()
    assert abs(found.elbo.value) < 1e-12  # those that are left are right; as zeros they would cost log c


def test_the_balance_heuristic():
    seen = measured(student_3)
    log_weight = balanced(seen.log_ratio, seen.log_heavy, seen.num_own)
    z = seen.values[:, 0]
    mixed = np.log(0.8 * stats.norm.pdf(z) + 0.2 * stats.t.pdf(z, 2))
    np.testing.assert_allclose(log_weight, student_3(z) - mixed, atol=1e-9)
    assert weigh(log_weight).reliable and not weigh(seen.log_ratio[: seen.num_own]).reliable


def test_stake_is_the_size_of_the_tail():
    rng = np.random.default_rng(0)
    assert tail_stake(1e-3 * rng.standard_t(1, 5000).clip(-5, 5)) < 1e-3
    assert tail_stake(3.0 * rng.standard_normal(5000)) > 0.3


def test_names_of_scalars():
    names, columns = named_columns({"a": np.arange(3.0), "b": np.arange(12.0).reshape(3, 2, 2)})
    assert names == ["a", "b[0,0]", "b[0,1]", "b[1,0]", "b[1,1]"]
    assert columns.shape == (3, 5) and columns[2, 4] == 11.0


def test_new_modes_are_high_apart_and_across_a_valley():
    """Five members: covered; a tail; a mode; the same mode again; one of no mass."""
    seen = Heights(
        log_p=np.array([0.0, -4.0, -1.0, -1.0, -30.0]),
        log_q=np.array([0.0, -20.0, -50.0, -50.0, -90.0]),
        log_peak=np.full(5, -0.9),
        cross=np.where(np.abs(np.subtract.outer([0, 9, 20, 20, 40], [0, 9, 20, 20, 40])) < 1, -0.9, -99.0),
        valley=np.array([0.0, -4.0, -30.0, -30.0, -60.0]),
    )
    assert uncovered(seen, 0.5).tolist() == [2]


@pytest.mark.parametrize("dim", [1, 6])
@pytest.mark.parametrize("place", ["device", "host"])
def test_heavy_noise_has_the_density_it_says(dim, place):
    """Importance sampling of a wide normal from it: the mean ratio is one, and so is that of a draw's square."""
    if place == "host":
        points = jnp.asarray(Heavy().on_host(np.random.default_rng(0), (4, 10_000, dim), np.float32).reshape(-1, dim))
    else:
        points = Heavy().sample(jax.random.key(0), (), 40_000, dim, jnp.float32)
    log_t = jax.vmap(lambda x: Heavy().log_prob((), x))(points)
    log_p = jax.scipy.stats.norm.logpdf(points, 0.2, 1.1).sum(axis=1)
    ratio = np.exp(np.asarray(log_p - log_t, np.float64))
    assert mean_is(ratio, 1.0)
    assert mean_is(ratio * np.asarray(points[:, 0]), 0.2)
    assert ratio.max() < 2.5 * dim * 2.8  # bounded: at most d / (1/2) times normal over student-t


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_k_hat_is_that_of_arviz(scale):
    import arviz

    log_ratios = np.random.default_rng(1).standard_normal(3000) ** 2 * scale
    weights, k_hat = psis(log_ratios)
    their_weights, their_k_hat = arviz.psislw(log_ratios.copy())
    assert abs(k_hat - float(their_k_hat)) < 1e-9
    np.testing.assert_allclose(weights, their_weights, rtol=1e-9)


def record(improvement, gap, accepted=True, std_err=1e-4, **changes):
    estimate = relbo.Estimate
    values = {
        "iteration": 1, "kind": "fully-corrective", "accepted": accepted, "num_components": 2,
        "weights": np.array([0.5, 0.5]), "step_size": 0.5, "elbo": estimate(0.0, 0.1, 10),
        "improvement": estimate(improvement, std_err, 10), "gap": estimate(gap, std_err, 10), "objective": None,
        "seconds": 1.0, "evaluations": 100, "num_nan": 0, "num_zero": 0, "nan_fraction": 0.0,
    }  # fmt: skip
    return relbo.Record(**(values | changes))


def test_gap_below_needs_two_in_a_row_and_no_progress():
    rule, small, large = relbo.GapBelow(0.01), record(0.0, 0.001), record(0.0, 0.5)
    assert rule.reason([small]) is None
    assert rule.reason([small, large]) is None
    assert rule.reason([large, small, small]) is not None
    noisy = record(0.0, 0.001, std_err=0.1)
    assert rule.reason([small, noisy]) is None
    assert rule.reason([small, record(0.2, -0.01)]) is None


def test_stalled_is_a_paired_test():
    rule = relbo.Stalled(patience=3, min_improvement=1e-3)
    assert rule.reason([record(0.1, 1.0)] * 3) is None
    assert rule.reason([record(0.1, 1.0, std_err=0.5)] * 3) is not None
    assert rule.reason([record(1e-4, 1.0, std_err=1e-6)] * 3) is not None
    assert rule.reason([record(-0.1, 1.0, accepted=False)] * 3) is not None
    assert rule.reason([record(0.0, 1.0)] * 2) is None


def test_near_asks_for_less_where_many_components_share_the_draws():
    rule = relbo.Near(0.005)
    spread = math.sqrt(2 * 0.003)
    assert rule.reason([record(0.001, 0.0, spread=spread)]) is not None
    assert rule.reason([record(0.1, 0.0, spread=spread)]) is None  # what gained so much is not at its end
    assert rule.reason([record(0.001, 0.0, spread=spread, num_components=20)]) is None
    assert rule.reason([record(0.001, 0.0, spread=0.04, num_components=20)]) is not None
    assert rule.reason([record(0.001, 0.0, spread=spread, several_modes=True)]) is None


def test_budgets():
    records = [record(0.1, 1.0)] * 3
    assert relbo.MaxSeconds(4.0).reason(records) is None and relbo.MaxSeconds(3.0).reason(records) is not None
    assert relbo.MaxEvaluations(400).reason(records) is None and relbo.MaxEvaluations(300).reason(records) is not None
    assert relbo.MaxComponents(3).reason(records) is None and relbo.MaxComponents(2).reason(records) is not None
    with pytest.raises(ValueError, match="at least 1, got 0"):
        relbo.MaxComponents(0)


def test_estimates_are_rounded_as_a_person_would():
    assert format_estimate(-77.98312, 0.0123) == "-77.983 +- 0.012"
    assert format_estimate(1234.5, 20.0) == "1234 +- 20"
    assert format_estimate(math.nan, 1.0) == "nan +- 1"


def likelihood_of_many(z, rows):
    return -0.5 * jnp.sum((z - 0.01 * rows[:, None]) ** 2)


def test_a_model_with_many_data_is_judged_by_fewer_draws():
    """Its fit takes a few thousand evaluations, each of which is dear; any other model gets ten thousand draws."""
    rows = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    many = relbo.fit(relbo.from_log_density(likelihood_of_many, np.zeros(2), args=(rows,)), progress_bar=False)
    few = relbo.fit(relbo.from_log_density(likelihood_of_many, np.zeros(2), args=(rows[:50],)), progress_bar=False)
    assert many.num_evaluations < 10_000 and few.num_evaluations < 10_000
    assert relbo.diagnose(many).num_draws == max(1000, many.num_evaluations // 4)
    assert relbo.diagnose(few).num_draws == 10_000

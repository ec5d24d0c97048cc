"""The verdict: five possible ones, decided by what is at stake, with the reason and the next move.

The rules, in order; the first that holds decides.

1. *The model itself has a problem*: draws with an infinite or NaN log density, nearly all of the mixture outside the
   support, a log density that is not reproducible, or a density that falls too slowly to have an integral.
2. *Not converged*, a mode is missing: a fresh search found mass where the mixture has none.
3. *Good*: by reliable weights, KL(q || p) is small, no parameter's mean or standard deviation is visibly off, and
   k-hat of the mixture's own draws is below its limit, or of a tail too small to matter.
4. *Not converged*: KL is large (more than tails are wrong), and the fit was stopped early, or the gap says that more
   components pay, or the weights cannot mend it: they are not reliable, or their variance is not finite.
5. *Usable after importance resampling*: the weights are reliable.
6. *Do not trust the tails*: KL is small, and the weights are not reliable.
"""

from typing import TYPE_CHECKING

from relbo.diagnostics.estimates import NEGLIGIBLE_ERROR

if TYPE_CHECKING:
    from relbo.diagnostics.diagnosis import Diagnosis
    from relbo.records.estimate import Estimate

WORDS = {
    "good": "Good",
    "resample": "Usable after importance resampling",
    "tails": "Do not trust the tails",
    "not converged": "Not converged: add components",
    "model": "The model itself has a problem",
}

MOST_NAN = 0.01  # of the draws: what was left out there could be a part of the posterior
MOST_ZERO = 0.9
"""Of the mixture, outside the support: `sample` rejects what is there, and what is left can be judged as any other."""
LEAST_MISSED = 0.02  # of the mass: what a flow may lack, too
GOOD_KL = 0.1
"""Nats. By Pinsker no probability is off by more than 0.22, and an error spread over many parameters is far smaller in
each; what single parameters may be off is bounded apart."""
LARGE_KL = 0.2
"""Nats. A normal fitted to a Cauchy law, whose only fault is its tails, is 0.18 away."""
FINITE_VARIANCE = 0.5
"""Of k-hat, below which weights have a variance. Where KL is large, others may have missed a part of the posterior: of
a regularised horseshoe, 0.43 nats away by weights of k-hat 0.60 and 0.75 in truth, resampled draws of a long tail were
too narrow by a fifth."""
LARGE_GAIN = 0.05  # nats an iteration, half of `GOOD_KL`: the fit was under way
GOOD_MOMENT = 0.1
"""Of a standard deviation, for a mean; relative, for a standard deviation."""


def judge(diagnosis: "Diagnosis") -> tuple[str, str]:
    """The status, one of the keys of WORDS, and the sentence."""
    for status, rule in _RULES:
        reason = rule(diagnosis)
        if reason is not None:
            words = WORDS[status]
            joint = "; " if ":" in words else ": "
            return status, f"{words}{joint}{reason}"
    return "tails", f"{WORDS['tails']}: {_tails_reason(diagnosis)}"


def low(estimate: "Estimate") -> float:
    return float(estimate.value - 2 * estimate.std_err)


def high(estimate: "Estimate") -> float:
    return float(estimate.value + 2 * estimate.std_err)


def _model(diagnosis: "Diagnosis") -> str | None:
    if diagnosis.stop.kind == "failed" and diagnosis.stop.limit != "memory":
        return f"the fit ended early, {diagnosis.stop_reason}. Mend that, and continue with start=."
    nan, zero = diagnosis.num_nan / diagnosis.num_draws, diagnosis.num_zero / diagnosis.num_draws
    if diagnosis.num_infinite:
        return (
            f"its log density is +inf at {diagnosis.num_infinite} of {diagnosis.num_draws} draws, and what is infinite "
            "has no posterior. Look there for a scale of zero, log(0) or a division by zero."
        )
    if nan > MOST_NAN:
        return f"{_percent(nan)} of the draws have a NaN log density. Look at the model there, for overflow or log(0)."
    if diagnosis.irreproducible > 0:
        return (
            f"its log density is random: twice at the same point it differs by up to {diagnosis.irreproducible:.2g}. "
            "Fix the randomness (a seed, the number of particles)."
        )
    if zero > MOST_ZERO:
        return (
            f"{_percent(zero)} of the mixture lies outside its support. Declare the supports of the parameters, so "
            "that no draw can."
        )
    if diagnosis.decay < 1:
        return (
            f"it is improper: along a line its density falls only as r^-{max(diagnosis.decay, 0):.1f}, which has no "
            "finite integral. Give the parameters proper priors."
        )
    return None


def _missed(diagnosis: "Diagnosis") -> str | None:
    if low(diagnosis.missed_mass) < LEAST_MISSED:
        return None
    return (
        "a fresh search found modes that the mixture lacks, with "
        f"{_percent(float(diagnosis.missed_mass.value))} of the mass. {_to_go_on(diagnosis)} It begins at the modes "
        "that such a search finds."
    )


def _to_go_on(diagnosis: "Diagnosis") -> str:
    """How to continue, by what ended the fit."""
    if diagnosis.stop.limit == "components":
        return "Continue with fit(target, start=posterior) and a larger max_components."
    if diagnosis.stop.kind == "budget":
        return "Continue with fit(target, start=posterior) and a larger budget."
    return "Continue with fit(target, start=posterior)."


def _good(diagnosis: "Diagnosis") -> str | None:
    if not diagnosis.defensive.reliable or high(diagnosis.kl) > GOOD_KL or wrong_parameters(diagnosis):
        return None
    if not diagnosis.k_hat < diagnosis.k_hat_limit:
        if diagnosis.tail_error > NEGLIGIBLE_ERROR:
            return None
        return (
            f"the mixture is within {_nats(diagnosis.kl)} of the posterior. k-hat is {diagnosis.k_hat:.2g}, but of a "
            "tail that is too small to matter."
        )
    return f"the mixture is within {_nats(diagnosis.kl)} of the posterior; its draws can be used as they are."


def _not_converged(diagnosis: "Diagnosis") -> str | None:
    # Unreliable weights may have seen only a part of log Z; what a component can gain is known without them.
    if low(diagnosis.kl) < LARGE_KL and (diagnosis.defensive.reliable or low(diagnosis.gap) < LARGE_KL):
        return None
    if diagnosis.stopped_early or max(low(diagnosis.gap), diagnosis.last_gain) > LARGE_GAIN:
        return (
            f"log Z - ELBO is {_about(diagnosis.kl)} nats, and the fit stopped because {diagnosis.stop_reason}. "
            f"{_to_go_on(diagnosis)}"
        )
    if diagnosis.defensive.reliable and diagnosis.defensive.k_hat < FINITE_VARIANCE:
        return None
    return (
        f"log Z - ELBO is at least {_about(diagnosis.kl)} nats, and components of this family no longer help. Try "
        'another family ("student_t"), or reparameterise the model.'
    )


def _resample(diagnosis: "Diagnosis") -> str | None:
    if not diagnosis.defensive.reliable:
        return None
    wrong = wrong_parameters(diagnosis)
    what = f"log Z - ELBO is {_about(diagnosis.kl)} nats"
    if wrong:
        what = f"{what}, and {wrong[0].describe()}"
    return f"{what}. The importance weights mend it: relbo.resample(posterior), or to_arviz(importance_resampled=True)."


def _tails_reason(diagnosis: "Diagnosis") -> str:
    return (
        f"the posterior's are heavier than the mixture's (k-hat {diagnosis.k_hat:.2g}, with a defensive component "
        f'{diagnosis.defensive.k_hat:.2g}), and weights cannot mend that. Try family="student_t" or more components; '
        "means and central intervals can be used."
    )


_RULES = (
    ("model", _model),
    ("not converged", _missed),
    ("good", _good),
    ("not converged", _not_converged),
    ("resample", _resample),
)


def wrong_parameters(diagnosis: "Diagnosis"):
    """Those whose mean or standard deviation is off by more than GOOD_MOMENT, three standard errors allowed."""

    def off(estimate) -> bool:
        return abs(estimate.value) - 3 * estimate.std_err > GOOD_MOMENT

    return [check for check in diagnosis.parameters if off(check.mean_error) or off(check.log_sd_error)]


def _percent(share: float) -> str:
    return "less than 0.1%" if share < 0.001 else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _nats(kl: "Estimate") -> str:
    return f"{max(high(kl), 1e-4):.1g} nats"


def _about(kl: "Estimate") -> str:
    return f"{kl.value:.2g}"

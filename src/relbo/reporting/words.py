"""A diagnosis in plain words: what every number means, whether it is good, and what to do next."""

import math
from dataclasses import dataclass

from relbo.diagnostics import Diagnosis
from relbo.diagnostics.verdict import GOOD_KL, LARGE_GAIN, LARGE_KL, LEAST_MISSED, WORDS, high, low, wrong_parameters
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.reporting.encoding import figure, with_error

_GOOD, _MIND, _BAD, _PLAIN = "good", "mind", "bad", "plain"
_LEVELS = {"good": _GOOD, "resample": _MIND, "tails": _MIND, "not converged": _BAD, "model": _BAD}
_NEXT = {
    "good": ("Use the draws as they are.", "draws = posterior.sample(2000)"),
    "resample": ("Resample with importance weights, and use those draws.", "draws = relbo.resample(posterior, 2000)"),
    "tails": (
        "Use means and central intervals, not tail probabilities; for those, fit components with heavier tails.",
        'posterior = relbo.fit(target, family="student_t")',
    ),
    "not converged": (
        "Continue the fit with more components; if that no longer helps, try another family or reparameterise.",
        "posterior = relbo.fit(target, start=posterior, max_components=64)",
    ),
    "model": ("Mend the model, then fit again: no approximation can be better than the density it is given.", ""),
}


@dataclass(frozen=True)
class Verdict:
    """What stands at the top of the page."""

    level: str
    headline: str
    reason: str
    advice: str
    code: str


@dataclass(frozen=True)
class Explained:
    """One number: what it is, its value, whether it is good, and what it means."""

    name: str
    value: str
    level: str
    meaning: str


def verdict(diagnosis: Diagnosis | None, doubt: str) -> Verdict:
    if diagnosis is None:
        advice = "Attach the model and diagnose the posterior."
        return Verdict(_MIND, "Not judged", doubt, advice, "posterior = relbo.load(path, target=target)")
    headline = WORDS[diagnosis.status]
    reason = diagnosis.verdict.removeprefix(headline).lstrip(":; ")
    return Verdict(_LEVELS[diagnosis.status], headline, reason[:1].upper() + reason[1:], *_NEXT[diagnosis.status])


def key_figures(posterior: Posterior, diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    """A few numbers to see at once."""
    if diagnosis is None:
        return [("ELBO, by the fit", _text(posterior.elbo)), ("components", str(posterior.num_components))]
    return [
        ("ELBO", _text(diagnosis.elbo)),
        ("log Z − ELBO", _text(diagnosis.kl)),
        ("k-hat", figure(diagnosis.k_hat, 2)),
        ("components", str(diagnosis.num_components)),
        ("modes", str(len(diagnosis.modes))),
    ]


def explained(diagnosis: Diagnosis | None) -> list[Explained]:
    """Every number of a diagnosis."""
    if diagnosis is None:
        return []
    rows = [_elbo(diagnosis), _log_z(diagnosis), _kl(diagnosis), _gap(diagnosis), _k_hat(diagnosis), _ess(diagnosis)]
    return [*rows, _misplaced(diagnosis), _modes(diagnosis), _parameters(diagnosis), _draws(diagnosis)]


def _text(estimate: Estimate) -> str:
    return with_error(float(estimate.value), float(estimate.std_err))


def _elbo(diagnosis: Diagnosis) -> Explained:
    meaning = (
        "The evidence lower bound, in nats: the fit makes it as large as it can. It never exceeds log Z, and means "
        "little alone; the difference to log Z counts."
    )
    return Explained("ELBO", _text(diagnosis.elbo), _PLAIN, meaning)


def _log_z(diagnosis: Diagnosis) -> Explained:
    reliable = diagnosis.defensive.reliable
    meaning = "The logarithm of the model's evidence, by importance sampling: what models are compared by. "
    meaning += "Its error bar is honest." if reliable else "The weights are too uneven for its error bar to be honest."
    return Explained("log Z", _text(diagnosis.log_z), _PLAIN if reliable else _MIND, meaning)


def _kl(diagnosis: Diagnosis) -> Explained:
    level = _GOOD if high(diagnosis.kl) <= GOOD_KL else _BAD if low(diagnosis.kl) >= LARGE_KL else _MIND
    meaning = (
        "How far the mixture is from the posterior, in nats (the Kullback-Leibler divergence). Zero is perfect, "
        f"{GOOD_KL:g} hardly visible, {LARGE_KL:g} and more is more than a matter of tails."
    )
    if not diagnosis.defensive.reliable:
        level, meaning = (
            max(level, _MIND, key=_severity),
            f"{meaning} Here it is a lower bound rather than an estimate.",
        )
    return Explained("log Z − ELBO", _text(diagnosis.kl), level, meaning)


def _gap(diagnosis: Diagnosis) -> Explained:
    if not math.isfinite(float(diagnosis.gap.value)):
        return Explained("Duality gap", "not measured", _PLAIN, "The fit has not looked for a further component.")
    meaning = (
        "What the best further component that was found could still gain, in nats. Near zero, or below it by noise: "
        "more components would not pay. It is a certificate only as far as the search is exact."
    )
    return Explained("Duality gap", _text(diagnosis.gap), _MIND if low(diagnosis.gap) > LARGE_GAIN else _GOOD, meaning)


def _k_hat(diagnosis: Diagnosis) -> Explained:
    good = diagnosis.k_hat < diagnosis.k_hat_limit
    meaning = (
        "How heavy the tail of the importance weights is. Large: the posterior has mass where the mixture has almost "
        f"none, and tail probabilities are off. Good below {diagnosis.k_hat_limit:.2f} for so many draws."
    )
    if not good and diagnosis.status == "good":
        meaning += " Here the tail is too small to matter."
    level = _GOOD if good or diagnosis.status == "good" else _MIND
    return Explained("k-hat", figure(diagnosis.k_hat, 2), level, meaning)


def _ess(diagnosis: Diagnosis) -> Explained:
    share = diagnosis.ess / diagnosis.num_draws
    meaning = "So many of the draws remain, in effect, when they are weighted to be draws of the posterior itself."
    value = f"{share:.0%} of {diagnosis.num_draws:,}"
    return Explained("Effective draws", value, _GOOD if share > 0.5 else _MIND, meaning)


def _misplaced(diagnosis: Diagnosis) -> Explained:
    meaning = "No probability computed from the draws is off by more than this, as far as the weights can tell."
    level = _GOOD if diagnosis.misplaced < 0.1 else _MIND
    return Explained("Misplaced mass", figure(diagnosis.misplaced, 2), level, meaning)


def _modes(diagnosis: Diagnosis) -> Explained:
    weights = ", ".join(f"{weight:.0%}" if weight >= 0.01 else "< 1%" for weight in diagnosis.modes[:6])
    num = len(diagnosis.modes)
    value = f"{num} ({weights}{', …' if num > 6 else ''})" if num > 1 else "1"
    missed = low(diagnosis.missed_mass) >= LEAST_MISSED
    meaning = "Separate hills of the mixture, with their shares. "
    if missed:
        share = float(diagnosis.missed_mass.value)
        meaning += f"A fresh search found others, with {share:.0%} of the mass, that it lacks."
    else:
        meaning += "A mode that no search reached is a mode not seen, by any number on this page."
    return Explained("Modes", value, _BAD if missed else _PLAIN, meaning)


def _parameters(diagnosis: Diagnosis) -> Explained:
    wrong = wrong_parameters(diagnosis)
    meaning = (
        "Parameters whose mean is off by more than a tenth of a standard deviation, or whose standard deviation is off "
        "by more than a tenth, judged by importance weights."
    )
    if wrong:
        meaning = f"{meaning} The worst: {wrong[0].describe()}."
    return Explained("Parameters visibly off", str(len(wrong)), _MIND if wrong else _GOOD, meaning)


def _draws(diagnosis: Diagnosis) -> Explained:
    meaning = (
        "Draws where the log density is NaN (the model is broken there), and draws outside of the model's support. A "
        "few of the latter are harmless."
    )
    value = f"{diagnosis.num_nan:,} NaN, {diagnosis.num_zero:,} outside, of {diagnosis.num_draws:,}"
    return Explained("Rejected draws", value, _MIND if diagnosis.rejected else _GOOD, meaning)


def _severity(level: str) -> int:
    return [_PLAIN, _GOOD, _MIND, _BAD].index(level)

"""`Diagnosis`: the numbers, their table, and the verdict they lead to."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from relbo.diagnostics.parameters import ParameterCheck
from relbo.diagnostics.verdict import high, judge, low, wrong_parameters
from relbo.records.estimate import Estimate
from relbo.records.outcome import Stop
from relbo.runtime.tables import Tabular

_SHOWN = 3  # parameters of each kind: the table stays on one screen
_LOOSE = 1.0
"""Nats: a gap beyond is towards a component that a step may use a thousandth of."""


@dataclass(frozen=True)
class Defensive:
    """Importance weights of draws of q together with draws of its heavy companion (see `defensive.py`)."""

    k_hat: float
    k_hat_limit: float
    stake: float
    """The part of the total weight that lies above the threshold of the tail fit: what k-hat is about."""
    ess: float
    num_draws: int
    """Draws in all, the mixture's own among them."""
    num_nan: int
    """Among the draws of the companion, which look far outside; left out."""
    reliable: bool
    """Whether estimates by these weights, and `relbo.resample`, have honest errors."""
    needed: bool
    """Whether q alone would not do: its k-hat is above its limit."""


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """Fresh measurements of a posterior. Printing it gives a short table."""

    elbo: Estimate
    """E_q[log p - log q]: a lower bound of log Z."""
    gap: Estimate
    """Towards the best component that the oracle finds now, or towards a missed mode; it certifies as far as the oracle
    is exact, over the bounded set in `certifies`.

    The true gap is never negative: a value clearly below zero means that the oracle found nothing to add.
    """
    log_z: Estimate
    """By importance sampling from the mixture and its heavy companion; honest where `defensive.reliable`."""
    kl: Estimate
    """log Z - ELBO = KL(q || p), with the error of the difference."""
    misplaced: float
    """Total variation distance between q and p by the weights: no probability is off by more."""
    k_hat: float
    """Of the mixture's own draws. The shape of the weights' tail; `defensive.stake` is its size."""
    k_hat_limit: float
    tail_error: float
    """The part of the total weight by which the tail of these draws may put it off (`Weighted.tail_error`)."""
    ess: float
    """Effective draws among the mixture's own, by Pareto-smoothed weights."""
    defensive: Defensive
    parameters: tuple[ParameterCheck, ...]
    """Every scalar parameter, the most wrong first."""
    modes: tuple[float, ...]
    """The weights of the modes, the heaviest first: hills of the mixture that a valley of the posterior parts, too."""
    missed_mass: Estimate
    """The share of p's mass at modes that a fresh search found and the mixture lacks."""
    decay: float
    """Far out p falls at least as r^-decay along every axis tried; at most one, and its integral is not finite."""
    num_draws: int
    num_components: int
    num_nan: int
    num_zero: int
    num_infinite: int
    """Draws with a log density of +inf, which are among `num_nan`, too."""
    irreproducible: float
    """The largest difference between two evaluations of the log density at one point, if beyond rounding; else 0."""
    last_gain: float
    """Nats by which the last components improved the fit, on average."""
    stop: Stop
    certifies: str
    """What the gap bounds, and over which set."""

    @property
    def stop_reason(self) -> str:
        """Why the fit stopped, in words."""
        return self.stop.sentence

    @property
    def stopped_early(self) -> bool:
        """Whether the fit ended by a budget, an interruption or an error, rather than because it no longer improved."""
        return self.stop.is_early

    @property
    def log_z_bound(self) -> Estimate:
        """The mixture's own bound: log Z is at least the ELBO."""
        return self.elbo

    @property
    def k_hats(self) -> dict[str, tuple[float, float]]:
        """By parameter: k-hat of its weighted mean and of its weighted variance (NaN where not fitted)."""
        return {check.name: (check.k_hat_mean, check.k_hat_variance) for check in self.parameters}

    @property
    def rejected(self) -> int:
        """Draws that cannot be used: NaN, or outside the support."""
        return self.num_nan + self.num_zero

    @property
    def status(self) -> str:
        """ "good", "resample", "tails", "not converged" or "model"."""
        return self._judged[0]

    @property
    def verdict(self) -> str:
        """The status in words, the reason, and the next move."""
        return self._judged[1]

    @cached_property
    def _judged(self) -> tuple[str, str]:
        return judge(self)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        return (), [*self._rows(), *self._rows_of_trouble()]

    def _lines(self) -> list[str]:
        return [f"The gap {self.certifies}."] if self.gap_problem is None else []

    @property
    def gap_problem(self) -> str | None:
        """Why the gap says nothing here, if it does not: it is a bound, and may be a loose one or none at all."""
        if not math.isfinite(self.gap.value):
            return "not measured"
        if high(self.gap) < 0:
            return f"the oracle found nothing to add ({self.gap})"
        if self.defensive.reliable and low(self.gap) > high(self.kl):
            return f"not usable: it bounds log Z - ELBO from above, by {self.gap}, and that is known to be smaller"
        if not self.defensive.reliable and low(self.gap) > _LOOSE:
            return f"{self.gap}: components can still help, but no one can say how much"
        return None

    def _rows(self) -> list[tuple[str, str]]:
        weights = self.defensive
        doubt = "" if weights.reliable else "  (not reliable)"
        modes = ", ".join(f"{weight:.2g}" for weight in self.modes[:6]) + (", ..." if len(self.modes) > 6 else "")
        k_hat = [("k-hat", f"{self.k_hat:.2f} (good below {self.k_hat_limit:.2f})")]
        ess = [("effective draws", f"{_round(self.ess)} of {self.num_draws}")]
        if weights.num_draws > self.num_draws:
            tail = f"{weights.k_hat:.2f}, {weights.stake:.1%} of the weight in that tail"
            k_hat.append(("  with defensive draws", tail))
            ess.append(("  with defensive draws", f"{_round(weights.ess)} of {weights.num_draws}"))
        return [
            ("ELBO", str(self.elbo)),
            ("log Z", f"{self.log_z}{doubt}"),
            ("log Z - ELBO", f"{self.kl}{doubt}"),
            ("duality gap", self.gap_problem or str(self.gap)),
            *k_hat,
            *ess,
            ("misplaced mass", f"{self.misplaced:.2g}"),
            ("components", str(self.num_components)),
            ("modes", f"{len(self.modes)} ({modes})" if len(self.modes) > 1 else "1"),
        ]

    def _rows_of_trouble(self) -> list[tuple[str, str]]:
        rows = [("wrong", check.describe()) for check in wrong_parameters(self)[:_SHOWN]]
        if self.status in ("resample", "tails"):
            limit = self.defensive.k_hat_limit
            heavy = sorted(self.parameters, key=lambda check: -np.nan_to_num(check.k_hat_variance, nan=-np.inf))
            rows += [
                ("k-hat of moments", f"{check.name}: mean {check.k_hat_mean:.2f}, variance {check.k_hat_variance:.2f}")
                for check in heavy[:_SHOWN]
                if check.k_hat_variance > limit
            ]
        if self.missed_mass.value > 0.001:
            rows.append(("missed modes", f"{self.missed_mass} of the mass"))
        if self.num_nan:
            rows.append(("NaN draws", str(self.num_nan)))
        if self.num_infinite:
            rows.append(("infinite draws", str(self.num_infinite)))
        if self.num_zero:
            rows.append(("outside support", f"{self.num_zero / self.num_draws:.1%} of the mixture; sample rejects it"))
        return rows


def _round(number: float) -> str:
    """Two figures: an effective sample size is no more exact than that."""
    return f"{float(f'{number:.2g}'):.0f}"

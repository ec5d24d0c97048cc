"""When to stop: rules that read the trace. Any rule that fires ends the fit, and what it says is the reason given."""

import math
from abc import abstractmethod
from typing import ClassVar

import equinox as eqx

from relbo.budgets import ENOUGH, ENOUGH_LEARNED, FEW
from relbo.records.outcome import Stop
from relbo.records.trace import Record, spread_of


class AbstractStop(eqx.Module):
    """A rule; `reason` returns how the fit ends when it fires, None otherwise. A sentence will do: it has converged."""

    means_near: ClassVar[bool] = False
    """Whether it fires where nothing is left to gain: such a fit is not polished, and one that is continued, which asks
    for more, does not ask this rule again."""
    gives_up: ClassVar[bool] = False
    """Whether it fires because iterations gain no more: modes that the mixture lacks are sought before the end."""

    @property
    def most_components(self) -> float:
        """The largest number of components that it allows."""
        return math.inf

    @abstractmethod
    def reason(self, records: list[Record]) -> Stop | str | None: ...

    def exceeded(self, seconds: float, evaluations: int) -> Stop | None:
        """How the fit ends if so much, in all, is more than a budget allows. Asked within an iteration, too."""
        del seconds, evaluations
        return None


class GapBelow(AbstractStop):
    """The duality-gap estimate, value + 2 standard errors on fresh draws, below `tol` nats `times` times in a row.

    What an iteration improved is a lower bound of the gap before it, whatever the oracle found: it must be below `tol`
    too, so that a weak proposal cannot end a fit that still makes progress. Nor can one so weak that the estimate is
    clearly negative, which the gap itself never is.
    """

    tol: float = 0.002
    times: int = 2

    gives_up = True

    def reason(self, records):
        last = records[-self.times :]
        if len(last) == self.times and all(self._below(record) for record in last):
            return Stop("converged", f"the duality gap was below {self.tol:g} nats {self.times} times in a row")
        return None

    def _below(self, record: Record) -> bool:
        if record.gap is None or record.improvement is None:
            return False
        noise = 2 * record.gap.std_err
        return bool(abs(float(record.gap.value)) + noise < self.tol and record.improvement.value < self.tol)


class Stalled(AbstractStop):
    """The last `patience` iterations together did not improve the ELBO.

    A paired test on common draws: their total improvement is within two standard errors of zero, or below
    `min_improvement` nats an iteration, or below the share `min_share` of what is left to gain (half the variance of
    log p - log q, a nat at the most): at such a pace many more components would not bring it near. Where log p - log q
    still spreads by more than `far` nats, there is something left to find, and one more iteration is tried. In learned
    coordinates one in vain is enough: what a flow leaves over is seldom the shape of a component.
    """

    patience: int = 5
    min_improvement: float = FEW.min_gain
    far: float = math.inf
    min_share: float = 0.0

    gives_up = True

    def reason(self, records):
        learned = records[0].kind == "flow"
        patience = 1 if learned else self.patience + bool(records[-1].spread > self.far)
        last = [record for record in records[-patience:] if record.improvement is not None]
        if len(last) < patience:
            return None
        total = sum(record.improvement.value for record in last if record.accepted)
        error = math.sqrt(sum(record.improvement.std_err**2 for record in last if record.accepted))
        left = min(0.5 * spread_of(records) ** 2, 1.0)
        if total <= max(2 * error, patience * self.min_improvement, self.min_share * left):
            last_ones = "the last iteration" if patience == 1 else f"the last {patience} iterations"
            much = f" ({total:.1g} +- {error:.1g} nats)" if any(record.accepted for record in last) else ""
            return Stop("stalled", f"{last_ones} did not improve the ELBO{much}")
        return None


class Near(AbstractStop):
    """The mixture is within about `tol` nats of the target wherever it has mass: more would hardly pay.

    Where q is near p, KL(q || p) is half the variance of log p - log q under q. That sees nothing of what lies
    elsewhere, so the rule speaks only where all walks for modes ended in one place, and where the last iteration, if
    there was one, gained less than twice `tol`: what still gains much is not near. And most of it comes from the edges
    of components, where few draws fall, the fewer the more components share them: beyond `num_seen` of them it must be
    smaller in proportion. In learned coordinates it is `learned_tol`: what a flow leaves over so near the target is
    thinly spread, and no component gains on it (of 42 fits whose flow was kept one gained, by 0.01 nats).
    """

    tol: float = ENOUGH
    num_seen: int = 4
    learned_tol: float = ENOUGH_LEARNED

    means_near = True

    def reason(self, records):
        last = records[-1]
        divergence = 0.5 * spread_of(records) ** 2
        gained = float(last.improvement.value) if last.accepted and last.improvement is not None else 0.0
        most = self.learned_tol if records[0].kind == "flow" else self.tol
        tol = most * min(1.0, self.num_seen / last.num_components)
        if not divergence < tol or last.several_modes or not gained < 2 * self.tol:
            return None
        near = f"the mixture is within about {divergence:.1g} nats of the target, and no other mode was found"
        return Stop("converged", near)


class MaxComponents(AbstractStop):
    """A budget of components."""

    num: int

    def __check_init__(self):
        if self.num < 1:
            raise ValueError(f"max_components must be at least 1, got {self.num}.")

    @property
    def most_components(self):
        return self.num

    def reason(self, records):
        if records[-1].num_components < self.num:
            return None
        reached = f"{self.num} component{'s were' if self.num > 1 else ' was'} reached, the most allowed"
        return Stop("budget", reached, "components")


class MaxIterations(AbstractStop):
    """A budget of iterations, rejected ones included."""

    num: int

    def reason(self, records):
        if records[-1].iteration < self.num:
            return None
        return Stop("budget", f"{self.num} iterations were done, the most allowed", "iterations")


class MaxSeconds(AbstractStop):
    """A budget of time. An iteration that would exceed it is given up. (Results differ between machines then.)"""

    seconds: float

    def __check_init__(self):
        if type(self.seconds) is bool or not isinstance(self.seconds, int | float) or not self.seconds >= 0:
            raise ValueError(f"a budget of time is a number of seconds, got {self.seconds!r}.")

    def reason(self, records):
        return self.exceeded(sum(record.seconds for record in records), 0)

    def exceeded(self, seconds, evaluations):
        if seconds < self.seconds:
            return None
        return Stop("budget", f"the budget of {self.seconds:g} s was spent", "seconds")


class MaxEvaluations(AbstractStop):
    """A budget of evaluations of the log density (with gradient, if there is one), never exceeded: an iteration that
    would exceed it is given up."""

    num: int

    def __check_init__(self):
        if type(self.num) is not int or self.num < 1:
            raise ValueError(f"a budget of evaluations must be a positive integer, got {self.num!r}.")

    def reason(self, records):
        return self.exceeded(0.0, sum(record.evaluations for record in records))

    def exceeded(self, seconds, evaluations):
        if evaluations < self.num:
            return None
        return Stop("budget", f"the budget of {self.num:,} evaluations was spent", "evaluations")

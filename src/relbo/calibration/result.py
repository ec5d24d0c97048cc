"""What a calibration found."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from relbo.calibration.ranks import NUM_TESTS, RankTest, check_ranks, holm, uniforms
from relbo.calibration.trial import LOG_JOINT, Failure
from relbo.records.estimate import Estimate
from relbo.runtime.tables import Tabular

MAX_FAILURES = 0.05
"""A larger share of failed simulations and the calibration has not passed: those that worked are no fair sample."""
_ROWS = 8  # the worst quantities, on one screen
_MESSAGE_LENGTH = 200  # characters, about two lines
_HEADING = ("quantity", "p", "draws too high by", "true / claimed sd", "")
_POWER_SCORE = 1.2816  # the normal quantile of 0.9


@dataclass(frozen=True)
class Calibration(Tabular):
    """Ranks of true parameters among draws of their posteriors, and whether they are uniform, as they should be.

    Printing it gives a short table; `relbo.plots.ranks` draws the worst quantities.
    """

    names: list[str]
    """The quantities: every scalar parameter, and the log joint density of parameters and data."""
    ranks: np.ndarray
    """(simulations that worked, quantities): how many of the draws lie below the true value, 0 to `num_draws`."""
    num_draws: int
    num_simulations: int
    failures: list[Failure]
    """Simulations without ranks: the number of the simulation and the message of its error."""
    seconds: float
    seed: int
    level: float
    """The probability of a false alarm, over all quantities together."""
    interrupted: bool = False

    @cached_property
    def tests(self) -> list[RankTest]:
        """One for every quantity."""
        levels = uniforms(self.ranks, self.num_draws, self.seed)
        return [check_ranks(name, levels[:, column]) for column, name in enumerate(self.names)]

    @cached_property
    def p_values(self) -> dict[str, float]:
        """By quantity, adjusted for the number of quantities (Holm)."""
        adjusted = holm(np.array([test.p_value for test in self.tests]))
        return {name: float(p) for name, p in zip(self.names, adjusted, strict=True)}

    @property
    def p_value(self) -> float:
        """That all quantities are calibrated."""
        return min(self.p_values.values())

    @property
    def num_failures(self) -> int:
        return len(self.failures)

    @property
    def passed(self) -> bool:
        """Whether nothing was found at `level`, and no more than a twentieth of the simulations failed."""
        return self.p_value >= self.level and not self._too_many_failures

    @property
    def worst(self) -> list[RankTest]:
        """The tests, smallest p-value first."""
        return sorted(self.tests, key=lambda test: test.p_value)

    @property
    def verdict(self) -> str:
        """In a sentence or two."""
        sentences = [self._found()]
        if self._too_many_failures:
            sentences.append(
                f"{self.num_failures} of {self._num_tried} simulations failed, more than {MAX_FAILURES:.0%}: the ranks "
                "are those of the data that could be fitted, which is no fair sample. See failures."
            )
        if self.interrupted:
            sentences.append("It was interrupted.")
        return " ".join(sentences)

    @property
    def _num_tried(self) -> int:
        return len(self.ranks) + self.num_failures

    @property
    def _too_many_failures(self) -> bool:
        return self.num_failures > MAX_FAILURES * self._num_tried

    @property
    def _level_each(self) -> float:
        return self.level / (NUM_TESTS * len(self.names))

    def _found(self) -> str:
        p = f"p = {self.p_value:.2g}"
        if self.p_value >= self.level:
            shift, width = self.detectable()
            return (
                f"Calibrated, as far as {len(self.ranks)} fits can tell ({p}): draws too high or low by {shift:.2f} "
                f"posterior sds, or sds wrong by {width:.0%}, would probably have been found."
            )
        bad = [test for test in self.worst if self.p_values[test.name] < self.level]
        parameters = [test for test in bad if test.name != LOG_JOINT]
        if not parameters:
            return (
                f"Not calibrated ({p}): the parameters one by one show nothing, but the {LOG_JOINT} at the draws is "
                f"{self._in_words(bad[0])}. Too high: the draws lie too near the mode; too low: too far out, or they "
                "do not follow the data."
            )
        sentence = f"Not calibrated ({p}): the draws of {parameters[0].name} are {self._in_words(parameters[0])}."
        others = len(bad) - 1
        return f"{sentence} {others} more quantit{'ies are' if others > 1 else 'y is'} off." if others else sentence

    def _in_words(self, test: RankTest) -> str:
        problem = test.problem(self.level / NUM_TESTS)
        if "high" in problem or "low" in problem:
            shift = Estimate(abs(float(test.shift.value)), test.shift.std_err, test.shift.num_draws)
            problem += f", by {shift} posterior sds"
        if "narrow" in problem or "wide" in problem:
            problem += f": true values scatter {test.width} times as far as the draws say"
        return problem

    def detectable(self) -> tuple[float, float]:
        """The shift in posterior sds and the relative error of an sd that would be found nine times in ten."""
        distance = float(-ndtri(self._level_each / 2)) + _POWER_SCORE
        num = len(self.ranks)
        return distance / math.sqrt(num), distance / math.sqrt(2 * num)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows: list[tuple[str, ...]] = []
        for test in self.worst[:_ROWS]:
            p = self.p_values[test.name]
            problem = test.problem(self.level / NUM_TESTS) if p < self.level else ""
            rows.append((test.name, f"{p:.2g}", str(test.shift), str(test.width), problem))
        return _HEADING, rows

    def _lines(self) -> list[str]:
        lines = []
        if len(self.names) > _ROWS:
            lines.append(f"... and {len(self.names) - _ROWS} more, with larger p")
        fits = f"{len(self.ranks)} fits, ranks among {self.num_draws} draws, {self.seconds:.0f} s"
        lines.append(f"{fits}; {self.num_failures} failures")
        if self.failures:
            lines.append(f"first failure: {self.failures[0].message[:_MESSAGE_LENGTH]}")
        return lines

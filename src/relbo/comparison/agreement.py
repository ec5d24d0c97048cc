"""What a comparison found."""

from dataclasses import dataclass

from relbo.records.estimate import Estimate
from relbo.runtime.tables import Tabular

_ROWS = 10  # the worst parameters, on one screen
_HEADING = ("parameter", "mean error (floor)", "sd error (floor)", "Wasserstein (floor)")


@dataclass(frozen=True)
class Difference:
    """A number that is zero for equal laws, and its floor: the size that chance alone reaches.

    Floors hold together: two samples of one law exceed any of them in one comparison of a hundred.
    """

    value: Estimate
    floor: float

    @property
    def found(self) -> bool:
        """Whether it is more than chance."""
        return abs(float(self.value.value)) > self.floor

    def __str__(self) -> str:
        return f"{self.value} ({self.floor:.2g}){' *' if self.found else ''}"


@dataclass(frozen=True)
class ParameterAgreement:
    """One scalar parameter."""

    name: str
    mean: Difference
    """Of the posterior minus that of the reference, in sds of the reference."""
    sd: Difference
    """The relative error: 0.1 for a posterior whose sd is ten percent too large."""
    wasserstein: Difference
    """Wasserstein-1, in sds of the reference."""

    @property
    def severity(self) -> float:
        """The largest of the three in units of its floor."""
        return max(abs(float(each.value.value)) / each.floor for each in (self.mean, self.sd, self.wasserstein))


@dataclass(frozen=True)
class ModeAgreement:
    """The share of the draws in one mode of the posterior."""

    own: float
    reference: float
    difference: Difference
    """Own minus reference."""


@dataclass(frozen=True)
class Agreement(Tabular):
    """How a posterior agrees with reference draws. Printing it gives a short table, worst parameters first."""

    parameters: list[ParameterAgreement]
    """In the order of the model."""
    sliced_wasserstein: Difference
    """The mean Wasserstein-1 over random directions, coordinates in sds of the reference."""
    modes: list[ModeAgreement]
    """Heaviest first; empty if the posterior has one mode, or the reference draws cannot be unconstrained."""
    num_draws: int
    num_reference: int
    reference_ess: float
    """What the reference draws are worth for the mean that they know least."""
    notes: list[str]

    @property
    def agrees(self) -> bool:
        """Whether all differences are within their floors."""
        return not self._found()

    @property
    def verdict(self) -> str:
        found = self._found()
        if not found:
            return "No difference beyond Monte Carlo error."
        return f"More than Monte Carlo error: {'; '.join(found)}."

    @property
    def worst(self) -> list[ParameterAgreement]:
        """The parameters, largest difference in units of its floor first."""
        return sorted(self.parameters, key=lambda each: -each.severity)

    def _found(self) -> list[str]:
        found = []
        for label, kind in (("mean", "mean"), ("sd", "sd"), ("Wasserstein distance", "wasserstein")):
            bad = [(each.name, getattr(each, kind)) for each in self.parameters if getattr(each, kind).found]
            if bad:
                name, worst = max(bad, key=lambda pair: abs(float(pair[1].value.value)))
                of = f"{label} of {len(bad)} of {len(self.parameters)} parameters, worst {name}"
                found.append(f"{of}: {_in_words(kind, float(worst.value.value))}")
        if self.sliced_wasserstein.found:
            found.append(f"sliced Wasserstein distance {self.sliced_wasserstein.value}")
        for number, mode in enumerate(self.modes):
            if mode.difference.found:
                found.append(f"mode {number} has {mode.own:.1%} of the draws, {mode.reference:.1%} of the reference")
        return found

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        shown = self.worst[:_ROWS]
        return _HEADING, [(each.name, str(each.mean), str(each.sd), str(each.wasserstein)) for each in shown]

    def _lines(self) -> list[str]:
        lines = []
        if len(self.parameters) > _ROWS:
            lines.append(f"... and {len(self.parameters) - _ROWS} more that agree better")
        lines.append(f"sliced Wasserstein  {self.sliced_wasserstein}")
        for number, mode in enumerate(self.modes):
            lines.append(f"mode {number}  {mode.own:.1%}, reference {mode.reference:.1%}; difference {mode.difference}")
        lines.append(
            f"{self.num_draws} draws against {self.num_reference}, worth {self.reference_ess:.0f}; means and distances "
            "in sds of the reference"
        )
        return lines + [f"note: {note}" for note in self.notes]


def _in_words(kind: str, value: float) -> str:
    if kind == "sd":
        return f"{value:+.1%}"
    return f"{value:+.3g} sds" if kind == "mean" else f"{value:.3g} sds"

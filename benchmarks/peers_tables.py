"""What peers.json says: medians over seeds, ranks, ratios of CPU seconds. No text, no drawing."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

OWN = "relbo"
LEVEL_STD_ERRS = 2.0
"""Two ELBOs closer than so many of their joint standard errors are level."""


@dataclass(frozen=True)
class Ranking:
    """The variational methods on one model by ELBO, best first; `best_other` is the best that is not relbo."""

    order: list[str]
    best_other: str | None
    margin: float | None
    """ELBO of relbo less that of the best other, in nats: KL of the other less ours."""
    margin_std_err: float | None

    @property
    def outcome(self) -> str:
        """ "won", "level" or "lost"; "no result" where relbo has no ELBO, "alone" where nobody else has one."""
        if OWN not in self.order:
            return "no result"
        if self.margin is None:
            return "alone"
        if abs(self.margin) <= LEVEL_STD_ERRS * self.margin_std_err:
            return "level"
        return "won" if self.margin > 0 else "lost"


class Results:
    """The cells of peers.json by model and method, with medians over seeds."""

    def __init__(self, joined: dict[str, Any]):
        self.machine, self.models, self.methods = joined["machine"], joined["models"], joined["methods"]
        self.cells: dict[tuple[str, str], list[dict]] = {}
        for cell in joined["cells"]:
            self.cells.setdefault((cell["model"], cell["method"]), []).append(cell)
        self.measured = [name for name in self.models if any(model == name for model, _ in self.cells)]

    def done(self, model: str, method: str) -> list[dict]:
        return [cell for cell in self.cells.get((model, method), []) if cell["kind"] == "done"]

    def not_done(self, kinds: Iterable[str]) -> list[dict]:
        return [cell for cells in self.cells.values() for cell in cells if cell["kind"] in kinds]

    def missing(self) -> list[tuple[str, str]]:
        """Models and methods of a complete run without any cell."""
        return [
            (model, method) for model in self.models for method in self.methods if (model, method) not in self.cells
        ]

    def median(self, model: str, method: str, read: Callable[[dict], Any]) -> float | None:
        """Over the seeds that finished and know the number."""
        values = [value for cell in self.done(model, method) if (value := read(cell)) is not None]
        return statistics.median(values) if values else None

    def field(self, model: str, method: str, name: str) -> float | None:
        return self.median(model, method, lambda cell: cell.get(name))

    def cpu(self, model: str, method: str, part: str = "total") -> float | None:
        return self.median(model, method, lambda cell: cell["cpu_seconds"][part])

    def variational(self) -> list[str]:
        return [name for name, method in self.methods.items() if method["variational"]]

    def ranking(self, model: str) -> Ranking:
        elbos = {name: self.field(model, name, "elbo") for name in self.variational()}
        order = sorted((name for name, elbo in elbos.items() if elbo is not None), key=lambda name: -elbos[name])
        best_other = next((name for name in order if name != OWN), None)
        if OWN not in order or best_other is None:
            return Ranking(order, best_other, None, None)
        errors = [self.field(model, name, "elbo_std_err") for name in (OWN, best_other)]
        return Ranking(order, best_other, elbos[OWN] - elbos[best_other], math.hypot(*errors))

    def error(self, model: str, method: str) -> float | None:
        """KL; where log Z is unknown, the ELBO's distance to the best of all methods on the model."""
        if (self.models[model]["reference"] or {}).get("log_z") is not None:
            return self.field(model, method, "kl")
        elbo, order = self.field(model, method, "elbo"), self.ranking(model).order
        return None if elbo is None else self.field(model, order[0], "elbo") - elbo

    def ratios(self, other: str) -> dict[str, float]:
        """CPU seconds of relbo over those of another method, by model."""
        pairs = {name: (self.cpu(name, OWN), self.cpu(name, other)) for name in self.measured}
        return {name: own / theirs for name, (own, theirs) in pairs.items() if own and theirs}

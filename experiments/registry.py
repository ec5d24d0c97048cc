"""The experiments by name: where each begins, which modules compute its results, what it reads, how long it takes."""

import dataclasses
import importlib
from collections.abc import Callable

from experiments.report import Options, Report
from experiments.runs import Runs


@dataclasses.dataclass(frozen=True)
class Experiment:
    """`entry` is "module:function", a function of options and runs; `computes` are the modules whose code a result
    depends on; `minutes` are CPU minutes of one core, with the default number of seeds."""

    entry: str
    computes: tuple[str, ...]
    minutes: float
    files: tuple[str, ...] = ()

    def function(self) -> Callable[[Options, Runs], Report]:
        module, _, name = self.entry.partition(":")
        return getattr(importlib.import_module(f"experiments.{module}"), name)


EXPERIMENTS = {
    "figure1": Experiment("figure1:run", ("exact",), 6),
    "theory": Experiment("theory:run", ("convergence", "exact", "curvature"), 2),
    "chemreact": Experiment(
        "regressions:chemreact", ("regression",), 5, ("chemreact10.npz", "chemreact100_part.npz", "ds1.100_train.npz")
    ),
    "icu": Experiment(
        "regressions:icu",
        ("regression",),
        4,
        ("icu_mortality.npz", "eicu_demo_mortality.npz", "train_test_split.npz"),
    ),
    "wine": Experiment("regressions:wine", ("regression",), 2, ("wine_quality.npz",)),
    "explanations": Experiment("explanations:run", ("explaining",), 4, ("chemreact100_part.npz",)),
    "systems": Experiment("systems:run", ("comparing",), 6, ("chemreact10.npz",)),
    "coordinates": Experiment("coordinates:run", ("coordinates",), 1),
    "faces": Experiment("faces:run", ("face_fits",), 5, ("cbcl_faces.npz",)),
}
"""In order of importance: what is stopped early has done the first."""

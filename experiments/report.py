"""What an experiment is asked for, and what it hands over: raw results, tables, a figure."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import relbo


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says. `seeds` is None where the experiment's own number will do."""

    data: pathlib.Path | None = None
    seeds: int | None = None
    quick: bool = False
    out: pathlib.Path = pathlib.Path("experiments/output")

    def seed_range(self, usual: int, quick: int = 1) -> range:
        """The seeds to run: as many as asked for, or `usual`, or `quick`."""
        return range(self.seeds or (quick if self.quick else usual))


@dataclasses.dataclass
class Table:
    """Cells are strings, numbers or `relbo.Estimate`s; a row may be shorter than the columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __post_init__(self):
        for row in self.rows:
            if len(row) > len(self.columns):
                raise ValueError(f"A row of {len(row)} cells in a table of {len(self.columns)} columns: {row}.")

    def markdown(self) -> str:
        rows = [[_cell(cell) for cell in row] + [""] * (len(self.columns) - len(row)) for row in self.rows]
        lines = [list(self.columns), ["---"] * len(self.columns), *rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n"


@dataclasses.dataclass
class Report:
    """The outcome. `results` are raw and JSON-able; `remarks` are sentences for the page."""

    title: str
    settings: dict[str, Any]
    tables: Sequence[Table]
    results: Sequence[dict[str, Any]]
    figure: Figure
    remarks: Sequence[str] = ()

    def markdown(self, quick: bool = False) -> str:
        title = f"Quick check, no result: {self.title}" if quick else self.title
        remarks = "\n".join(f"- {remark}" for remark in self.remarks)
        return "\n".join([f"# {title}\n", *(table.markdown() for table in self.tables), remarks, ""])

    def write(self, name: str, options: Options, about: dict[str, Any]) -> list[pathlib.Path]:
        """Write NAME.json, NAME.md and NAME.png into the folder (NAME.quick... for a quick run); the paths.

        `about` says by which code, with which libraries and in how many CPU seconds the results were made.
        """
        options.out.mkdir(parents=True, exist_ok=True)
        stem = f"{name}.quick" if options.quick else name
        paths = [options.out / f"{stem}.{ending}" for ending in ("json", "md", "png")]
        head = {"experiment": name, "title": self.title, "quick": options.quick, **about}
        raw = {**head, "settings": self.settings, "results": list(self.results)}
        paths[0].write_text(json.dumps(plain(raw), indent=1) + "\n")
        paths[1].write_text(self.markdown(options.quick))
        if options.quick:
            self.figure.suptitle("quick check, no result", color="#D55E00", fontsize=9)
        self.save_figure(paths[2])
        return paths

    def save_figure(self, path: pathlib.Path) -> None:
        self.figure.savefig(path, dpi=130, bbox_inches="tight", metadata={"Software": None})


def mean_of(values: Sequence[float] | np.ndarray) -> relbo.Estimate | float:
    """The mean over seeds with its standard error; a single value as it is."""
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return float(values[0])
    return relbo.Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))), len(values))


def shown(values: Sequence[float] | np.ndarray) -> str:
    """The mean over seeds for a sentence."""
    found = mean_of(values)
    return f"{found:.4g}" if isinstance(found, float) else str(found)


def difference(values: Sequence[float] | np.ndarray) -> str:
    """A mean difference with its sign, its standard error and no digit more; "0" where all differences are."""
    values = np.asarray(values, np.float64)
    if not values.any():
        return "0"
    found = mean_of(values)
    text = f"{found:.2g}" if isinstance(found, float) else str(found)
    return text if text.startswith("-") else f"+{text}"


def text_of(raw: dict[str, float]) -> str:
    """An estimate that was written to a file."""
    return str(relbo.Estimate(raw["value"], raw["std_err"], 0))


def plain(value: Any, finite: bool = True) -> Any:
    """`value` as JSON knows it. With `finite`, a number that is not becomes a string, since JSON has none."""
    if isinstance(value, relbo.Estimate):
        return {"value": plain(value.value, finite), "std_err": plain(value.std_err, finite)}
    if isinstance(value, dict):
        return {str(key): plain(one, finite) for key, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(one, finite) for one in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), finite)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if finite else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)

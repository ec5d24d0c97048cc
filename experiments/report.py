"""What an experiment is asked for, and what it hands over: raw results, tables, a figure."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from matplotlib.figure import Figure

import relbo

_LIBRARIES = ("relbo", "jax", "jaxlib", "equinox", "optax", "numpy", "numpyro", "scikit-learn", "matplotlib")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says. `seeds` is None where the experiment's own number will do."""

    data: pathlib.Path | None = None
    seeds: int | None = None
    quick: bool = False
    out: pathlib.Path = pathlib.Path("experiments/output")

    def seed_range(self, usual: int, quick: int = 2) -> range:
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
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
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

    def markdown(self) -> str:
        remarks = "\n".join(f"- {remark}" for remark in self.remarks)
        return "\n".join([f"# {self.title}\n", *(table.markdown() for table in self.tables), remarks, ""])

    def write(self, name: str, options: Options) -> list[pathlib.Path]:
        """Write NAME.json, NAME.md and NAME.png into the folder (NAME.quick... for a quick run); the paths."""
        options.out.mkdir(parents=True, exist_ok=True)
        stem = f"{name}.quick" if options.quick else name
        paths = [options.out / f"{stem}.{ending}" for ending in ("json", "md", "png")]
        raw = {
            "experiment": name,
            "quick": options.quick,
            "settings": self.settings,
            "versions": versions(),
            "results": list(self.results),
        }
        paths[0].write_text(json.dumps(plain(raw), indent=1) + "\n")
        paths[1].write_text(self.markdown())
        self.figure.savefig(paths[2], dpi=150, bbox_inches="tight", metadata={"Software": None})
        return paths


@functools.cache
def code_digest() -> str:
    """Of relbo's own code, which changes more often than its version."""
    root = pathlib.Path(relbo.__file__).parent
    files = (path.read_bytes() for path in sorted(root.rglob("*.py")))
    return hashlib.sha256(b"\0".join(files)).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Of what took part. A library that is not there is left out."""
    found = {"python": platform.python_version(), "relbo's code": code_digest()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def plain(value: Any, finite: bool = True) -> Any:
    """`value` as JSON knows it. With `finite`, a number that is not becomes a string, since JSON has none."""
    if isinstance(value, relbo.Estimate):
        return {"value": plain(value.value, finite), "std_err": plain(value.std_err, finite)}
    if isinstance(value, dict):
        return {str(key): plain(one, finite) for key, one in value.items()}
    if isinstance(value, list | tuple):
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

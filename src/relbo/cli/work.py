"""What commands do before and after their work: devices, models with their data, fits from files, draws to files."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import relbo
from relbo.cli.data import Data, read_data
from relbo.cli.mapping import Arguments, explain_missing, map_arguments
from relbo.cli.models import Model, load_model
from relbo.cli.session import BAD_VERDICT, Session, UsageError
from relbo.diagnostics.parameters import named_columns
from relbo.runtime.plain import plain
from relbo.runtime.require import require
from relbo.storage.container import unpack
from relbo.targets.layout import named_leaves
from relbo.views.summaries import LEVELS, summarize

_STYLES = {"good": "bold green", "resample": "bold yellow", "tails": "bold yellow"}


def prepare(talk: Session, x64: bool, cache: bool) -> None:
    """Before anything is computed. A cache that cannot be written costs time, and nothing else."""
    if x64:
        jax.config.update("jax_enable_x64", True)
    if cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        try:
            relbo.enable_compile_cache()
        except OSError as error:
            talk.warn(f"programs are compiled anew, because the cache folder cannot be written ({error}).")


def read_model(
    text: str, kind: str | None, paths: Sequence[pathlib.Path] | None, given: Sequence[str] | None, drop_missing: bool
) -> tuple[Model, Data, Arguments]:
    """The model, the data, and how they fit together."""
    data = read_data(list(paths or ()))
    model = load_model(text, kind)
    inputs = model.inputs()
    if data.values and not inputs:
        raise UsageError(f"{model.title}, takes no data: it has no arguments (and no pm.Data) that they could go to.")
    arguments = map_arguments(inputs, data, list(given or ()), first_code=model.first_code, drop_missing=drop_missing)
    return model, data, arguments


def check_complete(data: Data, arguments: Arguments) -> None:
    if arguments.missing:
        raise UsageError(explain_missing(arguments, data))


def make_target(model: Model, data: Data, arguments: Arguments) -> Any:
    check_complete(data, arguments)
    return model.target(arguments.values)


def show_mapping(talk: Session, model: Model, arguments: Arguments) -> None:
    talk.say(model.title)
    if arguments.mapped:
        talk.table(("argument", "from", "shape", "type or value"), arguments.rows())
    for note in arguments.notes:
        talk.say(note)
    if arguments.unused:
        talk.say(f"not used: {', '.join(arguments.unused)}")


def load_fit(path: pathlib.Path, target: Any = None) -> relbo.Posterior:
    """A fit from its file, in the precision that it was made in."""
    if not path.is_file():
        raise UsageError(f"there is no fit {path}.")
    header, _ = unpack(path.read_bytes(), str(path))
    if header.get("target", {}).get("dtype") == "float64":
        jax.config.update("jax_enable_x64", True)
    return relbo.load(path, target=target)


def show_summary(talk: Session, posterior: relbo.Posterior, num_draws: int, seed: int) -> dict[str, Any]:
    """The table of parameters, and the same for machines."""
    found = summarize(posterior, num_draws, seed)
    heading = ("parameter", "mean", "sd", *(f"{level:.0%}" for level in LEVELS))
    rows = [
        (each.name, str(each.mean), f"{each.sd.value:.3g}", *(f"{q:.4g}" for q in each.quantiles)) for each in found
    ]
    shown = rows[:40]
    talk.table(heading, shown)
    if len(rows) > len(shown):
        talk.say(f"... and {len(rows) - len(shown)} more (--json has them all)")
    return {
        each.name: {
            "mean": each.mean,
            "sd": each.sd,
            **{f"q{100 * level:02.0f}": value for level, value in zip(LEVELS, each.quantiles, strict=True)},
        }
        for each in found
    }


def show_diagnosis(talk: Session, found: relbo.Diagnosis, whole: bool = False) -> dict[str, Any]:
    """The verdict, which decides the exit code."""
    if whole:
        talk.say("\n".join(str(found).splitlines()[:-1]))
    talk.say(found.verdict, style=_STYLES.get(found.status, "bold red"))
    if found.status != "good":
        talk.code = BAD_VERDICT
    names = ("status", "verdict", "elbo", "gap", "log_z", "kl", "k_hat", "ess", "num_components", "stop_reason")
    return {name: getattr(found, name) for name in names}


def write_draws(path: pathlib.Path | None, draws: Any, first_index: int, as_netcdf: Any) -> None:
    """Draws by name, in the format of the file's name; as CSV on stdout if there is no file."""
    if path is None:
        print(_as_csv(draws, first_index, ","), end="")
        return
    writer = _WRITERS.get(path.suffix.lower())
    if writer is not None:
        writer(path, draws, first_index)
    elif path.suffix.lower() in (".nc", ".netcdf"):
        as_netcdf().to_netcdf(str(path))
    else:
        raise UsageError(f"draws are written as {', '.join(_WRITERS)} or .nc, got {path}.")


def _as_csv(draws: Any, first_index: int, delimiter: str) -> str:
    names, columns = named_columns(draws, first_index)
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[f"{value:.9g}" for value in row] for row in columns])
    return text.getvalue()


def _arrays(draws: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in named_leaves(draws)[0]}


def _write_npz(path: pathlib.Path, draws: Any, first_index: int) -> None:
    np.savez(path, **_arrays(draws))  # type: ignore[arg-type]


def _write_json(path: pathlib.Path, draws: Any, first_index: int) -> None:
    path.write_text(json.dumps(plain(_arrays(draws))))


def _write_parquet(path: pathlib.Path, draws: Any, first_index: int) -> None:
    parquet, arrow = require("pyarrow.parquet", extra="parquet"), require("pyarrow", extra="parquet")
    names, columns = named_columns(draws, first_index)
    parquet.write_table(arrow.table(dict(zip(names, columns.T, strict=True))), path)


_WRITERS = {
    ".csv": lambda path, draws, first: path.write_text(_as_csv(draws, first, ",")),
    ".tsv": lambda path, draws, first: path.write_text(_as_csv(draws, first, "\t")),
    ".json": _write_json,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}

"""The arguments and options that commands share."""

import pathlib
from typing import Annotated

import typer

MODEL_HELP = "FILE.py, FILE.py:NAME or FILE.stan. A Python file is executed: use only files you trust."

Fit = Annotated[pathlib.Path, typer.Argument(help="A fit, as written by relbo fit --out.", show_default=False)]
Model = Annotated[str, typer.Argument(metavar="FILE[:MODEL]", help=MODEL_HELP, show_default=False)]
MaybeModel = Annotated[str | None, typer.Argument(metavar="[FILE[:MODEL]]", help=MODEL_HELP, show_default=False)]
Data = Annotated[
    list[pathlib.Path] | None,
    typer.Option("--data", "-d", help="Data: CSV, TSV, JSON, npz, Parquet or NetCDF. May be repeated."),
]
Arg = Annotated[
    list[str] | None,
    typer.Option("--arg", "-a", metavar="NAME=COLUMNS", help="Columns for an argument: X=age,dose, y=outcome, N=8."),
]
Kind = Annotated[str | None, typer.Option(help="What the model is: numpyro, pymc, log-density. By default it is seen.")]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")]
Seed = Annotated[int, typer.Option(help="For random numbers.")]
Coordinator = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The first of several processes: the same for all of them.")
]
Processes = Annotated[int | None, typer.Option(min=1, help="How many processes make this fit together.")]
Process = Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0 on.")]
Detect = Annotated[bool, typer.Option("--distributed", help="Join the processes that SLURM, MPI or a TPU pod started.")]
LocalProcesses = Annotated[int | None, typer.Option(min=2, help="Start so many processes here, and fit with them.")]
Shard = Annotated[str | None, typer.Option(help="What processes divide: data or points. By default by size of data.")]
Out = Annotated[pathlib.Path | None, typer.Option("--out", "-o", help="Where to write.", show_default=False)]
NumDraws = Annotated[int, typer.Option("--num-draws", "-n", min=1, help="How many draws.")]
X64 = Annotated[bool, typer.Option("--x64", help="Compute in float64: for large or badly conditioned data.")]
Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep compiled programs in the user's cache folder.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors and warnings.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]

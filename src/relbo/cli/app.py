"""The commands: parse, call, print. What they do is in the modules of `cli`, each imported when it is first used."""

import pathlib
import sys
from typing import Annotated, Any

import typer

import relbo
from relbo import cli
from relbo.cli import options as o
from relbo.cli.session import session

_EPILOG = (
    "Exit codes: 0 good, 1 error, 2 wrong usage, 3 fitted but the verdict is bad (or a comparison found differences)."
)

app = typer.Typer(
    help="Boosted black-box variational inference: a posterior as a mixture, with a statement of how good it is.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"relbo {relbo.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _source(data, arg, kind, drop_missing) -> dict[str, Any]:
    return {"paths": data, "given": arg, "kind": kind, "drop_missing": drop_missing}


@app.command(epilog=_EPILOG)
def fit(
    model: o.Model,
    data: o.Data = None,
    *,
    arg: o.Arg = None,
    kind: o.Kind = None,
    drop_missing: o.DropMissing = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show how data meet the model, and stop.")] = False,
    out: Annotated[
        pathlib.Path | None, typer.Option("--out", "-o", help="The fit. By default FILE.relbo, in this folder.")
    ] = None,
    report: Annotated[pathlib.Path | None, typer.Option(help="An HTML page about the fit.")] = None,
    netcdf: Annotated[pathlib.Path | None, typer.Option(help="Draws for ArviZ.")] = None,
    checkpoint: Annotated[
        pathlib.Path | None, typer.Option(help="Written after every iteration; the same command goes on from there.")
    ] = None,
    seed: o.Seed = 0,
    max_components: Annotated[int, typer.Option(min=1, help="The most components of the mixture.")] = 32,
    max_evaluations: Annotated[int | None, typer.Option(min=1, help="The most evaluations of the log density.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop then, with what there is.")] = None,
    max_memory: Annotated[str | None, typer.Option(help='For evaluations, such as "500MB".')] = None,
    family: Annotated[
        str, typer.Option(help="Of the components: normal, student_t, mean_field_normal, ...")
    ] = "normal",
    step: Annotated[
        str, typer.Option(help="How weights change: fully_corrective, line_search, ...")
    ] = "fully_corrective",
    oracle: Annotated[str | None, typer.Option(help="How components are found: natural, gradient, ...")] = None,
    precondition: Annotated[str, typer.Option(help="Coordinates: affine, auto, flow, dense, diagonal, none.")] = "auto",
    refine: Annotated[bool, typer.Option(help="Whether all components are refined together.")] = True,
    num_draws: Annotated[int | None, typer.Option("--num-draws", "-n", min=100, help="Draws for the verdict.")] = None,
    coordinator: o.Coordinator = None,
    processes: o.Processes = None,
    process: o.Process = None,
    distributed: o.Detect = False,
    local_processes: o.LocalProcesses = None,
    shard: o.Shard = None,
    x64: o.X64 = False,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Fit a model to data. The model's Python file is executed: use only files you trust.

    relbo fit model.py --data data.csv --arg X=age,dose --arg y=outcome --report report.html
    """
    with session(as_json, quiet, debug) as talk:
        if local_processes is not None and not dry_run:
            talk.code = cli.together.run_locally(talk, local_processes, coordinator, sys.argv[1:])
            return
        shared = None if local_processes is not None else shard  # a dry run is made by one process
        crew = cli.together.Crew(coordinator, processes, process, distributed, shared)
        cli.work.prepare(talk, x64, cache)
        stem = pathlib.Path(model.partition(".py:")[0]).stem
        outputs = cli.fits.Outputs(out or pathlib.Path(f"{stem}.relbo"), report, netcdf, num_draws)
        settings: dict[str, Any] = {"seed": seed, "max_components": max_components, "family": family, "step": step}
        settings |= {"refine": refine, "precondition": precondition, "oracle": oracle, "max_memory": max_memory}
        settings |= {"checkpoint": checkpoint, "max_evaluations": max_evaluations, "max_seconds": max_seconds}
        given = _source(data, arg, kind, drop_missing)
        if dry_run:
            cli.fits.show(talk, model, given, outputs)
        else:
            cli.fits.fit(talk, model, given, outputs, settings, crew)


@app.command(epilog=_EPILOG)
def resume(
    path: Annotated[pathlib.Path, typer.Argument(metavar="FIT", help="A fit, or the checkpoint of one.")],
    model: o.Model,
    *,
    data: o.Data = None,
    arg: o.Arg = None,
    kind: o.Kind = None,
    drop_missing: o.DropMissing = False,
    out: Annotated[pathlib.Path | None, typer.Option("--out", "-o", help="The new fit. By default FIT itself.")] = None,
    report: Annotated[pathlib.Path | None, typer.Option(help="An HTML page about the fit.")] = None,
    netcdf: Annotated[pathlib.Path | None, typer.Option(help="Draws for ArviZ.")] = None,
    max_components: Annotated[
        int, typer.Option(min=0, help="The most components. By default 32, or twice as many as there are.")
    ] = 0,
    num_draws: Annotated[int | None, typer.Option("--num-draws", "-n", min=100, help="Draws for the verdict.")] = None,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Go on with a fit: a checkpoint from where it was stopped, a finished fit with more components.

    A file holds no model, so the model's file and its data are given again. The file is executed.
    """
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        outputs = cli.fits.Outputs(out or cli.fits.beside(path), report, netcdf, num_draws)
        cli.fits.resume(talk, path, model, _source(data, arg, kind, drop_missing), outputs, max_components)


@app.command(epilog=_EPILOG)
def diagnose(
    path: o.Fit,
    *,
    model: o.MaybeModel = None,
    data: o.Data = None,
    arg: o.Arg = None,
    kind: o.Kind = None,
    drop_missing: o.DropMissing = False,
    num_draws: Annotated[int | None, typer.Option("--num-draws", "-n", min=100, help="How many draws.")] = None,
    seed: o.Seed = 0,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Say how good a fit is. Without the model by the draws in the file, with it (it is executed) by fresh ones."""
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        posterior = cli.looks.load_with_model(path, model, _source(data, arg, kind, drop_missing))
        cli.looks.diagnose(talk, posterior, num_draws, seed)


@app.command(epilog=_EPILOG)
def summary(
    path: o.Fit,
    *,
    num_draws: o.NumDraws = 2000,
    seed: o.Seed = 0,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Show the parameters of a fit: means with errors, standard deviations, quantiles."""
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        cli.looks.summary(talk, path, num_draws, seed)


@app.command(epilog=_EPILOG)
def sample(
    path: o.Fit,
    *,
    model: o.MaybeModel = None,
    data: o.Data = None,
    arg: o.Arg = None,
    kind: o.Kind = None,
    drop_missing: o.DropMissing = False,
    num_draws: o.NumDraws = 1000,
    seed: o.Seed = 0,
    out: o.Out = None,
    resample: Annotated[bool, typer.Option("--resample", help="By importance weights; needs the model.")] = False,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Draw from a fit: CSV on stdout, or CSV, TSV, JSON, npz, Parquet or NetCDF in a file."""
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        posterior = cli.looks.load_with_model(path, model, _source(data, arg, kind, drop_missing))
        cli.looks.sample(talk, posterior, num_draws, seed, out, resample)


@app.command(epilog=_EPILOG)
def predict(
    path: o.Fit,
    *,
    model: o.Model,
    data: o.Data = None,
    new: Annotated[
        list[pathlib.Path] | None, typer.Option(help="New data to predict at. By default the fit's.")
    ] = None,
    arg: o.Arg = None,
    kind: o.Kind = None,
    drop_missing: o.DropMissing = False,
    num_draws: o.NumDraws = 1000,
    seed: o.Seed = 0,
    out: o.Out = None,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Draw new observations from a fit. The model's file (executed) and the data it was fitted to are given again."""
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        source, draws = _source(data, arg, kind, drop_missing), {"num_draws": num_draws, "seed": seed, "out": out}
        cli.looks.predict(talk, path, model, source, new or [], **draws)


@app.command(epilog=_EPILOG)
def compare(
    one: o.Fit,
    other: Annotated[pathlib.Path, typer.Argument(help="Another fit, or a NetCDF file of draws (NUTS, say).")],
    *,
    num_draws: Annotated[int | None, typer.Option("--num-draws", "-n", min=100, help="How many draws.")] = None,
    seed: o.Seed = 0,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Measure a fit against another one or against reference draws, chance told apart from error."""
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        cli.looks.compare(talk, one, other, num_draws, seed)


@app.command(epilog=_EPILOG)
def report(
    path: o.Fit,
    *,
    model: o.MaybeModel = None,
    data: o.Data = None,
    arg: o.Arg = None,
    kind: o.Kind = None,
    drop_missing: o.DropMissing = False,
    out: Annotated[pathlib.Path | None, typer.Option("--out", "-o", help="By default FIT.html.")] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    cache: o.Cache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Write one HTML page about a fit: verdict, parameters, pictures, diagnostics. It needs no network."""
    with session(as_json, quiet, debug) as talk:
        cli.work.prepare(talk, False, cache)
        posterior = cli.looks.load_with_model(path, model, _source(data, arg, kind, drop_missing))
        cli.looks.report(talk, posterior, out or path.with_suffix(".html"), title)


@app.command(epilog=_EPILOG)
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, all by default: figure1, theory, ...")] = None,
    *,
    data: Annotated[pathlib.Path | None, typer.Option(help="The folder with the data files.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Small, on embedded data: a check that all runs.")] = False,
    out: Annotated[pathlib.Path | None, typer.Option("--out", "-o", help="Where to write.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the finished pieces of an earlier run.")] = False,
    debug: o.Debug = False,
) -> None:
    """Rerun the paper's experiments, in a clone of relbo's repository."""
    with session(False, False, debug) as talk:
        given = {"--data": data, "--seeds": seeds, "--out": out}
        options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
        cli.doctor.reproduce(
            talk, names or [], [*options, *(["--quick"] if fast else []), *(["--fresh"] if fresh else [])]
        )


@app.command(epilog=_EPILOG)
def doctor(as_json: o.Json = False, quiet: o.Quiet = False, debug: o.Debug = False) -> None:
    """Show versions, devices, compiler and cache, and whether a fit can run here."""
    with session(as_json, quiet, debug) as talk:
        cli.doctor.doctor(talk)

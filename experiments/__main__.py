"""`python -m experiments NAME ...`: parse, run, write. No mathematics here."""

import argparse
import pathlib
import sys
import time
import traceback
from collections.abc import Sequence

import matplotlib

from experiments.registry import EXPERIMENTS
from experiments.report import Options
from experiments.runs import Runs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Rerun the paper's experiments.")
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=_existing, help="folder with the data files, or the one file")
    parser.add_argument("--seeds", type=_positive, help="how many seeds (each experiment has its own default)")
    parser.add_argument("--quick", action="store_true", help="small, on embedded data: a check that everything runs")
    parser.add_argument("--out", type=pathlib.Path, default=Options.out, help=f"where to write ({Options.out})")
    parser.add_argument("--fresh", action="store_true", help="forget the finished pieces of an earlier run")
    given = parser.parse_args(arguments)
    matplotlib.use("agg")
    options = Options(given.data, given.seeds, given.quick, given.out)
    names = list(EXPERIMENTS) if "all" in given.names else given.names
    idle = [name for name in given.names if name != "all" and not EXPERIMENTS[name].files]
    if given.data is not None and idle:
        parser.error(f"--data: {', '.join(idle)} reads no data. Leave it out.")
    print(announcement(names, options), flush=True)
    if len(names) == 1:
        _run(names[0], options, given.fresh)
        return 0
    failed = []
    for number, name in enumerate(names, 1):
        print(f"[{number} of {len(names)}]", flush=True)
        try:
            _run(name, options, given.fresh)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all done", flush=True)
    return 1 if failed else 0


def announcement(names: Sequence[str], options: Options) -> str:
    """How long it will take, before it begins."""
    if options.quick:
        return f"Quick: {len(names)} experiments, each under two minutes on two cores; what comes out is no result."
    each = ", ".join(f"{name} {EXPERIMENTS[name].minutes:.0f}" for name in names)
    total = sum(EXPERIMENTS[name].minutes for name in names)
    seeds = f" with the default number of seeds ({options.seeds} were asked for)" if options.seeds else ""
    return (
        f"About {total:.0f} CPU minutes of one core{seeds}: {each}. Every finished piece is kept in {options.out}: the "
        "same command goes on where it was stopped."
    )


def _run(name: str, options: Options, fresh: bool) -> None:
    begun = time.perf_counter()
    print(f"{name} ...", flush=True)
    experiment = EXPERIMENTS[name]
    runs = Runs(options.out / f"{name}{'.quick' if options.quick else ''}.runs.jsonl", experiment.computes, fresh=fresh)
    report = experiment.function()(options, runs)
    about = {"code": runs.code, "versions": runs.versions, "cpu_seconds": round(runs.cpu_seconds)}
    paths = report.write(name, options, about)
    print(report.markdown(options.quick))
    print(f"{name}: {time.perf_counter() - begun:.0f} s; wrote {', '.join(map(str, paths))}", flush=True)


def _existing(text: str) -> pathlib.Path:
    path = pathlib.Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file or folder {text!r}")
    return path


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())

"""Models as a new user writes them, through their doors at default settings, against long NUTS. Run by `make doors`.

    python benchmarks/doors.py [--only NAME ...] [--again] [--references] [--work FOLDER]

Every model is fitted in a process of its own; a finished one is a file in the folder `--work`, and the next call goes
on from there (`--again` fits anew). References are files in `unseen/references`, made where they are missing (long). Of
each fit: the largest error of a mean, in standard deviations, and of a standard deviation, in per cent, of
the draws as the verdict of `relbo.diagnose` says to take them (after "usable after importance resampling", those of
`relbo.resample`); the verdict; and the CPU seconds of target, fit and diagnosis.

The bars: no verdict is contradicted by the reference, and at least 80 % are "good" or "usable after resampling", and
then right within 0.1 sd and 10 %, beyond twice the standard errors of draws and reference. A bar that fails: exit 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
USABLE = ("good", "resample")
MOST_MEAN, MOST_SD = 0.1, 0.1
LEAST_USABLE = 0.8
MAX_SECONDS = 3600


def main() -> int:
    from unseen import CASES, reference_path

    options = parse_options(list(CASES))
    chosen = {name: CASES[name] for name in options.only or CASES}
    rows: list[dict] = []
    missing = [name for name in chosen if not reference_path(name).is_file()]
    if missing:
        subprocess.run([sys.executable, str(HERE / "doors_cell.py"), "reference", *missing], check=True)
    if options.references:
        return 0
    print(f"{'model':18}{'door':10}{'d':>3}{'mean err':>10}{'sd err':>8}  {'verdict':16}{'CPU s':>6}", flush=True)
    for name, case in chosen.items():
        out = options.work / f"{name.replace(' ', '_')}.json"
        if options.again or not out.is_file():
            fit(name, out)
        rows.append(json.loads(out.read_text()))
        print(line(name, case.door, rows[-1]), flush=True)
    return report(rows)


def parse_options(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="fit also what is there already")
    parser.add_argument("--references", action="store_true", help="only make the references that are missing")
    parser.add_argument("--work", type=Path, default=HERE / "output" / "doors", help="the folder of finished fits")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def fit(name: str, out: Path) -> None:
    """In a fresh process; a fit that fails is a row that says so."""
    with tempfile.TemporaryDirectory() as scratch:
        caches = {"PYTENSOR_FLAGS": f"base_compiledir={scratch}/pytensor", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, str(HERE / "doors_cell.py"), "fit", name, str(out)]
        try:
            done = subprocess.run(
                command, env=os.environ | caches, stderr=subprocess.PIPE, text=True, timeout=MAX_SECONDS
            )
            said = [text for text in done.stderr.splitlines() if text.strip()]
        except subprocess.TimeoutExpired:
            said = [f"no end after {MAX_SECONDS} s"]
    if not out.is_file():
        out.write_text(json.dumps({"failed": said[-1][:300] if said else "no result"}))


def line(name: str, door: str, row: dict) -> str:
    if "failed" in row:
        return f"{name:18}{door:10} failed: {row['failed']}"
    words = row["status"] + ("" if truthful(row) else " (WRONG)")
    errors = f"{row['mean_error']:10.3f}{row['sd_error']:8.1%}"
    return f"{name:18}{door:10}{row['dim']:3}{errors}  {words:16}{row['cpu_seconds']:6.0f}  {row['worst']}"


def truthful(row: dict) -> bool:
    """A verdict that promises the moments has to keep them; one that promises nothing cannot be wrong about them."""
    return row["status"] not in USABLE or (row["mean_excess"] <= MOST_MEAN and row["sd_excess"] <= MOST_SD)


def report(rows: list[dict]) -> int:
    fits = [row for row in rows if "failed" not in row]
    usable = [row for row in fits if row["status"] in USABLE and truthful(row)]
    wrong = [row for row in fits if not truthful(row)]
    share = len(usable) / max(1, len(rows))
    print(f"{len(usable)} of {len(rows)} usable and right ({share:.0%}, the bar is {LEAST_USABLE:.0%})")
    print(f"{len(wrong)} verdicts contradicted by the reference, {len(rows) - len(fits)} fits failed")
    return int(bool(wrong) or share < LEAST_USABLE)


if __name__ == "__main__":
    sys.exit(main())

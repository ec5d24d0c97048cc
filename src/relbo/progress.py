"""A progress display for a terminal; silent everywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from relbo.trace import Record

_ROWS = 8


@contextmanager
def progress(wanted: bool) -> Iterator[Callable[[Record], None]]:
    """A function to call with every record; it redraws a small table on a terminal, and does nothing otherwise."""
    if not wanted or not sys.stderr.isatty():
        yield lambda record: None
        return
    begun = time.perf_counter()
    records: list[Record] = []
    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        live.update(_table(records, 0.0), refresh=True)

        def report(record: Record) -> None:
            records.append(record)
            live.update(_table(records, time.perf_counter() - begun), refresh=True)

        yield report
    if records:
        console = Console(stderr=True, highlight=False)
        console.print(summary(records))


def summary(records: list[Record]) -> str:
    """What a fit cost, in a line."""
    seconds, compiling = sum(r.seconds for r in records), sum(r.compile_seconds for r in records)
    evaluations, last = sum(r.evaluations for r in records), records[-1]
    return (
        f"ELBO {last.elbo}, {last.num_components} component{'s' if last.num_components > 1 else ''}: {seconds:.1f} s, "
        f"{compiling:.1f} of them compiling; {evaluations:,} evaluations{_each(seconds - compiling, evaluations)}"
    )


def _each(seconds: float, evaluations: int) -> str:
    """How long an evaluation took, with everything that was done between them."""
    if not evaluations:
        return ""
    each = max(seconds, 0.0) / evaluations
    return f", {each:.2g} s each" if each >= 0.1 else f", {1e3 * each:.2g} ms each"


def _table(records: list[Record], seconds: float) -> Table:
    title = "fitting: compiling, whitening, first component"
    if records:
        evaluations, compiling = sum(r.evaluations for r in records), sum(r.compile_seconds for r in records)
        title = f"fitting: {seconds:.1f} s, {evaluations:,} evaluations{_each(seconds - compiling, evaluations)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("iteration", "components", "ELBO", "gap", "step"):
        table.add_column(name, justify="right")
    for record in records[-_ROWS:]:
        kind = record.kind if record.accepted else f"{record.kind}, rejected"
        gap = "" if record.gap is None else str(record.gap)
        table.add_row(str(record.iteration), str(record.num_components), str(record.elbo), gap, kind)
    return table


@contextmanager
def count_up(wanted: bool, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call when one of `total` things is done, with the number of failures so far."""
    if not wanted or not sys.stderr.isatty():
        yield lambda failures: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[failures]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, failures="")

        def report(failures: int) -> None:
            bar.update(task, advance=1, failures=f"{failures} failed" if failures else "")

        yield report

"""What a long computation is doing: a live table in a terminal or a notebook, and a line now and then elsewhere.

All of it goes to stderr (or to the notebook's cell). In a terminal rich redraws a few times a second in a thread of
its own, so that the clock runs while XLA compiles; where there is no terminal, as in a log, a thread writes a line
every ten seconds, so that a short fit says nothing. What is shown is read from a `Progress`, which costs a few
assignments an evaluation.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.runtime.compiling import is_compiling
from relbo.runtime.tables import html_line, html_table

LINE_SECONDS = 10.0
"""From one line of a log to the next."""
_ROWS = 8  # iterations, the last ones
_REFRESHES = 4  # a second
_NOTEBOOK_SECONDS = 0.5  # a notebook draws its output anew each time
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 24  # so that the line fits beside its labels
_FIRST = ("refinement", "proposals", "measuring")
"""Purposes of evaluations that come after the coordinates are found, in the first iteration."""


class Progress:
    """What is known of a fit in progress. It is called with every record."""

    def __init__(self):
        self.begun = time.perf_counter()
        self.records: list[Record] = []
        self.polishing = False
        self.purpose = ""
        self.num_now = 0
        """Evaluations of the iteration that is going on."""
        self.changed: Callable[[], None] = _nothing

    def __call__(self, record: Record) -> None:
        self.records.append(record)
        self.purpose, self.num_now = "", 0
        self.changed()

    def watching(self, watch: Callable[[int], None]) -> Callable[[int, str], None]:
        """`watch`, told of every evaluation that is about to be made; what it allows is counted here."""

        def tell(num: int, purpose: str) -> None:
            watch(num)
            self.purpose = purpose
            self.num_now += num
            self.changed()

        return tell

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    @property
    def evaluations(self) -> int:
        return sum(record.evaluations for record in self.records) + self.num_now

    @property
    def phase(self) -> str:
        """What is going on, in a word or two."""
        if is_compiling():
            return "compiling"
        if self.polishing:
            return "polishing"
        if not self.records:
            return "first component" if self.purpose in _FIRST else "finding coordinates"
        return {"walks": "looking for modes", "flow": "learning coordinates"}.get(self.purpose, "boosting")


@contextmanager
def progress(wanted: bool) -> Iterator[Progress]:
    """A fit's progress, shown in the way of the place where it runs."""
    state = Progress()
    with _shown(state, wanted):
        yield state


def _shown(state: Progress, wanted: bool):
    if not wanted:
        return _silent()
    console = Console(stderr=True, highlight=False)
    if console.is_jupyter:
        return _in_notebook(state)
    return _in_terminal(state, console) if _is_terminal(console) else _in_lines(state)


def _is_terminal(console: Console) -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and not console.is_dumb_terminal


@contextmanager
def _silent() -> Iterator[None]:
    yield


@contextmanager
def _in_terminal(state: Progress, console: Console) -> Iterator[None]:
    bars = _can_write(_BARS, console.encoding)
    with Live(
        console=console, get_renderable=lambda: _live(state, bars), refresh_per_second=_REFRESHES, transient=True
    ):
        yield
    if state.records:
        console.print(Text(summary(state.records)))


@contextmanager
def _in_lines(state: Progress) -> Iterator[None]:
    with every(LINE_SECONDS, lambda: _write(line(state))) as ticks:
        yield
    if ticks.num and state.records:
        _write(summary(state.records))


@contextmanager
def _in_notebook(state: Progress) -> Iterator[None]:
    """A table in the cell, redrawn from the fit's own thread: a kernel may send what other threads show elsewhere."""
    from IPython.display import display

    handle, last = display(_Cell(state), display_id=True), time.perf_counter()

    def redraw() -> None:
        nonlocal last
        if time.perf_counter() - last > _NOTEBOOK_SECONDS:
            last = time.perf_counter()
            handle.update(_Cell(state))

    state.changed = redraw
    try:
        yield
    finally:
        state.changed = _nothing
        handle.update(_Cell(state, done=True))


class _Cell:
    """What a notebook shows: HTML, or a line of text where it cannot."""

    def __init__(self, state: Progress, done: bool = False):
        self.text = summary(state.records) if done and state.records else line(state)
        bars = sparkline([record.elbo for record in state.records])
        rows = [_cells(record) for record in state.records[-_ROWS:]]
        self.html = html_line(f"{self.text} {bars}") + ("" if done else html_table(_HEADING, rows))

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


class Ticks:
    """How often something was done."""

    num = 0


@contextmanager
def every(seconds: float, action: Callable[[], None]) -> Iterator[Ticks]:
    """Inside, `action` is called every so many seconds, by a thread that ends with the block."""
    ended, ticks = threading.Event(), Ticks()

    def run() -> None:
        while not ended.wait(seconds):
            ticks.num += 1
            action()

    thread = threading.Thread(target=run, name="relbo progress", daemon=True)
    thread.start()
    try:
        yield ticks
    finally:
        ended.set()
        thread.join()


def line(state: Progress) -> str:
    """All that is known, in one line of text."""
    words = [f"{state.seconds:.0f} s", state.phase]
    if state.records:
        last = state.records[-1]
        words += [f"iteration {last.iteration}", _components(last), f"ELBO {last.elbo}"]
        words += [f"gap {last.gap}"] if last.gap is not None else []
    return ", ".join([*words, f"{state.evaluations:,} evaluations"])


def summary(records: list[Record]) -> str:
    """What a fit cost, in a line."""
    seconds, compiling = sum(r.seconds for r in records), sum(r.compile_seconds for r in records)
    evaluations, last = sum(r.evaluations for r in records), records[-1]
    return (
        f"ELBO {last.elbo}, {_components(last)}: {seconds:.1f} s, {compiling:.1f} of them compiling; "
        f"{evaluations:,} evaluations{_each(seconds - compiling, evaluations)}"
    )


def _each(seconds: float, evaluations: int) -> str:
    """How long an evaluation took, with everything that was done between them."""
    if not evaluations:
        return ""
    each = max(seconds, 0.0) / evaluations
    return f", {each:.2g} s each" if each >= 0.1 else f", {1e3 * each:.2g} ms each"


def sparkline(values: Sequence[Estimate]) -> str:
    """The last estimates as bars, the lowest of them the lowest bar and the highest the highest."""
    heights = [float(estimate.value) for estimate in values[-_MOST_BARS:]]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    if not high > low:
        return _BARS[-1] * len(heights)
    return "".join(_BARS[round((height - low) / (high - low) * (len(_BARS) - 1))] for height in heights)


_HEADING = ("iteration", "components", "ELBO", "gap", "step")


def _live(state: Progress, bars: bool) -> Group:
    above = f"{state.phase}  {state.seconds:.0f} s  {state.evaluations:,} evaluations"
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for name in _HEADING:
        shown.add_column(name, justify="right")
    for record in state.records[-_ROWS:]:
        shown.add_row(*_cells(record))
    lines: list[Any] = [Text(above, style="bold")]
    if state.records:
        lines.append(shown)
    if bars and len(state.records) > 1:
        lines.append(Text(f"ELBO {sparkline([record.elbo for record in state.records])}", style="cyan"))
    return Group(*lines)


def _cells(record: Record) -> tuple[str, ...]:
    kind = record.kind if record.accepted else f"{record.kind}, rejected"
    gap = "" if record.gap is None else str(record.gap)
    return str(record.iteration), str(record.num_components), str(record.elbo), gap, kind


def _components(record: Record) -> str:
    return f"{record.num_components} component{'s' if record.num_components > 1 else ''}"


def _can_write(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(text: str) -> None:
    """A line of a log; one that cannot be written (stderr was closed) costs nobody a fit."""
    with suppress(OSError, ValueError):
        print(f"relbo: {text}", file=sys.stderr or sys.__stderr__, flush=True)


def _nothing() -> None:
    pass


@contextmanager
def count_up(wanted: bool, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call when one of `total` things is done, with the number of failures so far."""
    console = Console(stderr=True)
    if not wanted:
        yield lambda failures: None
    elif _is_terminal(console):
        with _counting_bar(console, what, total) as report:
            yield report
    else:
        with _counting_lines(what, total) as report:
            yield report


@contextmanager
def _counting_bar(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[failures]}"),
    )  # fmt: skip
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(what, total=total, failures="")

        def report(failures: int) -> None:
            bar.update(task, advance=1, failures=f"{failures} failed" if failures else "")

        yield report


@contextmanager
def _counting_lines(what: str, total: int) -> Iterator[Callable[[int], None]]:
    num_done, num_failed, begun = 0, 0, time.perf_counter()

    def report(failures: int) -> None:
        nonlocal num_done, num_failed
        num_done, num_failed = num_done + 1, failures

    def write() -> None:
        failed = f", {num_failed} failed" if num_failed else ""
        seconds = time.perf_counter() - begun
        _write(f"{what}, {num_done} of {total}{failed}, {seconds:.0f} s")

    with every(LINE_SECONDS, write):
        yield report

"""How good is a fit at default settings? Every anchor target, several seeds, bars that must hold.

Every fit is cold: the persistent compilation cache is off and `jax.clear_caches()` runs before each, so that every seed
pays for its own compilation, as the first fit of a user's session does. Compile seconds are the union of JAX's own
time spans for tracing, lowering and compiling (a union, because a program compiled while another is traced would
count twice in a sum); run seconds are the rest of the wall clock. Run by `make quality`; benchmarks/README.md says
how to read it. Exits with 1 if a bar fails.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import relbo
import targets
from clock import CompileClock
from targets import MissingData, Problem

NUM_DRAWS = 50_000
MAX_SECONDS = 120.0
ONE_NORMAL_KL = 0.233
"""KL of the best single normal to the two modes."""
MIN_MODE_WEIGHT = 0.01
VARIANTS = ("fixed", "line_search", "fully_corrective")


@dataclass(frozen=True)
class Bar:
    """What a row must reach: a KL in the median over seeds; in every fit the time, and where known modes and mass."""

    kl: float
    seconds: float = MAX_SECONDS
    modes: int | None = None
    mass_error: float | None = None

    def failures(self, results: "list[Result]") -> list[str]:
        """What was missed; nothing if the row passes. NaN fails."""
        checks = {
            "KL": median(results, "kl") <= self.kl,
            "time": max(r.compile_seconds + r.run_seconds for r in results) <= self.seconds,
            "modes": self.modes is None or min(r.modes_found for r in results) >= self.modes,
            "mass": self.mass_error is None or max(r.mass_error for r in results) <= self.mass_error,
        }
        return [name for name, holds in checks.items() if not holds]

    def __str__(self) -> str:
        modes = "" if self.modes is None else f", {self.modes} modes"
        mass = "" if self.mass_error is None else f", mass within {self.mass_error:g}"
        return f"KL <= {self.kl:.3g}{modes}{mass}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class Result:
    """One fit, measured on fresh draws."""

    name: str
    seed: int
    kl: float
    kl_std_err: float
    k_hat: float
    gap: float
    gap_std_err: float
    components: int
    evaluations: int
    compile_seconds: float
    run_seconds: float
    stop_reason: str
    modes_found: int | None = None
    mass_error: float | None = None
    """|P(z < 0) under q less that under p|."""


@dataclass(frozen=True)
class Row:
    """Fits of one problem with the same settings."""

    name: str
    make: Callable[[], Problem]
    bar: Bar
    settings: dict


def rows(german: str | None) -> list[Row]:
    """The anchors at default settings, and the paper's variants on the paper's example."""
    paper_bar = Bar(kl=ONE_NORMAL_KL / 3, mass_error=0.1)
    return [
        Row("two_modes", targets.two_modes, Bar(0.002), {}),
        Row("banana", targets.banana, Bar(0.03), {}),
        Row("funnel", targets.funnel, Bar(0.15), {}),
        Row("ten_normals", targets.ten_normals, Bar(0.10, modes=10), {}),
        Row("german_credit", lambda: targets.german_credit(german), Bar(0.015), {}),
        Row("breast_cancer", targets.breast_cancer, Bar(0.90), {}),
        *(Row(f"paper_{variant}", targets.two_modes, paper_bar, relbo.paper(variant)) for variant in VARIANTS),
    ]


def main() -> int:
    options = parse_options()
    jax.config.update("jax_enable_x64", options.x64)
    jax.config.update("jax_enable_compilation_cache", False)
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    chosen = [row for row in rows(options.german) if options.only is None or row.name.startswith(options.only)]
    if not chosen:
        names = ", ".join(row.name for row in rows(None))
        console.print(f"No row is called {options.only}. Choose one of {names}, or the beginning of one.")
        return 2
    measured = [(row, results) for row in chosen if (results := measure_row(row, options.seeds))]
    for row, results in measured:
        console.print(row_table(row, results))
    if measured:
        console.print(summary_table(measured))
    if options.json is not None:
        raw = [asdict(result) for _, results in measured for result in results]
        options.json.write_text(json.dumps(raw, indent=1))
    return int(any(row.bar.failures(results) for row, results in measured))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="the rows whose name begins so, such as banana or paper")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 .. N-1 (default 3)")
    parser.add_argument("--x64", action="store_true", help="in double precision")
    parser.add_argument(
        "--german", metavar="PATH", help=f"npz with the German credit data (or {targets.GERMAN_VARIABLE})"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the raw results")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    return options


# Measuring


def measure_row(row: Row, num_seeds: int) -> list[Result]:
    """A result for each seed; none, with a note, where the data are missing."""
    try:
        problem = row.make()
    except MissingData as missing:
        print(f"{row.name}: skipped, {missing}", flush=True)
        return []
    results = []
    for seed in range(num_seeds):
        results.append(measure_fit(row, problem, seed))
        print(f"{row.name}, seed {seed}: {one_line(results[-1])}", flush=True)
    return results


def measure_fit(row: Row, problem: Problem, seed: int) -> Result:
    jax.clear_caches()
    with CompileClock() as clock:
        begun = time.perf_counter()
        posterior = relbo.fit(problem.target, seed=seed, progress_bar=False, **row.settings)
        jax.block_until_ready(posterior.mixture)
        seconds = time.perf_counter() - begun
    diagnosis = relbo.diagnose(posterior, num_draws=NUM_DRAWS, seed=seed + 1000)
    return Result(
        name=row.name,
        seed=seed,
        kl=problem.log_z - diagnosis.elbo.value,
        kl_std_err=diagnosis.elbo.std_err,
        k_hat=diagnosis.k_hat,
        gap=diagnosis.gap.value,
        gap_std_err=diagnosis.gap.std_err,
        components=posterior.num_components,
        evaluations=posterior.num_evaluations,
        compile_seconds=clock.seconds,
        run_seconds=seconds - clock.seconds,
        stop_reason=posterior.stop_reason,
        modes_found=None if row.bar.modes is None else count_modes(posterior, problem),
        mass_error=None if row.bar.mass_error is None else mass_error(posterior, problem),
    )


def count_modes(posterior: relbo.Posterior, problem: Problem) -> int:
    """Modes with a component of weight 0.01 or more within Mahalanobis distance sqrt(dim), by the mode's covariance."""
    heavy = posterior.locations[posterior.weights >= MIN_MODE_WEIGHT].astype(np.float64)
    offsets = heavy[None] - problem.extras["means"][:, None]
    squared = np.einsum("mki,mij,mkj->mk", offsets, np.linalg.inv(problem.extras["covariances"]), offsets)
    return int((squared <= posterior.dim).any(axis=1).sum())


def mass_error(posterior: relbo.Posterior, problem: Problem) -> float:
    """|P(z < 0) under q less that under p|, both by quadrature on the same grid."""
    width = 1e-3
    grid = (-np.arange(30_000) - 0.5)[:, None] * width
    log_p = jax.vmap(problem.target.log_density)(grid)
    return abs(float((np.exp(posterior.log_prob(grid)) - np.exp(log_p)).sum(dtype=np.float64) * width))


# Showing


def median(results: list[Result], field: str) -> float:
    return float(np.median([getattr(result, field) for result in results]))


def with_error(value: float, std_err: float) -> str:
    return str(relbo.Estimate(value, std_err, NUM_DRAWS))


CELLS: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "log Z - ELBO": (("kl", "kl_std_err"), with_error),
    "k-hat": (("k_hat",), "{:.2f}".format),
    "gap": (("gap", "gap_std_err"), with_error),
    "components": (("components",), "{:.0f}".format),
    "evaluations": (("evaluations",), "{:.2e}".format),
    "compile s": (("compile_seconds",), "{:.1f}".format),
    "run s": (("run_seconds",), "{:.1f}".format),
    "modes": (("modes_found",), "{:.0f}".format),
    "mass error": (("mass_error",), "{:.3f}".format),
}
"""Columns: the fields of a result, and how to write them."""


def present(column: str, results: list[Result]) -> bool:
    return getattr(results[0], CELLS[column][0][0]) is not None


def cells(results: list[Result], columns: list[str]) -> list[str]:
    """The medians over results, written out; of one result, its numbers."""
    return [
        CELLS[column][1](*(median(results, field) for field in CELLS[column][0])) if present(column, results) else ""
        for column in columns
    ]


def one_line(result: Result) -> str:
    columns = [column for column in CELLS if present(column, [result])]
    return ", ".join(f"{column} {cell}" for column, cell in zip(columns, cells([result], columns), strict=True))


def row_table(row: Row, results: list[Result]) -> Table:
    """One row for each seed, and why the fit stopped."""
    columns = [column for column in CELLS if present(column, results)]
    table = make_table(row.name, ["seed", *columns], ["stopped because"])
    for result in results:
        table.add_row(str(result.seed), *cells([result], columns), result.stop_reason)
    return table


def summary_table(measured: list[tuple[Row, list[Result]]]) -> Table:
    """One row for each target: medians over seeds, the bar, and whether it holds."""
    columns = [column for column in CELLS if any(present(column, results) for _, results in measured)]
    table = make_table("Medians over seeds", columns, ["bar", "verdict"], first="target")
    for row, results in measured:
        failures = row.bar.failures(results)
        verdict = f"FAIL: {', '.join(failures)}" if failures else "pass"
        table.add_row(row.name, *cells(results, columns), str(row.bar), verdict)
    return table


def make_table(title: str, right: list[str], left: list[str], first: str | None = None) -> Table:
    """An empty table: perhaps a first column, then those aligned right, then those aligned left."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1))
    if first is not None:
        table.add_column(first, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right")
    for column in left:
        table.add_column(column)
    return table


if __name__ == "__main__":
    sys.exit(main())

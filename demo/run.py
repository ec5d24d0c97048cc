"""relbo in a minute: a posterior of two crescents whose answer is known, eight schools, and a report page.

Run by `make demo`. Leaves a picture, a report and a saved fit in demo/output.
"""

import pathlib
import sys
import time

import numpy as np
import numpyro
import numpyro.distributions as dist
import two_masts
from rich import box
from rich.console import Console
from rich.table import Table

import relbo

OUTPUT = pathlib.Path(__file__).parent / "output"
NUM_DRAWS = 4000

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    begun = time.perf_counter()
    OUTPUT.mkdir(exist_ok=True)
    show_two_masts(console)
    show_schools(console)
    console.print(f"Done in {time.perf_counter() - begun:.0f} s, compilation included.")


# Two masts


def show_two_masts(console: Console) -> None:
    console.print("[bold]Two masts measure how far away a phone is: it may be in two places.[/bold]")
    target = two_masts.make_target()
    exact, fits = two_masts.truth(target), two_masts.fit_both(target)
    console.print(masts_table(exact, fits))
    path = OUTPUT / "two_masts.png"
    two_masts.draw(exact, fits, path)
    console.print(f"Picture: {shown(path)}\n")


def masts_table(exact: two_masts.Truth, fits: dict[str, relbo.Posterior]) -> Table:
    """One row for each fit, beside what the grid knows."""
    table = Table(box=box.SIMPLE)
    for name in ("", "components", "KL to the posterior", f"P(north), {exact.north:.3f} by a grid", "seconds"):
        table.add_column(name, justify="right" if name else "left")
    for name, posterior in fits.items():
        north = float(np.mean(posterior.sample(NUM_DRAWS, seed=1)["place"][:, 1] > 0))
        kl = two_masts.divergence(exact, posterior)
        table.add_row(name, str(posterior.num_components), f"{kl:.4f}", f"{north:.3f}", f"{posterior.seconds:.1f}")
    return table


# Eight schools


def eight_schools(errors, effects=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)


def show_schools(console: Console) -> None:
    console.print("[bold]Eight schools, centred: a funnel in ten dimensions, from a NumPyro model.[/bold]")
    target = relbo.from_numpyro(eight_schools, ERRORS, effects=EFFECTS)
    posterior = relbo.fit(target, seed=0, progress_bar=False)
    console.print(schools_table(posterior.sample(NUM_DRAWS, seed=1)))
    console.print(relbo.diagnose(posterior).verdict)
    relbo.save(posterior, OUTPUT / "schools.relbo")
    relbo.report(posterior, OUTPUT / "report.html")
    console.print(f"Saved fit: {shown(OUTPUT / 'schools.relbo')}\nReport page: {shown(OUTPUT / 'report.html')}\n")


def schools_table(draws: dict[str, np.ndarray]) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("", "mean", "sd", "5 %", "95 %"):
        table.add_column(name, justify="right" if name else "left")
    for name in ("mu", "tau", "theta"):
        for index, values in enumerate(np.atleast_2d(draws[name].T)):
            label = f"{name}[{index}]" if draws[name].ndim > 1 else name
            low, high = np.quantile(values, [0.05, 0.95])
            table.add_row(label, *(f"{number:.1f}" for number in (values.mean(), values.std(), low, high)))
    return table


def shown(path: pathlib.Path) -> str:
    """Relative to where the user stands, if it is below."""
    here = pathlib.Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


if __name__ == "__main__":
    main()

"""The `relbo` command in a pseudo-terminal: every command, exit codes, JSON, and what it says of bad input."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from terminal import run_commands, run_in_terminal

LINE = """
import numpyro
import numpyro.distributions as dist


def model(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(intercept + slope * x, 1.0), obs=y)
"""

FUNNEL = """
import jax.numpy as jnp

example = {"v": 0.0, "w": 0.0}


def log_density(params):
    v, w = params["v"], params["w"]
    return -v**2 / 18 - 0.5 * w**2 * jnp.exp(-v) - 0.5 * v
"""

BROKEN = "import numpyro\n\nnumbers = [1, 2][5]\n"

FAILING = """
example = {"v": 0.0}


def log_density(params):
    return nothing(params["v"])
"""

LEAN = ["--precondition", "none", "--no-refine", "--max-components", "1", "--num-draws", "500"]
FIT = ["fit", "line.py", "--data", "train.csv", "--arg", "y=outcome", *LEAN]
DATA = ["--data", "train.csv", "--arg", "y=outcome"]

COMMANDS = {
    "dry run": [*FIT, "--dry-run"],
    "dry run json": [*FIT, "--dry-run", "--json"],
    "dry run of two": [*FIT, "--dry-run", "--local-processes", "2", "--shard", "data"],
    "fit": [*FIT, "--seed", "3", "--out", "line.relbo", "--netcdf", "line.nc"],
    "fit json": [*FIT, "--seed", "4", "--out", "other.relbo", "--json"],
    "fit quiet": [*FIT, "--seed", "3", "--out", "quiet.relbo", "--quiet"],
    "bad verdict": ["fit", "funnel.py", *LEAN],
    "summary": ["summary", "line.relbo"],
    "summary json": ["summary", "line.relbo", "--json"],
    "diagnose": ["diagnose", "line.relbo"],
    "diagnose bad": ["diagnose", "funnel.relbo", "funnel.py", "--num-draws", "500", "--json"],
    "sample": ["sample", "line.relbo", "--num-draws", "3"],
    "sample npz": ["sample", "line.relbo", "line.py", *DATA, "--num-draws", "50", "--out", "draws.npz", "--resample"],
    "sample parquet": ["sample", "line.relbo", "--num-draws", "50", "--out", "draws.parquet", "--json"],
    "sample netcdf": ["sample", "line.relbo", "--num-draws", "50", "--out", "draws.nc", "--quiet"],
    "sample unknown": ["sample", "line.relbo", "--out", "draws.xyz"],
    "predict": ["predict", "line.relbo", "line.py", *DATA, "--num-draws", "20", "--out", "fitted.npz"],
    "predict new": [
        "predict",
        "line.relbo",
        "line.py",
        *DATA,
        "--new",
        "new.csv",
        "--num-draws",
        "30",
        "--out",
        "n.npz",
    ],
    "compare": ["compare", "line.relbo", "quiet.relbo", "--num-draws", "500"],
    "compare netcdf": ["compare", "line.relbo", "line.nc", "--num-draws", "500", "--json"],
    "compare apart": ["compare", "line.relbo", "apart.nc", "--num-draws", "500"],
    "resume": ["resume", "line.relbo", "line.py", *DATA, "--max-components", "1", "--out", "more.relbo", "-n", "500"],
    "doctor": ["doctor"],
    "doctor json": ["doctor", "--json"],
    "reproduce": ["reproduce", "figure1"],
    "no model": ["fit", "absent.py"],
    "no data": ["fit", "line.py", "--data", "absent.csv"],
    "broken model": ["fit", "broken.py"],
    "failing model": ["fit", "failing.py"],
    "broken model json": ["fit", "broken.py", "--json"],
    "broken model debug": ["fit", "broken.py", "--debug"],
    "no column": ["fit", "line.py", "--data", "train.csv", "--arg", "y=outcom"],
    "no argument": ["fit", "line.py", "--data", "train.csv", "--arg", "z=outcome"],
    "not mapped": ["fit", "line.py", "--data", "train.csv"],
    "no fit": ["summary", "absent.relbo"],
    "foreign fit": ["summary", "train.csv"],
    "unknown setting": ["fit", "funnel.py", "--family", "norml"],
    "no folder": ["fit", "funnel.py", "--out", "absent/fit.relbo"],
    "half a crew": ["fit", "funnel.py", "--coordinator", "127.0.0.1:1", "--processes", "2"],
    "one too many": ["fit", "funnel.py", "--coordinator", "127.0.0.1:1", "--processes", "2", "--process", "2"],
    "a shard alone": ["fit", "funnel.py", "--shard", "data"],
    "found and told": ["fit", "funnel.py", "--distributed", "--process", "1"],
    "here and there": ["fit", "funnel.py", "--local-processes", "2", "--coordinator", "127.0.0.1:1"],
    "unknown option": ["fit", "line.py", "--colour"],
    "unknown command": ["fitt"],
    "help": ["fit", "--help"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("cli")
    for name, text in (("line.py", LINE), ("funnel.py", FUNNEL), ("broken.py", BROKEN), ("failing.py", FAILING)):
        (folder / name).write_text(text)
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    y = 1.0 + 2.0 * x + rng.normal(size=30)
    rows = "".join(f"{a:.5f},{site},{b:.5f}\n" for a, site, b in zip(x, "abc" * 10, y, strict=True))
    (folder / "train.csv").write_text(f"x,site,outcome\n{rows}")
    (folder / "new.csv").write_text("x\n-1\n0\n1\n10\n")
    _write_apart(folder / "apart.nc")
    return folder


def _write_apart(path: pathlib.Path) -> None:
    """Draws of the same parameters, from somewhere else."""
    import arviz

    rng = np.random.default_rng(1)
    draws = {"intercept": rng.normal(5.0, 0.2, (2, 400)), "slope": rng.normal(2.0, 0.2, (2, 400))}
    arviz.from_dict(posterior=draws).to_netcdf(str(path))


@pytest.fixture(scope="module")
def said(folder):
    return dict(zip(COMMANDS, run_commands(folder, list(COMMANDS.values())), strict=True))


def test_a_dry_run_shows_the_mapping_and_fits_nothing(said):
    shown = said["dry run"]
    assert shown.code == 0
    assert "line.py:model, a NumPyro model" in shown.text
    assert "x column x (30,) float64" in shown.text and "y column outcome (30,) float64" in shown.text
    assert "not used: site" in shown.text and "NumPyroTarget: 2 unconstrained coordinates" in shown.text
    assert "nothing was fitted" in shown.text
    found = said["dry run json"].json
    assert [row["from"] for row in found["arguments"]] == ["column x", "column outcome"] and found["dim"] == 2
    assert said["dry run of two"].code == 0 and said["dry run of two"].text == shown.text


def test_a_fit_shows_its_progress_its_parameters_and_its_verdict(said, folder):
    shown = said["fit"]
    assert shown.code == 0
    assert "\x1b[" in shown.raw and "evaluations" in shown.text
    assert "Good: the mixture is within" in shown.text
    assert "parameter mean sd 5% 50% 95%" in shown.text and re.search(r"slope 1\.\d+ \+- 0\.0", shown.text)
    assert "wrote line.relbo, line.nc" in shown.text
    assert (folder / "line.relbo").is_file() and (folder / "line.nc").is_file()


def test_a_fit_for_machines(said):
    found = said["fit json"].json
    assert said["fit json"].code == 0 and found["status"] == "good" and found["files"] == {"fit": "other.relbo"}
    assert found["num_evaluations"] > 0 and found["elbo"]["std_err"] >= 0
    assert set(found["parameters"]) == {"intercept", "slope"}
    assert abs(found["parameters"]["slope"]["mean"]["value"] - 2) < 5 * found["parameters"]["slope"]["sd"]["value"]


def test_quiet_says_nothing_and_writes_the_same(said, folder):
    assert said["fit quiet"].text == "" and said["fit quiet"].code == 0
    assert "No difference beyond Monte Carlo error" in said["compare"].text and said["compare"].code == 0


def test_a_bad_verdict_is_exit_code_three(said):
    assert said["bad verdict"].code == 3 and "wrote funnel.relbo" in said["bad verdict"].text
    assert "Good:" not in said["bad verdict"].text and "to go on: relbo resume" in said["bad verdict"].text
    assert said["diagnose bad"].code == 3 and said["diagnose bad"].json["status"] != "good"


def test_looking_at_a_fit(said):
    assert said["summary"].code == 0 and "Posterior(1 component in 2 dimensions" in said["summary"].text
    assert set(said["summary json"].json["parameters"]) == {"intercept", "slope"}
    assert said["diagnose"].code == 0 and "log Z" in said["diagnose"].text and "Good" in said["diagnose"].text


def test_draws_in_every_format(said, folder):
    import pyarrow.parquet
    import xarray

    assert said["sample"].text.startswith("intercept,slope ") and said["sample"].text.count(",") == 4
    with np.load(folder / "draws.npz") as draws:
        assert draws["slope"].shape == (50,)
    assert pyarrow.parquet.read_table(folder / "draws.parquet").num_rows == 50
    assert said["sample parquet"].json == {"file": "draws.parquet", "num_draws": 50}
    with xarray.open_dataset(folder / "draws.nc", group="posterior", engine="h5netcdf") as draws:
        assert draws["slope"].size == 50
    assert said["sample unknown"].code == 2 and "draws are written as .csv" in said["sample unknown"].text


def test_predictions_for_old_and_new_data(said, folder):
    assert said["predict"].code == 0 and said["predict new"].code == 0
    with np.load(folder / "fitted.npz") as fitted, np.load(folder / "n.npz") as new:
        assert fitted["y"].shape == (20, 30) and new["y"].shape == (30, 4)
        assert abs(np.mean(new["y"][:, 3] - new["y"][:, 1]) / 10 - 2) < 1


def test_comparisons(said):
    assert said["compare netcdf"].code == 0 and said["compare netcdf"].json["agrees"] is True
    assert said["compare apart"].code == 3 and "More than Monte Carlo error" in said["compare apart"].text


def test_resuming_a_finished_fit(said, folder):
    assert said["resume"].code == 0 and "going on to 1 at the most" in said["resume"].text
    assert (folder / "more.relbo").is_file()


def test_the_doctor(said):
    assert said["doctor"].code == 0 and "All that a fit needs is here" in said["doctor"].text
    found = said["doctor json"].json
    assert found["problems"] == [] and found["packages"]["jax"] and "cpu" in found["devices"]


def test_experiments_that_are_not_here(said):
    assert said["reproduce"].code == 1 and "they are part of relbo's repository" in said["reproduce"].text


SENTENCES = {
    "no model": (2, "there is no model file absent.py."),
    "no data": (1, "there is no data file absent.csv."),
    "broken model": (1, "broken.py, line 3, fails: IndexError: list index out of range"),
    "failing model": (1, "failing.py, line 6: NameError: name 'nothing' is not defined"),
    "no column": (2, "there is no column 'outcom', and it is no number. Did you mean 'outcome'?"),
    "no argument": (2, "the model has no argument 'z'. It takes x, y."),
    "not mapped": (
        2,
        "no data were found for the argument y of the model. The data have x, site, outcome. Say which: --arg",
    ),
    "no fit": (2, "there is no fit absent.relbo."),
    "foreign fit": (1, "train.csv"),
    "unknown setting": (1, "Unknown family 'norml'. Did you mean 'normal'?"),
    "no folder": (2, "absent/fit.relbo is to be written in a folder that does not exist"),
    "half a crew": (2, "belong together, and --process is missing."),
    "one too many": (2, "--process counts from 0 to 1, got 2."),
    "a shard alone": (2, "Give --local-processes or --coordinator, too."),
    "found and told": (2, "leave them out, or leave it out."),
    "here and there": (2, "needs no --coordinator."),
    "unknown option": (2, "No such option"),
    "unknown command": (2, "No such command"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_bad_input_is_a_sentence_and_no_traceback(said, name):
    code, sentence = SENTENCES[name]
    assert said[name].code == code and sentence in said[name].text
    assert "Traceback" not in said[name].text


def test_errors_for_machines_and_for_debugging(said):
    assert "fails: IndexError" in said["broken model json"].text and '{"error":' in said["broken model json"].text
    assert "Traceback" in said["broken model debug"].text and "numbers = [1, 2][5]" in said["broken model debug"].text


def test_the_help_says_that_the_file_is_executed(said):
    assert said["help"].code == 0 and "executed: use only files you trust" in said["help"].text
    assert "Exit codes: 0 good" in said["help"].text


HELP = """
import sys
from relbo.cli import main

sys.argv = ["relbo", "--help"]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_help_comes_without_jax():
    """By what has been imported when it was shown: JAX alone takes a second."""
    ran = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    imported = set(ran.stderr.split())
    assert {"typer", "relbo", "relbo.cli.app"} <= imported
    assert not imported & {"jax", "equinox", "optax", "numpy", "scipy", "numpyro", "pymc", "arviz", "matplotlib"}
    assert all(f" {name} " in ran.stdout for name in ("fit", "resume", "diagnose", "sample", "predict", "doctor"))


def test_the_program_itself_in_a_terminal(tmp_path):
    screen, code = run_in_terminal([sys.executable, "-m", "relbo", "fit", "absent.py", "--json"], tmp_path)
    assert code == 2 and json.loads(screen[screen.index("{") : screen.index("}") + 1]) == {
        "error": "there is no model file absent.py."
    }


def test_shell_completion(tmp_path):
    import os

    words = {"_RELBO_COMPLETE": "complete_bash", "COMP_WORDS": "relbo di", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from relbo.cli import main; main()"]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | words, check=False)
    assert ran.stdout.split() == ["diagnose"]

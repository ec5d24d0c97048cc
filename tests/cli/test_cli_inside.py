"""Commands called in this process, where a test must reach inside: an interrupted fit resumed, a report asked for."""

import json
import pathlib

import pytest
from typer.testing import CliRunner

import relbo
from lean_fits import SETTINGS, interrupting, lean_target, same, undisturbed
from relbo.cli.app import app

MODEL = """
import jax.numpy as jnp
from fault_worker import log_density

example = jnp.zeros(1)
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("two.py").write_text(MODEL)

    def call(*arguments):
        return CliRunner().invoke(app, list(arguments))

    return call


@pytest.fixture
def fit(call):
    relbo.save(undisturbed(), "fit.relbo", num_draws=200)
    return "fit.relbo"


def test_an_interrupted_fit_goes_on_to_the_same_bits(call, monkeypatch):
    settings = {name: value for name, value in SETTINGS.items() if name != "stop"}
    whole = relbo.fit(lean_target(), **settings)
    with monkeypatch.context() as patched:
        patched.setattr(relbo.Booster, "step", interrupting(relbo.Booster.step, 2))
        with pytest.warns(UserWarning, match="Interrupted"):
            relbo.fit(lean_target(), **settings, checkpoint="fit.ckpt")
    arguments = [
        "resume",
        "fit.ckpt",
        "two.py:log_density",
        "--max-components",
        "8",
        "--no-cache",
        "--json",
        "-n",
        "200",
    ]
    ran = call(*arguments, "--out", "done.relbo")
    found = json.loads(ran.stdout)
    assert ran.exit_code == (0 if found["status"] == "good" else 3)
    assert same(relbo.load("done.relbo"), whole)


def test_a_checkpoint_is_not_written_over(call):
    from relbo.cli.fits import beside

    assert beside(pathlib.Path("a/fit.ckpt")) == pathlib.Path("a/fit.relbo")
    assert beside(pathlib.Path("a/fit.relbo")) == pathlib.Path("a/fit.relbo")


def test_a_report_is_asked_for_with_the_diagnosis(call, fit, monkeypatch):
    asked = []
    monkeypatch.setattr(relbo, "report", lambda *args, **kwargs: asked.append((args, kwargs)), raising=False)
    ran = call("report", fit, "--title", "Two modes", "--no-cache", "--json")
    assert ran.exit_code == 0 and json.loads(ran.stdout)["report"] == "fit.html"
    ((posterior, path), kwargs) = asked[0]
    assert same(posterior, undisturbed()) and path == pathlib.Path("fit.html")
    assert kwargs["title"] == "Two modes" and isinstance(kwargs["diagnosis"], relbo.Diagnosis)


def test_another_model_is_refused(call, fit):
    pathlib.Path("other.py").write_text(
        "import jax.numpy as jnp\nexample = jnp.zeros(3)\ndef log_density(z): return -z @ z\n"
    )
    ran = call("diagnose", fit, "other.py", "--no-cache")
    assert ran.exit_code == 1 and "the file's posterior is in 1 dimensions" in " ".join(ran.stderr.split())
    ran = call("diagnose", fit, "--data", "data.csv", "--no-cache")
    assert ran.exit_code == 2 and "--data and --arg are for a model" in ran.stderr


def test_a_fit_without_a_folder_for_the_cache_goes_on(call, fit, monkeypatch):
    def refuse(path=None):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(relbo, "enable_compile_cache", refuse)
    ran = call("summary", fit)
    assert ran.exit_code == 0 and "the cache folder cannot be written" in " ".join(ran.stderr.split())
    assert "Posterior(" in ran.stdout


def test_without_typer_the_install_line_is_said(monkeypatch, capsys):
    import relbo.cli

    def absent(module, extra):
        raise ImportError(
            f'{module} is needed here and is not installed. Install it with: pip install "relbo[{extra}]"'
        )

    monkeypatch.setattr(relbo.cli, "require", absent)
    with pytest.raises(SystemExit) as ended:
        relbo.cli.main()
    assert ended.value.code == 1 and 'pip install "relbo[cli]"' in capsys.readouterr().err

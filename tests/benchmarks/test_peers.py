"""The driver of `make peers` without its fits: keys, resuming, failures, joining with references, a second run."""

import json
import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import peers
import peers_figure
import peers_page
import peers_readme
import peers_store
from clock import CompileClock
from methods import METHODS
from methods.base import Method
from peers_measure import plain
from peers_store import Key
from peers_tables import Results

KEY = Key("banana", 0, "relbo")
MODEL = SimpleNamespace(title="Banana", dim=2, num_modes=2, through="jax", pymc=None, data=tuple)
REFERENCE = SimpleNamespace(
    log_z=1.0, log_z_std_err=0.003, log_z_how="exact", how="exact", ess_min=1e4, r_hat_max=1.0, mode_mass=[0.4, 0.6],
    mean=[0.0, 1.0], sd=[1.0, 2.0], mean_mcse=[0.01, 0.01], sd_mcse=[0.01, 0.01],
)  # fmt: skip


def made_up(cpu: float = 10.0, elbo: float | None = 0.9, **facts):
    seconds = {"imports": 1.0, "compile": 4.0, "run": cpu - 5.0, "total": cpu}
    return {
        "kind": "done", "cpu_seconds": seconds, "wall_seconds": seconds, "elbo": elbo,
        "elbo_std_err": None if elbo is None else 0.004, "k_hat": 0.4, "mean": [0.1, 1.0], "sd": [1.0, 1.0],
        "mode_counts": [5000, 5000], "num_draws": 10_000, "num_gradients": 100, "peak_memory_mb": 300.0, **facts,
    }  # fmt: skip


def options(*arguments):
    return peers.parse_options(arguments, ["banana", "funnel"])


def test_a_cell_is_written_whole_and_read_back(tmp_path):
    cell = peers_store.write_cell(tmp_path, KEY, made_up())
    assert peers_store.read_cells(tmp_path) == {KEY: cell}
    assert [path.name for path in tmp_path.iterdir()] == ["banana.relbo.0.json"]
    with pytest.raises(ValueError, match="kind must be one of done, over the limit"):
        peers_store.write_cell(tmp_path, KEY, {"kind": "lost"})


def test_a_write_that_dies_leaves_the_earlier_file(tmp_path):
    peers_store.write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        peers_store.write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


def test_methods_take_turns_on_a_model():
    keys = peers.choose(options("--methods", "relbo", "auto_normal"), {"banana": MODEL, "funnel": MODEL})
    banana = [("relbo", 0), ("auto_normal", 0), ("relbo", 1), ("relbo", 2)]
    assert [(key.method, key.seed) for key in keys if key.model == "banana"] == banana
    assert [key.model for key in keys] == ["banana"] * 4 + ["funnel"] * 4
    assert all(key.seed == 0 for key in peers.choose(options("--seeds", "1"), {"banana": MODEL}))


def test_a_quick_run_leaves_the_complete_results_alone():
    quick, complete = options("--quick"), options()
    assert quick.json != complete.json and quick.work != complete.work
    assert quick.seeds == 1 and quick.models == list(peers.QUICK_MODELS)


def test_missing_data_skip_a_model_and_say_so(capsys):
    def missing():
        raise FileNotFoundError("no file: set GERMAN")

    models = {"banana": SimpleNamespace(data=missing), "funnel": MODEL}
    assert {key.model for key in peers.choose(options(), models)} == {"funnel"}
    assert "banana: skipped, no file: set GERMAN" in capsys.readouterr().out


def test_finished_cells_are_not_run_again(tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(peers, "run_cell", lambda key, *_: ran.append(key.method) or made_up())
    keys = [Key("banana", 0, name) for name in ("relbo", "nuts", "flow")]
    peers_store.write_cell(tmp_path, keys[0], made_up())
    peers_store.write_cell(tmp_path, keys[1], {"kind": "failed", "reason": "ValueError: bad"})
    peers.run_all(keys, {"banana": MODEL}, tmp_path, options())
    assert ran == ["flow"]
    peers.run_all(keys, {"banana": MODEL}, tmp_path, options("--retry"))
    assert ran == ["flow", "nuts"]
    assert all(cell["kind"] == "done" for cell in peers_store.read_cells(tmp_path).values())
    assert "1/1 banana, nuts, seed 0: 10.0 CPU s" in capsys.readouterr().out


def _python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


def test_failures_are_recorded_with_their_last_line(tmp_path):
    out = tmp_path / "facts.json"
    raised = peers.run_process(_python("raise ValueError('no such thing')"), out)
    assert raised == {"kind": "failed", "reason": "ValueError: no such thing"}
    assert peers.run_process(_python("pass"), out) == {"kind": "failed", "reason": "exit code 0"}
    killed = peers.run_process(_python("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)"), out)
    assert killed == {"kind": "over the limit", "reason": "more than 200 CPU s"}
    slow = peers.run_process(_python("import time; time.sleep(60)"), out, max_seconds=0.2)
    assert slow["kind"] == "over the limit"
    out.write_text(json.dumps(made_up(cpu=201.0)))
    assert peers.run_process(_python("pass"), out)["kind"] == "over the limit"


def test_a_method_that_needs_pymc_is_not_applicable_without_it():
    facts = peers.run_cell(Key("banana", 0, "nutpie"), METHODS["nutpie"], MODEL, 0)
    assert facts == {"kind": "not applicable", "reason": "the model has no PyMC form"}


def test_joining_fills_in_what_the_references_tell():
    cells = {KEY: {**KEY._asdict(), **made_up()}, Key("banana", 0, "nuts"): {"kind": "failed", "reason": "bad"}}
    methods = {"relbo": METHODS["relbo"], "nuts": METHODS["nuts"]}
    done, failed = peers_store.join(cells, {"banana": MODEL}, methods, {"banana": REFERENCE})["cells"]
    assert done["kl"] == pytest.approx(0.1) and done["kl_std_err"] == pytest.approx(0.005)
    assert done["mean_error_max"] == pytest.approx(0.1) and done["mean_error_rms"] == pytest.approx(0.1 / np.sqrt(2))
    assert done["sd_error_max"] == pytest.approx(0.5) and done["sd_error_rms"] == pytest.approx(0.5 / np.sqrt(2))
    assert done["mode_mass_error_max"] == pytest.approx(0.1)
    assert failed == {"kind": "failed", "reason": "bad"}
    without = peers_store.join(cells, {"banana": MODEL}, methods, {})
    assert "kl" not in without["cells"][0] and without["models"]["banana"]["reference"] is None


def test_a_second_run_is_close_or_not(capsys):
    first = {Key("banana", seed, "relbo"): made_up() for seed in range(4)}
    second = {
        Key("banana", 0, "relbo"): made_up(cpu=12.9, elbo=0.91),
        Key("banana", 1, "relbo"): made_up(cpu=13.1),
        Key("banana", 2, "relbo"): made_up(elbo=0.92),
        Key("banana", 3, "relbo"): {"kind": "failed", "reason": "bad"},
    }
    assert [row["close"] for row in peers_store.compare(first, second)] == [True, False, False, False]
    assert peers.show_comparison(first, second) == 1
    assert capsys.readouterr().out.count("NOT CLOSE") == 3
    assert peers.show_comparison(first, {KEY: made_up()}) == 0


def test_the_union_of_spans_counts_nothing_twice():
    clock = CompileClock()
    clock.spans += [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]
    assert clock.seconds == pytest.approx(4.0)


def test_plain_numbers_for_json():
    given = {"a": np.array([1.0, np.nan]), "b": np.int64(3), "c": np.bool_(True), "d": (np.float32(0.5), "x", None)}
    assert plain(given) == {"a": [1.0, None], "b": 3, "c": True, "d": [0.5, "x", None]}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods_name_a_module_and_print_their_settings(method: Method):
    path = pathlib.Path(peers.__file__).parent / "methods" / f"{method.module}.py"
    assert "def run(task: Task) -> Outcome:" in path.read_text()
    assert json.dumps(method.settings)


def joined(*rows):
    """Results of made-up cells (method, facts) on the banana, with the reference."""
    cells = {
        Key("banana", i, method): Key("banana", i, method)._asdict() | facts for i, (method, facts) in enumerate(rows)
    }
    return Results(peers_store.join(cells, {"banana": MODEL}, METHODS, {"banana": REFERENCE}))


def test_a_ranking_knows_level_from_lost():
    level = joined(("relbo", made_up(elbo=0.9)), ("auto_iaf", made_up(elbo=0.905)))
    assert level.ranking("banana").outcome == "level" and level.ranking("banana").order == ["auto_iaf", "relbo"]
    assert joined(("relbo", made_up(elbo=0.9)), ("flow", made_up(elbo=0.95))).ranking("banana").outcome == "lost"
    assert joined(("relbo", made_up(elbo=0.9)), ("flow", made_up(elbo=None))).ranking("banana").outcome == "alone"
    assert joined(("flow", made_up(elbo=0.95))).ranking("banana").outcome == "no result"


def test_the_page_is_put_together_from_cells():
    results = joined(
        ("relbo", made_up(cpu=30.0)), ("relbo", made_up(cpu=40.0)), ("relbo", made_up(cpu=50.0)),
        ("auto_mvn", made_up(cpu=10.0, elbo=0.5)), ("nuts", made_up(cpu=20.0, elbo=None)),
        ("auto_iaf", {"kind": "failed", "reason": "ValueError: a|b"}),
        ("flow", {"kind": "over the limit", "reason": "more than 200 CPU s"}),
        ("nutpie", {"kind": "not applicable", "reason": "the model has no PyMC form"}),
    )  # fmt: skip
    page = peers_page.page(results, "results/peers.png")
    assert "ahead of all other variational tools on 1 of 1 models" in page
    assert "2.0 times those of NumPyro NUTS 4 x (1000 + 1000) in the median" in page
    assert "4.0 times those of NumPyro AutoMultivariateNormal in the median" in page
    assert (
        "| Banana (`banana`) | 2 | 0.100 ± 0.005 | 0.500 ± 0.005 | NumPyro AutoMultivariateNormal | won | 40 |" in page
    )
    assert "| banana | NumPyro AutoIAFNormal | 5 | failed | ValueError: a\\|b |" in page
    assert "the model has no PyMC form: nutpie on banana" in page
    assert "num_steps 10000" in page and "Where it loses" not in page


def test_the_readme_is_filled_between_its_marks():
    results = joined(("relbo", made_up(cpu=30.0)), ("auto_mvn", made_up(elbo=0.5)), ("nuts", made_up(20.0, None)))
    before = f"above {peers_readme.BEGIN}old\n{peers_readme.END} below"
    after = peers_readme.filled(before, peers_readme.summary(results))
    assert after.startswith("above ") and after.endswith(" below") and "old" not in after
    assert "| Banana | 2 | 0.100 ± 0.005 | 0.500 ± 0.005 | 0.500 ± 0.005 | 0.071 / 35.4% |" in after
    assert peers_readme.filled(after, peers_readme.summary(results)) == after
    with pytest.raises(ValueError, match="one <!-- peers:begin -->"):
        peers_readme.filled("no marks", "text")


def test_the_figure_has_a_panel_for_each_model():
    figure = peers_figure.draw(joined(("relbo", made_up()), ("nuts", made_up(elbo=None))))
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["banana, d = 2"]

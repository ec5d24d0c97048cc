"""What the experiments share: nothing finished is computed twice, tables, loaders, the command line, the page."""

import ast
import importlib
import json
import math
import pathlib
import re

import numpy as np
import pytest

import relbo
from experiments import data, page, prepare, prepare_icu, provenance, sources, verdict
from experiments.__main__ import announcement, main
from experiments.registry import EXPERIMENTS
from experiments.report import Options, Report, Table, difference, plain, shown
from experiments.runs import Piece, Runs

ROOT = pathlib.Path(__file__).parents[2]
TABLES = ("chemreact", "icu", "wine")
DUNDERS = ("__file__", "__module__", "__version__", "__doc__")
MODULE = "exact"
"""Any module that computes."""


def piece_of(number, calls):
    def compute(number):
        calls.append(number)
        return {"square": number**2, "nothing": math.nan}

    compute.__module__ = f"experiments.{MODULE}"
    return Piece({"number": number}, compute, (number,))


def test_a_killed_experiment_goes_on_where_it_was(tmp_path, capsys):
    path, calls = tmp_path / "work.runs.jsonl", []
    first = Runs(path, [MODULE])
    assert [one["square"] for one in first.all([piece_of(2, calls), piece_of(3, calls)])] == [4, 9]
    assert "2 of 2 pieces" in capsys.readouterr().out
    path.write_text(path.read_text()[:-5])  # the process was killed while it wrote the last line
    again = Runs(path, [MODULE])
    kept = again.once(piece_of(2, calls))
    assert kept["square"] == 4 and math.isnan(kept["nothing"])
    assert again.all([piece_of(2, calls), piece_of(3, calls)])[1]["square"] == 9
    assert "1 of 2 pieces were done before" in capsys.readouterr().out
    assert calls == [2, 3, 3]
    assert Runs(path, [MODULE]).once(piece_of(3, calls))["square"] == 9  # the torn line did not spoil the next
    assert calls == [2, 3, 3]
    Runs(path, [MODULE], fresh=True).once(piece_of(2, calls))
    assert calls == [2, 3, 3, 2]


def test_other_code_makes_a_piece_anew(tmp_path, monkeypatch):
    path, calls = tmp_path / "work.runs.jsonl", []
    Runs(path, [MODULE]).once(piece_of(2, calls))
    monkeypatch.setattr(provenance, "engine_digest", lambda: "another")
    Runs(path, [MODULE]).once(piece_of(2, calls))
    assert calls == [2, 2]


def test_work_of_a_module_that_is_not_watched_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not among the modules that compute"):
        Runs(tmp_path / "work.runs.jsonl", ["logistic"]).once(piece_of(2, []))


def test_a_digest_is_of_code_and_not_of_words(tmp_path):
    texts = [
        '"""Words."""\nx = 1  # more\nif x:\n    raise ValueError("No.")\n',
        '"""Other."""\nx = 1\nif x:\n    raise ValueError(f"Never {x}.")\n',
        '"""Words."""\nx = 2\nif x:\n    raise ValueError("No.")\n',
    ]
    paths = [tmp_path / f"{number}.py" for number in range(3)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    one, same, other = (provenance.digest([path]) for path in paths)
    assert one == same != other


def test_what_is_left_out_of_the_engine_is_there_and_what_decides_is_not_left_out():
    source = pathlib.Path(relbo.__file__).parent
    assert all((source / name).exists() or list(source.glob(f"{name}*")) for name in provenance.LEFT_OUT)
    for name in ("boosting/booster.py", "loop/fitting.py", "loop/running.py", "steps/corrective.py", "model/door.py"):
        assert (source / name).is_file() and not name.startswith(provenance.LEFT_OUT)


def test_every_experiment_watches_what_its_computing_modules_import():
    for experiment in EXPERIMENTS.values():
        watched = set().union(*(provenance.imported(module) for module in experiment.computes))
        assert watched.isdisjoint(provenance.MACHINERY)
        entry = experiment.entry.partition(":")[0]
        shows = {"regression_tables", "theory_figure", "faces_figure", "verdict", "page"}
        assert watched.isdisjoint(shows | ({entry} - set(experiment.computes))), "a change of a figure voids no result"


def test_the_duration_is_said_beforehand():
    total = sum(one.minutes for one in EXPERIMENTS.values())
    assert f"About {total:.0f} CPU minutes" in announcement(list(EXPERIMENTS), Options())
    assert total <= 60


def test_tables_and_plain_values():
    table = Table("T", ["a", "b"], [[1.23456, relbo.Estimate(1.0, 0.1, 10)], ["x"]])
    assert "| 1.235 | 1.00 +- 0.10 |\n| x |  |" in table.markdown()
    with pytest.raises(ValueError, match="3 cells in a table of 2"):
        Table("T", ["a", "b"], [[1, 2, 3]])
    assert plain({"a": np.float32(2), "b": (np.inf, relbo.Estimate(1.0, 0.5, 3))}) == {
        "a": 2.0,
        "b": ["inf", {"value": 1.0, "std_err": 0.5}],
    }


def test_report_is_written(tmp_path):
    from matplotlib.figure import Figure

    report = Report("Title", {"steps": 3}, [Table("T", ["a"], [[1]])], [{"x": 1}], Figure(), ["A remark."])
    paths = report.write("name", Options(out=tmp_path / "new"), {"code": {"engine": "e"}})
    assert [path.name for path in paths] == ["name.json", "name.md", "name.png"]
    assert json.loads(paths[0].read_text())["settings"] == {"steps": 3}
    assert json.loads(paths[0].read_text())["code"] == {"engine": "e"}
    assert "- A remark." in paths[1].read_text()
    quick = report.write("name", Options(out=tmp_path / "new", quick=True), {})
    assert quick[1].read_text().startswith("# Quick check, no result: Title")


def test_differences_have_the_digits_that_their_errors_allow():
    assert difference([0.0, 0.0]) == "0"
    assert difference([0.012, 0.014, 0.010]) == "+0.0120 +- 0.0012"
    assert difference([-0.5]) == "-0.5"
    assert "a \\| b" in Table("T", ["c"], [["a | b"]]).markdown()


def arrays(num_train=6, num_test=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = [np.arange(num) % 2 for num in (num_train, num_test)]
    return rng.normal(size=(num_train, 3)), labels[0], rng.normal(size=(num_test, 3)), labels[1]


def test_loaders_understand_the_authors_files(tmp_path):
    x_train, y_train, x_test, y_test = arrays()
    np.savez(tmp_path / "ds1.100_train.npz", X=x_train, y=2 * y_train - 1)
    indptr = np.arange(len(x_test) + 1) * 3  # the test part as a sparse matrix
    sparse = {"data": x_test.ravel(), "indices": np.tile(np.arange(3), len(x_test)), "indptr": indptr}
    np.savez(tmp_path / "ds1.100_test.npz", **sparse, shape=x_test.shape, y=2 * y_test - 1)
    found = data.load_classification(tmp_path / "ds1.100_train.npz", tmp_path / "ds1.100_test.npz")
    np.testing.assert_allclose(found.x_test, x_test.astype(np.float32))
    np.testing.assert_array_equal(found.y_train, y_train)
    np.savez(
        tmp_path / "train_test_split.npz",
        xtrain=x_train, ytrain=np.stack([y_train, 1 - y_train, 3.7 * y_train], 1),
        xtest=x_test, ytest=np.stack([y_test, 1 - y_test, 3.7 * y_test], 1),
    )  # fmt: skip
    icu = data.load_eicu(tmp_path / "train_test_split.npz")
    np.testing.assert_array_equal(icu.y_test, y_test)
    np.testing.assert_array_equal(data.load_eicu(tmp_path / "train_test_split.npz", task=1).y_test, 1 - y_test)


def test_bad_data_is_refused(tmp_path):
    x_train, y_train, x_test, y_test = arrays()
    np.savez(tmp_path / "a.npz", X_train=x_train, y_train=y_train, X_test=x_test)
    with pytest.raises(ValueError, match="lacks y_test"):
        data.load_classification(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="do not belong together"):
        data.Classification("x", x_train, y_train[:-1], x_test, y_test)
    with pytest.raises(ValueError, match="1 values that are not finite"):
        data.Classification("x", np.where(x_train == x_train[0, 0], np.nan, x_train), y_train, x_test, y_test)
    with pytest.raises(ValueError, match="labels must be 0 and 1"):
        data.Classification("x", x_train, y_train + 1, x_test, y_test)
    np.savez(tmp_path / "b.npz", X_train=x_train, y_train=y_train * 0.7, X_test=x_test, y_test=y_test)
    with pytest.raises(ValueError, match="0 and 1, or -1 and 1"):
        data.load_classification(tmp_path / "b.npz")


@pytest.mark.parametrize("name", [name for name, one in EXPERIMENTS.items() if one.files])
def test_a_wrong_folder_is_refused_everywhere(name, tmp_path):
    with pytest.raises(ValueError, match="holds none of this experiment's files"):
        main([name, "--data", str(tmp_path), "--out", str(tmp_path / "out")])


def test_other_contents_under_a_known_name_are_called_so(tmp_path):
    x_train, y_train, x_test, y_test = arrays()
    np.savez(tmp_path / "wine_quality.npz", X_train=x_train, y_train=y_train, X_test=x_test, y_test=y_test)
    assert "other contents" in data.load_classification(tmp_path / "wine_quality.npz").name


def test_without_data_no_two_experiments_run_the_same():
    digests = [one().digest for one in (data.breast_cancer, data.eights, data.growers)]
    assert len(set(digests)) == 3


def test_find_looks_where_it_is_told(tmp_path):
    (tmp_path / "one.npz").write_bytes(b"")
    assert data.find(Options(data=tmp_path), "one.npz") == tmp_path / "one.npz"
    assert data.find(Options(data=tmp_path / "one.npz"), "one.npz") == tmp_path / "one.npz"
    assert data.find(Options(data=tmp_path), "two.npz") is None
    assert data.find(Options(quick=True), "cbcl_faces.npz") is None  # quick means embedded data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice"),
        (["wine", "--seeds", "0"], "at least 1"),
        (["wine", "--data", "no"], "no file"),
        (["figure1", "--data", "."], "reads no data"),
    ],
)
def test_the_command_line_says_what_is_wrong(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2 and message in capsys.readouterr().err


def test_experiments_use_only_public_names():
    """Whatever comes from relbo is a public name, or a public name of a public module."""
    for path in (ROOT / "experiments").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "relbo":
                assert all(part in relbo.__all__ for part in node.module.split(".")[1:2]), (path, node.module)
                public = importlib.import_module(node.module).__all__
                assert all(alias.name in public for alias in node.names), (path, node.module)
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("relbo.") for alias in node.names), path
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "relbo":
                assert node.attr in (*relbo.__all__, "__file__", "__version__"), (path, node.attr)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                assert not node.attr.startswith("_") or node.attr in DUNDERS, (path, node.attr)


def test_the_split_of_chemreact_is_made_as_it_was(tmp_path):
    """Labels in any order: the rows of each part are those that the recipe draws, stratified."""
    rng = np.random.default_rng(1)
    labels, x = np.where(rng.random(200) < 0.1, 1, -1), rng.normal(size=(200, 3))
    np.savez(tmp_path / "ds1.100_test.npz", X=x, y=labels)
    found = prepare.chemreact100_part(tmp_path / "ds1.100_test.npz")
    rows = np.concatenate([found["row_train"], found["row_test"]])
    assert sorted(rows.tolist()) == list(range(200))
    np.testing.assert_allclose(found["X_train"], x[found["row_train"]].astype(np.float32))
    np.testing.assert_array_equal(found["y_test"], labels[found["row_test"]] > 0)
    assert found["y_train"].sum() == round(0.7 * (labels > 0).sum())


def test_rows_of_one_file_are_found_in_another():
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(20, 2)), np.arange(20) % 3 == 0
    rows[7], labels[7] = rows[4], labels[4]  # twins are interchangeable, but each is used once
    places = prepare._matched(rows, labels, rows[[7, 4, 11]], labels[[7, 4, 11]])
    assert sorted(places.tolist()) == [4, 7, 11]
    with pytest.raises(ValueError, match="do not belong together"):
        prepare._matched(rows, labels, rows[:1], ~labels[:1])


def test_features_of_a_stay():
    measured = [("Age", 54.0), ("ICUType", 3.0), ("Height", -1.0), ("HR", 80.0), ("HR", 90.0), ("Temp", 12.0)]
    found = prepare_icu.stay_features([*measured, ("BUN", 20.0), ("Urine", 99.0), ("Urine", 0.0), ("MechVent", 1.0)])
    assert (found["HR_mean"], found["HR_last"], found["ICUType_MICU"], found["MechVent_any"]) == (85.0, 90.0, 1.0, 1.0)
    assert math.isnan(found["Height"]) and math.isnan(found["Temp_mean"]) and len(found) == 70
    np.testing.assert_allclose([found["BUN_mean"], found["Urine_total_log1p"]], [math.log(20), math.log(100)])


def test_what_is_imputed_clipped_and_standardised_comes_from_the_train_part():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 2))
    x[5, 0], x[390, 1] = np.nan, 1e6
    train, test = np.arange(300), np.arange(300, 400)
    found = prepare_icu.standardized(x, np.zeros(400, np.uint8), train, test, np.zeros(2, bool))
    np.testing.assert_allclose(found["X_train"].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found["X_train"].std(0), 1, atol=1e-5)
    assert found["X_test"].max() < 5


def test_a_digest_of_arrays_sees_every_change(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(2))
    np.savez_compressed(tmp_path / "b.npz", y=np.arange(2), x=np.arange(3))
    np.savez(tmp_path / "c.npz", x=np.array([0, 1, 3]), y=np.arange(2))
    one, same, other = (sources.digest_of(tmp_path / f"{name}.npz") for name in "abc")
    assert one == same != other


def written(folder, engines):
    """A folder with an about page and results of these engines."""
    (folder / "results").mkdir()
    (folder / "about.md").write_text("# About\n\n{{code}}\n")
    for name, engine in engines.items():
        raw = {"quick": False, "code": {"relbo": "1", "engine": engine, "experiment": "x"}, "results": []}
        (folder / "results" / f"{name}.json").write_text(json.dumps(raw))
        (folder / "results" / f"{name}.md").write_text(f"# {name}\n")
    return folder


def test_a_page_does_not_mix_versions_unless_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(verdict, "CLAIMS", ())
    folder = written(tmp_path, {"wine": "aaa", "coordinates": "bbb"})
    with pytest.raises(ValueError, match=r"2 versions of the engine \(wine: aaa, coordinates: bbb\)"):
        page.page(folder)
    text = page.page(folder, mixed=True)
    assert "of 2 versions of the engine" in text and "| wine | `aaa` |" in text and "| coordinates | `bbb` |" in text


def test_a_page_of_one_version_says_so_and_quick_runs_are_no_results(tmp_path, monkeypatch):
    monkeypatch.setattr(verdict, "CLAIMS", ())
    folder = written(tmp_path, {"wine": "aaa", "coordinates": "aaa"})
    assert "one version of the code: relbo 1, engine `aaa`" in page.page(folder)
    path = folder / "results" / "wine.json"
    path.write_text(path.read_text().replace('"quick": false', '"quick": true'))
    with pytest.raises(ValueError, match="quick run"):
        page.page(folder)


def test_the_page_holds_the_results():
    """All of one version of the engine, else it is refused; and nothing is left to be filled in."""
    text = (ROOT / "experiments" / "README.md").read_text()
    assert text == page.page(), "run python -m experiments.page"
    assert "{{" not in text


def test_the_duration_that_is_said_is_what_it_took():
    """Within a factor of two, since machines and what else they do differ."""
    took = sum(raw["cpu_seconds"] for raw in page.results().values()) / 60
    assert 0.5 < took / sum(one.minutes for one in EXPERIMENTS.values()) < 2


def test_every_claim_has_its_verdict_from_a_run():
    raw = page.results()
    lines = verdict.markdown(raw).splitlines()[2:]
    needed = {name for needs, _ in verdict.CLAIMS for name in needs}
    assert needed <= set(raw) and len(lines) >= len(verdict.CLAIMS)
    assert not any("**open**" in line for line in lines)
    for line in lines:
        assert re.search(r"\*\*(yes|no|partly|not beyond error)", line), line


def test_the_headline_is_that_of_the_raw_results():
    """Computed once more, by other means."""
    raw, text = page.results(), (ROOT / "experiments" / "README.md").read_text()
    rows = [row for name in TABLES for row in raw[name]["results"]]
    relbos = [row for row in rows if row["system"] == "boosted, RELBO"]
    first = sum(row["components"] == 1 for row in relbos)
    assert f"was the first component in {first} of {len(relbos)} fits" in text
    assert all(row["stop_reason"] != "it was interrupted" for row in rows)
    seeds = {row["seed"] for row in raw["wine"]["results"] if row["data"] == "wine_quality"}
    assert len(seeds) == 10


def test_numbers_in_sentences_are_in_the_raw_results():
    """Theorem 2, the paired differences and the explanations, recomputed from the files."""
    raw, text = page.results(), (ROOT / "experiments" / "README.md").read_text()
    bend = next(row for row in raw["theory"]["results"] if row["part"] == "curvature" and row["ratio"] == 4.0)
    assert f"{bend['value'][0]:.2g} at gamma = 1, {bend['value'][-3]:.1e} at gamma = 1e-12" in text
    for name in ("chemreact", "icu"):
        rows = [row for row in raw[name]["results"] if row["family"] == "Laplace" and "intercept" not in row["data"]]
        for one in {row["data"] for row in rows}:
            value = {(row["system"], row["seed"]): row["test_auroc"] for row in rows if row["data"] == one}
            seeds = sorted(seed for system, seed in value if system == "boosted, finite step, last iterate")
            gains = [value["boosted, finite step, last iterate", seed] - value["BBVI", seed] for seed in seeds]
            row = f"| {one} | boosted, finite step, last iterate | Laplace | {difference(gains)} |"
            assert row in text, row
    kls = {}
    for fit in raw["figure1"]["results"][:-1]:
        kls.setdefault((fit["system"], fit["change"]), []).append(fit["kl"][-1])
    plain, exactly = (shown(kls["fully_corrective", change]) for change in ("", "by quadrature"))
    assert f"full correction ends at {plain} nats and line search at {shown(kls['line_search', ''])}" in text
    assert f"full correction ends at {exactly} and line search at {shown(kls['line_search', 'by quadrature'])}" in text
    assert all(fit["corrected_gap"] < 1e-6 for fit in raw["figure1"]["results"][:-1] if "corrected_gap" in fit)
    faces = [row for row in raw["faces"]["results"] if row["data"].endswith("nmfpack scaling") and row["rank"] == 3]
    for system in ("BBVI", "BBVI, the authors' 100 steps", "boosted, RELBO, 100 steps a component"):
        found = [row["test_mse"] for row in faces if row["system"] == system and row["noise"] == "sd = 1"]
        assert len(found) == 3 and f"| sd = 1 | 3 | {system} | {shown(found)} |" in text
    fits = raw["explanations"]["results"]
    kept = sum(int(np.nanargmax([one["train_ll"] for one in fit["iterates"]]) == 0) for fit in fits)
    assert f"component in {kept} of {len(fits)} fits" in text

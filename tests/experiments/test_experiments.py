"""What the experiments share: nothing finished is computed twice, tables, loaders, the command line, the page."""

import ast
import importlib
import json
import math
import pathlib

import numpy as np
import pytest

import relbo
from experiments import data
from experiments.__main__ import main
from experiments.page import page
from experiments.report import Options, Report, Table, plain
from experiments.runs import Runs

ROOT = pathlib.Path(__file__).parents[2]
TABLES = ("chemreact", "icu", "wine")


def test_a_killed_experiment_goes_on_where_it_was(tmp_path):
    path = tmp_path / "work.runs.jsonl"
    calls = []

    def compute(number):
        calls.append(number)
        return {"square": number**2, "nothing": math.nan}

    first = Runs(path)
    assert first.once({"number": 2}, lambda: compute(2))["square"] == 4
    first.once({"number": 3}, lambda: compute(3))
    path.write_text(path.read_text()[:-5])  # the process was killed while it wrote the last line
    again = Runs(path)
    kept = again.once({"number": 2}, lambda: compute(2))
    assert kept["square"] == 4 and math.isnan(kept["nothing"])
    assert again.once({"number": 3}, lambda: compute(3))["square"] == 9
    assert calls == [2, 3, 3]
    assert Runs(path).once({"number": 3}, lambda: compute(3))["square"] == 9  # the torn line did not spoil the next
    assert calls == [2, 3, 3]
    Runs(path, fresh=True).once({"number": 2}, lambda: compute(2))
    assert calls == [2, 3, 3, 2]


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
    paths = report.write("name", Options(out=tmp_path / "new"))
    assert [path.name for path in paths] == ["name.json", "name.md", "name.png"]
    assert json.loads(paths[0].read_text())["settings"] == {"steps": 3}
    assert "- A remark." in paths[1].read_text()


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
    with pytest.raises(ValueError, match="holds none of this experiment's files"):
        main(["wine", "--data", str(tmp_path), "--out", str(tmp_path / "out")])


def test_find_looks_where_it_is_told(tmp_path):
    (tmp_path / "one.npz").write_bytes(b"")
    assert data.find(Options(data=tmp_path), "one.npz") == tmp_path / "one.npz"
    assert data.find(Options(data=tmp_path / "one.npz"), "one.npz") == tmp_path / "one.npz"
    assert data.find(Options(data=tmp_path), "two.npz") is None
    assert data.find(Options(quick=True), "cbcl_faces.npz") is None  # quick means embedded data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nothing"], "invalid choice"), (["wine", "--seeds", "0"], "at least 1"), (["wine", "--data", "no"], "no file")],
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
                assert node.attr in (*relbo.__all__, "__file__"), (path, node.attr)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                assert not node.attr.startswith("_") or node.attr == "__file__", (path, node.attr)


def test_the_page_holds_the_results():
    assert (ROOT / "experiments" / "README.md").read_text() == page(), "run python -m experiments.page"


def test_the_page_says_nothing_that_no_result_shows():
    text = (ROOT / "experiments" / "README.md").read_text()
    for words in (
        "two are shown",
        "noise not stated",
        "runs away here",
        "50 draws, which",
        "four seeds",
        "still 0.003",
    ):
        assert words not in text, words
    raw = {name: json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text()) for name in TABLES}
    rows = [row for name in TABLES for row in raw[name]["results"]]
    assert all(row["stop_reason"] != "it was interrupted" for row in rows)
    for name in TABLES:
        assert raw[name]["settings"]["intercept"] == any("intercept" in row["data"] for row in raw[name]["results"])
    relbos = [row for row in rows if row["system"] == "boosted, RELBO"]
    assert all(row["components"] == 1 for row in relbos) and f"{len(relbos)} of {len(relbos)} fits.\n" in text

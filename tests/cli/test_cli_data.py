"""How data files are read, how their columns meet a model's arguments, and which models a file holds."""

import json

import numpy as np
import pytest

from relbo.cli.data import Data, read_data
from relbo.cli.mapping import Input, explain_missing, map_again, map_arguments
from relbo.cli.models import LogDensity, NumPyroModel, PyMCFunction, PyMCModel, ReadyTarget, load_model
from relbo.cli.session import UsageError

TABLE = "age,dose,Outcome\n1,0.5,3\n2,1.5,4\n3,2.5,5\n"


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


# Files


def test_a_csv_file_has_numbers_whole_numbers_and_texts(write):
    data = read_data([write("d.csv", "\ufeffa,b,c,d\n1,1.5,x,true\n2,,y,false\n")])
    assert data.columns == ("a", "b", "c", "d") and data.num_rows == 2
    assert data.values["a"].dtype == np.int64 and data.values["a"].tolist() == [1, 2]
    assert data.values["b"][0] == 1.5 and np.isnan(data.values["b"][1])
    assert data.values["c"].tolist() == ["x", "y"] and data.values["d"].tolist() == [1, 0]


def test_the_same_table_in_every_format(write, tmp_path):
    import pyarrow
    import pyarrow.parquet
    import xarray

    columns = {"a": np.array([1.5, 2.5]), "b": np.array([3, 4])}
    np.savez(tmp_path / "d.npz", **columns)
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    xarray.Dataset({name: ("row", value) for name, value in columns.items()}).to_netcdf(
        tmp_path / "d.nc", engine="h5netcdf"
    )
    write("d.csv", "a,b\n1.5,3\n2.5,4\n")
    write("d.tsv", "a\tb\n1.5\t3\n2.5\t4\n")
    write("d.json", json.dumps({"a": [1.5, 2.5], "b": [3, 4]}))
    write("rows.json", json.dumps([{"a": 1.5, "b": 3}, {"a": 2.5, "b": 4}]))
    for name in ("d.npz", "d.parquet", "d.nc", "d.csv", "d.tsv", "d.json", "rows.json"):
        values = read_data([tmp_path / name]).values
        assert {key: value.tolist() for key, value in values.items()} == {"a": [1.5, 2.5], "b": [3, 4]}, name


def test_cmdstan_json_has_numbers_and_arrays(write):
    data = read_data([write("d.json", '{"N": 2, "y": [1.0, 2.0], "X": [[1, 2], [3, 4]]}')])
    assert data.values["N"] == 2 and data.values["X"].shape == (2, 2) and data.num_rows is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d.csv", "1,2\n3,4\n", "no line with the names of its columns"),
        ("d.csv", "a,b\n1\n", "has 2 columns, and 1 in line 2"),
        ("d.csv", "a,a\n1,2\n", "two columns of one name"),
        ("d.csv", "", "holds no data"),
        ("d.xlsx", "", "of no kind that can be read: give a file that ends in .csv"),
        ("d.json", "{", "cannot be read as json"),
        ("d.json", "3", "must hold an object of names and values"),
        ("d.json", '{"a": [[1, 2], [3]]}', "a is a ragged list"),
    ],
)
def test_a_bad_file_is_described(write, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_data([write(name, text)])


def test_two_files_must_agree(write):
    with pytest.raises(ValueError, match="both have a"):
        read_data([write("one.csv", "a\n1\n"), write("two.csv", "a\n1\n")])
    with pytest.raises(ValueError, match="has 2 rows, where another data file has 1"):
        read_data([write("one.csv", "a\n1\n"), write("three.csv", "b\n1\n2\n")])


# Columns to arguments


@pytest.fixture
def data(write):
    return read_data([write("table.csv", TABLE)])


def wanted(*names):
    return [Input(name, required=True) for name in names]


def test_names_are_matched_and_the_rest_is_the_matrix(data):
    found = map_arguments(wanted("X", "outcome"), data, [])
    assert found.values["X"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert found.values["outcome"].tolist() == [3, 4, 5] and not found.missing and not found.unused


def test_what_is_asked_for_goes_first(data):
    found = map_arguments(wanted("X", "y"), data, ["y=age", "X=dose,"])
    assert found.values["y"].tolist() == [1, 2, 3] and found.values["X"].shape == (3, 1)
    assert found.unused == ["Outcome"]
    star = map_arguments(wanted("Z", "y"), data, ["y=age", "Z=*"])
    assert star.values["Z"].shape == (3, 2)
    constant = map_arguments(wanted("y", "scale", "prior"), data, ["y=age", "scale=2.5", "prior=[1, 2]"])
    assert constant.values["scale"] == 2.5 and constant.values["prior"].tolist() == [1, 2]


def test_an_outcome_without_a_column_is_never_guessed_or_left_out(data):
    for inputs in (wanted("X", "y"), [*wanted("X"), Input("y", required=False, default=None)]):
        found = map_arguments(inputs, data, [])
        assert "y" in found.missing and "X" not in found.values
        assert "The data have age, dose, Outcome. Say which: --arg y=COLUMN" in explain_missing(found, data)


def test_sizes_are_counted(data):
    inputs = [Input("N", True, 0), Input("K", True, 0), Input("x", True, 2), Input("outcome", True, 1)]
    found = map_arguments(inputs, data, [])
    assert (found.values["N"], found.values["K"]) == (3, 2) and found.values["x"].shape == (3, 2)


def test_the_last_column_goes_to_the_last_argument(write):
    data = read_data([write("d.csv", "age,weight\n1,2\n2,3\n")])
    assert map_arguments(wanted("age", "response"), data, []).values["response"].tolist() == [2, 3]


def test_defaults_stay(data):
    found = map_arguments([*wanted("age"), Input("scale", required=False, default=2.0)], data, [])
    assert list(found.values) == ["age"] and not found.missing


def test_texts_become_numbers(write):
    data = read_data([write("d.csv", "site\nb\na\nb\n")])
    found = map_arguments(wanted("site"), data, [], first_code=1)
    assert found.values["site"].tolist() == [2, 1, 2] and "1 a, 2 b" in found.notes[0]


def test_new_data_go_where_the_old_ones_went(write):
    old = read_data([write("old.csv", "site,a,b,y\nb,1,2,3\nc,4,5,6\n")])
    before = map_arguments(wanted("X", "site", "y", "N"), old, [])
    new = read_data([write("new.csv", "b,extra,site,a\n20,0,c,10\n")])
    values = map_again(before, new, {"y"})
    assert values["X"].tolist() == [[10, 20]] and values["site"].tolist() == [1] and values["N"] == 1
    assert before.values["X"].tolist() == [[1, 2], [4, 5]]
    with pytest.raises(ValueError, match="site has 'd', which the data of the fit do not have"):
        map_again(before, read_data([write("other.csv", "site,a,b\nd,1,2\n")]), {"y"})
    with pytest.raises(ValueError, match="the new data lack y"):
        map_again(before, new, set())


def test_missing_values(write):
    data = read_data([write("d.csv", "a,b\n1,2\n,3\n4,5\n")])
    with pytest.raises(ValueError, match=r"values are missing in a \(1\), first in data row 2"):
        map_arguments(wanted("a", "b"), data, [])
    found = map_arguments([*wanted("a", "b"), Input("N", True, 0)], data, [], drop_missing=True)
    assert found.values["b"].tolist() == [2, 5] and found.values["N"] == 2 and "1 of 3 rows" in found.notes[0]
    assert map_arguments(wanted("b"), data, []).values["b"].tolist() == [2, 3, 5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("y", "--arg takes ARGUMENT=COLUMNS"),
        ("z=age", "the model has no argument 'z'"),
        ("y=agee", "there is no column 'agee', and it is no number. Did you mean 'age'"),
        ("y=age,doze", "there is no column 'doze'"),
    ],
)
def test_what_cannot_be_meant_is_described(data, given, message):
    with pytest.raises(UsageError, match=message):
        map_arguments(wanted("y"), data, [given])


# Models


def test_a_numpyro_model_is_found(write):
    path = write("m.py", "import numpyro\ndef helper(x): pass\ndef model(x, *, y=None): pass\n")
    model = load_model(str(path))
    assert isinstance(model, NumPyroModel) and [each.name for each in model.inputs()] == ["x", "y"]
    assert model.new_arguments({"x": 1, "y": 2}, set()) == ([1], {"y": 2})
    assert load_model(f"{path}:helper").function.__name__ == "helper"


def test_a_log_density_is_found_by_its_example(write):
    text = """
def example(X, **_):
    return {"b": [0.0] * X.shape[1]}


def log_density(params, X, y, scale=2.0):
    return -sum((y - X @ params["b"]) ** 2) / scale


supports = {"b": "positive"}
"""
    model = load_model(str(write("d.py", text.replace("[0.0] * X.shape[1]", "X[0] * 0.0 + 1.0"))))
    assert isinstance(model, LogDensity) and [each.name for each in model.inputs()] == ["X", "y", "scale"]
    target = model.target({"X": np.ones((4, 2)), "y": np.zeros(4)})
    assert target.dim == 2 and target.supports() == {"b": "positive"}


def test_pymc_models_and_functions_that_make_them(write):
    text = """
import numpy as np
import pymc as pm


def build(y):
    with pm.Model() as made:
        pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Data("seen", y))
    return made


model = build(np.zeros(3))
"""
    path = write("p.py", text)
    ready, function = load_model(str(path)), load_model(f"{path}:build")
    assert isinstance(ready, PyMCModel) and isinstance(function, PyMCFunction)
    assert [each.name for each in ready.inputs()] == ["seen"] and [each.name for each in function.inputs()] == ["y"]
    target = ready.target({"seen": np.ones(5)})
    assert target.observed_data()["y"].tolist() == [1.0] * 5


def test_a_target_that_the_file_made(write):
    text = "import jax.numpy as jnp, relbo\nready = relbo.from_log_density(lambda z: -jnp.sum(z**2), jnp.zeros(2))\n"
    model = load_model(str(write("t.py", text)))
    assert isinstance(model, ReadyTarget) and model.inputs() == [] and model.target({}).dim == 2


def test_a_stan_program_says_what_it_wants(write):
    text = "data { int N; matrix[N, 2] X; vector[N] y; } parameters { vector[2] b; } model { y ~ normal(X * b, 1); }"
    inputs = load_model(str(write("m.stan", text))).inputs()
    assert [(each.name, each.ndim) for each in inputs] == [("N", 0), ("X", 2), ("y", 1)]
    table = Data({"a": np.ones(3), "b": np.zeros(3), "y": np.ones(3)}, ("a", "b", "y"))
    values = map_arguments(inputs, table, [], first_code=1).values
    assert values["N"] == 3 and values["X"].shape == (3, 2)
    with pytest.raises(ValueError, match="stanc does not accept"):
        load_model(str(write("bad.stan", "data { int N }"))).inputs()


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "", "defines no model"),
        ("def one(): pass\ndef two(): pass\n", "", "defines one, two: say which is the model"),
        ("def model(): pass\n", ":modle", "has no 'modle'. Did you mean 'model'"),
        ("model = 3\n", ":model", "is int, and a model is a function"),
        ("def log_density(params): pass\n", "", "needs a point to begin with beside it"),
    ],
)
def test_what_a_file_lacks_is_described(write, text, name, message):
    with pytest.raises(UsageError, match=message):
        load_model(f"{write('m.py', text)}{name}")

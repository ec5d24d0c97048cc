"""Rows that stay on disk: every store, chunk and minibatch gives the sum over rows, and fits know nothing of it."""

import dataclasses
import pathlib
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr

import relbo
from helpers import door_of, mean_is
from relbo.model.door import anchored
from relbo.targets.rows.reading import Batches, ahead, even
from relbo.targets.rows.sources import ArrayRows, as_rows
from relbo.targets.rows.sums import FEW

NUM, COLUMNS = 103, 3
RNG = np.random.default_rng(5)
X = RNG.normal(size=(NUM, COLUMNS)).astype(np.float32)
Y = (RNG.random(NUM) < 1 / (1 + np.exp(-X @ [1.5, -0.5, 0.2] + 1))).astype(np.float32)
EXAMPLE = {"slopes": jnp.zeros(COLUMNS), "scale": 1.0}
SUPPORTS = {"scale": "positive"}
POINTS = 0.5 * np.random.default_rng(1).normal(size=(45, COLUMNS + 1))


def log_prior(params):
    return -jnp.sum(params["slopes"] ** 2) / 2 - params["scale"]


def log_likelihood(params, rows):
    logits = params["scale"] * (rows["x"] @ params["slopes"])
    return rows["y"] * logits - jax.nn.softplus(logits)


def log_density(params, x, y):
    return log_prior(params) + jnp.sum(log_likelihood(params, {"x": x, "y": y}))


def in_memory():
    return relbo.from_log_density(log_density, EXAMPLE, args=(X, Y), supports=SUPPORTS)


def by_rows(rows, **settings):
    return relbo.from_rows(log_prior, log_likelihood, EXAMPLE, rows, supports=SUPPORTS, **settings)


def with_chunks(target, rows_at_once):
    return relbo.targets.RowsTarget(target.model, target.source, target.initial, rows_at_once, target.batches)


def arrays(folder):
    return {"x": X, "y": Y}


def mapped(folder):
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}


def mapped_views(folder):
    """Columns first, in the file; rows and columns that nobody wants around the others."""
    whole = np.memmap(folder / "whole", np.float32, "w+", 128, (NUM + 2, COLUMNS + 2), order="F")
    whole[1:-1, 1:-1], whole[1:-1, -1] = X, Y
    return {"x": whole[1:-1, 1:-1], "y": whole[1:-1, -1]}


def zarr_arrays(folder):
    stored = {}
    for name, array in (("x", X), ("y", Y)):
        shape = {"shape": array.shape, "chunks": (10, *array.shape[1:]), "dtype": "float32"}
        stored[name] = zarr.create_array(folder / name, **shape)
        stored[name][:] = array
    return stored


def parquet_folder(folder):
    """Two files, of row groups that no chunk divides; a column of text that is not asked for."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), COLUMNS)
    table = pa.table({"x": lists, "y": pa.array(Y.astype(np.int8)), "word": ["a"] * NUM})
    pq.write_table(table.slice(0, 50), folder / "1.parquet", row_group_size=17)
    pq.write_table(table.slice(50), folder / "2.parquet", row_group_size=20)
    return as_rows(folder, ["x", "y"])


STORES = [arrays, mapped, mapped_views, zarr_arrays, parquet_folder]


@pytest.fixture(scope="module")
def expected():
    target = in_memory()
    return jax.vmap(jax.value_and_grad(target.log_density))(jnp.asarray(POINTS, jnp.float32))


@pytest.mark.parametrize("store", STORES)
def test_every_store_gives_the_sum_over_its_rows(store, tmp_path, expected):
    rows = store(tmp_path)
    target = by_rows(rows)
    for rows_at_once in (64, 13):
        values, slopes = with_chunks(target, rows_at_once).on_host()(POINTS)
        np.testing.assert_allclose(values, expected[0], rtol=2e-6)
        np.testing.assert_allclose(slopes, expected[1], rtol=1e-4, atol=1e-4)
    source = target.source
    np.testing.assert_array_equal(source.read(15, 60)["x"], X[15:60])
    np.testing.assert_array_equal(source.read(99, 103)["y"], Y[99:])
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.read(3, 30)["x"], X[3:30])


def test_a_memory_map_travels_without_its_rows(tmp_path):
    big = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (100_000, 2))
    assert len(pickle.dumps(ArrayRows({"x": big[5:, :1]}))) < 2000


def test_one_point_is_one_pass(expected):
    np.testing.assert_allclose(by_rows(arrays(None)).log_density(jnp.asarray(POINTS[0])), expected[0][0], rtol=1e-5)


def test_chunks_change_nothing_but_rounding():
    target = by_rows(arrays(None))
    all_at_once = with_chunks(target, 128).on_host()(POINTS)
    for size in (1, 7, 100):
        for found, exact in zip(with_chunks(target, size).on_host()(POINTS), all_at_once, strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_chunks_are_even_and_keep_the_order():
    pieces = [{"a": np.arange(start, stop)} for start, stop in ((0, 2), (2, 9), (9, 9), (9, 20), (20, 23))]
    chunks = list(ahead(even(iter(pieces), 4)))
    assert [len(chunk["a"]) for chunk in chunks] == [4, 4, 4, 4, 4, 3]
    np.testing.assert_array_equal(np.concatenate([chunk["a"] for chunk in chunks]), np.arange(23))


class Counted(ArrayRows):
    passes = 0

    def pieces(self, size):
        self.passes += 1
        return super().pieces(size)


def test_all_points_share_one_pass_and_programs_are_few():
    traced = []

    def traceable(params, rows):
        traced.append(rows["y"].shape)
        return log_likelihood(params, rows)

    source = Counted(arrays(None))
    target = with_chunks(relbo.from_rows(log_prior, traceable, EXAMPLE, source, supports=SUPPORTS), 16)
    host, source.passes = target.on_host(), 0
    traced.clear()
    for num in (2, FEW, 45, 33, 12):
        host(POINTS[:num])
    assert source.passes == 5 and len(traced) <= 6, traced  # of 8, 16 and 32 points, of 16 rows and the last 7
    door = door_of(target)
    source.passes = 0
    door.numbers(POINTS, "test")
    assert source.passes == 1 and door.num_evaluations == 45


def test_the_door_measures_in_double_precision():
    """Values far from zero: 1e8 is known to 8 in single precision."""
    target = relbo.from_rows(
        lambda z: -jnp.sum(z**2) / 2, lambda z, rows: rows - 0 * z[0], jnp.zeros(1), np.full(10_000, -12345.0)
    )
    values, rounding = door_of(target).values(np.array([[0.0], [0.5]]), "test")
    assert values[0] == -123_450_000.0 and values[0] - values[1] == pytest.approx(0.125) and rounding < 1e-6


def test_zero_density_and_nan_stay_apart():
    def cut(z, rows):
        return jnp.where(z[0] > 1, -jnp.inf, jnp.where(z[0] < -1, jnp.nan, -rows * z[0] ** 2))

    target = relbo.from_rows(lambda z: -jnp.sum(z**2), cut, jnp.zeros(1), np.ones(20, np.float32))
    values, slopes = target.on_host()(np.array([[0.5], [2.0], [-2.0]]))
    assert values[0] == pytest.approx(-5.25) and values[1] == -np.inf and np.isnan(values[2])
    assert slopes[1, 0] == 0


# Minibatches


@pytest.mark.parametrize("store", [arrays, parquet_folder])
def test_minibatches_are_unbiased(store, tmp_path, expected):
    target = by_rows(store(tmp_path), batch_size=40)
    assert target.subsamples and target.batches.num_pieces * target.batches.piece > NUM  # the last piece is short
    at = POINTS[:2]
    found = [target.on_host((jax.random.key(0), number))(at) for number in range(400)]
    assert mean_is(np.array([values for values, _ in found]), np.asarray(expected[0])[:2], rounding=1e-3)
    assert mean_is(np.array([slopes for _, slopes in found]), np.asarray(expected[1])[:2], rounding=1e-3)
    assert np.std([values for values, _ in found]) > 0.1


def test_an_anchor_makes_minibatches_exact_where_it_stands(expected):
    target = by_rows(arrays(None), batch_size=16)
    door = anchored(door_of(target), POINTS[0])
    own = np.asarray(jax.vmap(door.target.whiten)(jnp.asarray(POINTS[:3], jnp.float32)))
    whole = door(own, "test")
    parts = [door(own, "test", batch=(jax.random.key(1), number)) for number in range(20)]
    for part in parts:
        np.testing.assert_allclose(part.values[0], whole.values[0], rtol=1e-5)
        np.testing.assert_allclose(part.slopes[0], whole.slopes[0], rtol=1e-3, atol=1e-3)
    assert np.std([part.values[1] for part in parts]) > 1e-3
    assert mean_is(np.array([part.slopes[1] for part in parts]), whole.slopes[1], rounding=1e-3)


def test_the_next_minibatch_is_read_ahead():
    reads = []

    class Noted(ArrayRows):
        def read(self, start, stop):
            reads.append((start, stop))
            return super().read(start, stop)

    batches, key = Batches(Noted(arrays(None)), 16), jax.random.key(3)
    first = batches.at(key, 0)
    ahead_of_need = list(batches._futures.values())[1]
    ahead_of_need.result()
    num = len(reads)
    assert num == 2 * batches.num_chosen
    assert batches.at(key, 0) is first  # who climbs on one minibatch reads it once
    assert batches.at(key, 1) is ahead_of_need.result()
    np.testing.assert_array_equal(
        Batches(ArrayRows(arrays(None)), 16).at(key, 1).rows["x"], batches.at(key, 1).rows["x"]
    )


# Fits


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    target = by_rows(mapped(folder))
    return target, relbo.fit(target, max_components=2, max_memory="1MB", progress_bar=False)


def test_a_fit_is_that_of_rows_in_memory(fitted, tmp_path):
    target, posterior = fitted
    expected = relbo.fit(in_memory(), max_components=2, progress_bar=False)
    assert abs(posterior.elbo.value - expected.elbo.value) < 0.05  # of 50 nats; both are fits, not the truth
    draws = posterior.sample_unconstrained(200, seed=1)
    np.testing.assert_allclose(posterior.log_target(draws), jax.vmap(in_memory().log_density)(draws), rtol=1e-5)
    diagnosis = relbo.diagnose(posterior, num_draws=1000)
    other = relbo.diagnose(expected, num_draws=1000)
    assert abs(diagnosis.log_z.value - other.log_z.value) < 5 * np.hypot(diagnosis.log_z.std_err, other.log_z.std_err)
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=50)
    assert (tmp_path / "fit.relbo").stat().st_size < 200_000
    loaded = relbo.load(tmp_path / "fit.relbo")
    np.testing.assert_array_equal(loaded.sample(5)["slopes"], posterior.sample(5)["slopes"])
    attached = relbo.load(tmp_path / "fit.relbo", target=target)
    np.testing.assert_allclose(attached.log_target(draws), posterior.log_target(draws), rtol=1e-6)


@pytest.mark.slow
def test_a_killed_fit_goes_on_to_the_same_bits(fitted, tmp_path, monkeypatch):
    target, whole = fitted
    path, settings = tmp_path / "fit.ckpt", {"max_components": 2, "max_memory": "1MB", "progress_bar": False}
    step = relbo.Booster.step

    def dies(self, *args, **kwargs):
        raise SystemExit("killed")

    monkeypatch.setattr(relbo.Booster, "step", dies)
    monkeypatch.setattr(relbo.Booster, "learn", dies)
    with pytest.raises(SystemExit):
        relbo.fit(target, checkpoint=path, **settings)
    monkeypatch.undo()
    assert relbo.Booster.step is step and path.exists()
    resumed = relbo.fit(target, checkpoint=path, **settings)
    np.testing.assert_array_equal(resumed.sample_unconstrained(10), whole.sample_unconstrained(10))
    assert resumed.elbo.value == whole.elbo.value


def test_budgets_hold_inside_a_pass():
    source, calls = Counted(arrays(None)), []

    def between():
        calls.append(1)
        if len(calls) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        with_chunks(by_rows(source), 4).on_host(None, between)(POINTS)
    assert len(calls) == 3


# Memory


def test_chunks_follow_the_memory_that_is_allowed(tmp_path):
    wide = np.lib.format.open_memmap(tmp_path / "wide.npy", "w+", np.float32, (4000, 1000))
    target = relbo.from_rows(lambda b: -(b**2), lambda b, rows: -((rows[:, 0] - b) ** 2), 0.0, wide)
    allowed = [target.within(limit).rows_at_once for limit in (400_000, 4_000_000, 10**9)]
    assert allowed[0] * 4000 < 100_000 < allowed[1] * 4000 < 10**6 and allowed[2] == target.rows_at_once
    with pytest.raises(ValueError, match=r"max_memory is 0.01 MB, and the data come in rows, one of which need about"):
        relbo.fit(target, max_memory=10_000)
    rows = zarr_arrays(tmp_path)
    with pytest.raises(ValueError, match=r"groups of 10 rows.*smaller chunks or row groups"):
        relbo.make_booster(by_rows(rows), max_memory=3000)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_pass_leaves_no_pages_behind(tmp_path):
    """A memory map of 64 MB, read whole: the resident set must not grow by it, in the middle or at the end."""
    wide = np.lib.format.open_memmap(tmp_path / "wide.npy", "w+", np.float32, (2**14, 1000))
    for start in range(0, 2**14, 1024):
        wide[start : start + 1024] = 1.0
    wide = np.load(tmp_path / "wide.npy", mmap_mode="r")
    target = relbo.from_rows(lambda b: -(b**2), lambda b, rows: -((rows[:, 0] - b) ** 2), 0.0, wide).within(4_000_000)
    seen = []
    target.on_host()(np.zeros((1, 1)))
    before = resident()
    target.on_host(None, lambda: seen.append(resident()))(np.zeros((1, 1)))
    assert max(seen) - before < 16e6


def resident() -> int:
    return int(pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


# Words


def test_what_is_wrong_is_said(tmp_path):
    rows = arrays(None)
    with pytest.raises(ValueError, match=r"one number for every row.*got shape \(\) for 3 rows. Do not sum"):
        relbo.from_rows(log_prior, lambda p, r: jnp.sum(log_likelihood(p, r)), EXAMPLE, rows)
    with pytest.raises(ValueError, match=r"log_prior must return a scalar, got shape \(3,\)"):
        relbo.from_rows(lambda p: p["slopes"], log_likelihood, EXAMPLE, rows)
    with pytest.raises(ValueError, match="must not depend on the other rows"):
        relbo.from_rows(log_prior, lambda p, r: log_likelihood(p, r) - r["x"].std(), EXAMPLE, rows)
    with pytest.raises(ValueError, match=r"same length, of at least 1, got rows\['x'\] 103, rows\['y'\] 50"):
        by_rows({"x": X, "y": Y[:50]})
    with pytest.raises(TypeError, match=r"rows\['x'\] has dtype <U1, which is not numeric"):
        by_rows({"x": np.array(["a"]), "y": Y[:1]})
    with pytest.raises(ValueError, match=r'open it first, as np.load\(path, mmap_mode="r"\)'):
        by_rows("rows.npy")
    with pytest.raises(ValueError, match="neither a Parquet file nor a folder"):
        by_rows(tmp_path / "nothing")
    broken = X.copy()
    broken[71, 1] = np.nan
    with pytest.raises(ValueError, match=r"NaN, first among rows 0 to 102: rows\['x'\]\[71,1\] = nan"):
        by_rows({"x": broken, "y": Y})
    with pytest.raises(TypeError, match="reads its rows on the host, so JAX cannot trace"):
        jax.grad(by_rows(rows).log_density)(jnp.zeros(4))
    with pytest.raises(ValueError, match="can evaluate on every device; RowsTarget is evaluated on the host"):
        relbo.fit(by_rows(rows), mesh=jax.make_mesh((1,), ("data",)))


def test_what_is_wrong_with_a_dataset_is_said(tmp_path):
    parquet_folder(tmp_path)
    with pytest.raises(TypeError, match=r"column 'word' has type string.*columns=\["):
        by_rows(tmp_path)
    with pytest.raises(ValueError, match=r"no columns \['z'\]"):
        by_rows(tmp_path, columns=["z"])
    filtered = ds.dataset(tmp_path).filter(ds.field("y") > 0)
    assert as_rows(filtered, ["x", "y"]).num_rows == Y.sum()
    with pytest.raises(ValueError, match="filtered or projected does not tell"):
        by_rows(filtered, columns=["x", "y"])
    holes = pa.table({"x": pa.array([1.0, None])})
    with pytest.raises(ValueError, match="column 'x' has 1 nulls"):
        relbo.from_rows(lambda b: -(b**2), lambda b, r: r["x"] * b, 0.0, holes)


def test_a_start_of_zero_density_is_moved():
    def cut(z, rows):
        return jnp.where(z < 0.05, -jnp.inf, -rows * z)

    with pytest.warns(UserWarning, match="so the fit starts from a point near it"):
        target = relbo.from_rows(lambda z: -z, cut, 0.0, np.ones(5, np.float32))
    assert float(target.initial[0, 0]) > 0.05
    assert dataclasses.is_dataclass(target.model)

"""Many fits: here, in processes and on a cluster of Dask's, all the same; failures counted, folders that go on."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import joblib
import numpy as np
import pytest

import relbo
from relbo.runtime.functions import fingerprint
from relbo.runtime.journal import Journal
from relbo.runtime.workers import AbstractTask, run_jobs

SETTINGS = {"max_components": 1, "precondition": "affine", "progress_bar": False}


def log_density(z, y):
    return -0.5 * jnp.sum(z**2) / 4.0 - 0.5 * jnp.sum((y - z[0]) ** 2) - 0.5 * (z[1] - z[0]) ** 2


def target_at(center: float):
    return relbo.from_log_density(log_density, jnp.zeros(2), args=(jnp.full(3, center, jnp.float32),))


def wrong(z):
    return jnp.sum(z) * jnp.nan


def broken():
    return relbo.from_log_density(wrong, jnp.zeros(2))


def fit_many(*args, **kwargs):
    return relbo.fit_many(*args, **({"num_processes": 1} | SETTINGS | kwargs))


@dataclass(frozen=True)
class Square(AbstractTask):
    """A task that may end its process."""

    deadly: int | None = None

    def run(self, number, job):
        if job == self.deadly:
            os._exit(3)
        return job**2

    def failed(self, number, job, message):
        return f"{job}: {message}"


@pytest.fixture(scope="module")
def cluster():
    """Two processes of Dask's, which talk as on two machines."""
    import dask

    from distributed import Client, LocalCluster

    settings = {"distributed.scheduler.allowed-failures": 0}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as started,
        Client(started),
    ):
        yield started


# Fits


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits")
    return folder, fit_many({"low": target_at(-1.0), "high": partial(target_at, 2.0)}, seeds=[0, 3], folder=folder)


def test_every_target_with_every_seed(fits):
    folder, found = fits
    assert sorted(found) == [("high", 0), ("high", 3), ("low", 0), ("low", 3)] and not found.failures
    alone = relbo.fit(target_at(-1.0), seed=3, **SETTINGS)
    np.testing.assert_array_equal(found["low", 3].locations, alone.locations)
    assert found["high", 0].elbo.value != found["low", 0].elbo.value
    assert sorted(path.name for path in folder.glob("*.relbo"))[0] == "high-seed0.relbo"
    assert "4 fits; 0 failures." in str(found) and "high" in str(found)
    assert found["low", 0].log_target(np.zeros((1, 2), np.float32)).shape == (1,)  # with its target


def test_the_best_is_of_one_target(fits):
    _, found = fits
    best = max(each.elbo.value for each in found.fitted if each.name == "low")
    assert found.best("low").elbo.value == best
    with pytest.raises(ValueError, match=r"different targets cannot be compared: best\(name\)"):
        found.best()
    with pytest.raises(ValueError, match="no fit of 'lower'"):
        found.best("lower")
    with pytest.raises(KeyError, match="a name and a seed"):
        found["low", 7]


def test_a_folder_goes_on_where_it_was_stopped(fits, monkeypatch):
    folder, found = fits
    made = []

    def counted(target, seed, **settings):
        made.append(seed)
        return relbo.fit(target, seed=seed, **settings)

    monkeypatch.setattr("relbo.loop.many.fit", counted)
    (folder / "low-seed3.relbo").unlink()
    again = fit_many({"low": target_at(-1.0), "high": partial(target_at, 2.0)}, seeds=[0, 3, 4], folder=folder)
    assert sorted(made) == [3, 4, 4] and len(again) == 6
    np.testing.assert_array_equal(again["high", 0].locations, found["high", 0].locations)
    assert again.kept["high", 0].fitted == found.kept["high", 0].fitted


def test_a_folder_of_other_fits_is_refused(fits):
    folder, _ = fits
    with pytest.raises(ValueError, match=r"belongs to another call \(settings: .*'max_components': 2"):
        fit_many(target_at(-1.0), folder=folder, max_components=2)
    with pytest.raises(ValueError, match=r"low-seed0.relbo is a fit to other data than 'low' has now"):
        fit_many({"low": target_at(-1.5)}, folder=folder)


def test_a_folder_knows_functions_by_their_code(tmp_path):
    """A lambda among the settings is another object in every process, and may be the same function."""

    def less(slack):
        return lambda posterior: slack - posterior.elbo.value

    target = target_at(1.0)
    fit_many(target, folder=tmp_path, best_by=less(0.0))
    assert len(fit_many(target, folder=tmp_path, best_by=less(0.0))) == 1
    for other in (less(1.0), lambda posterior: posterior.elbo.value):
        with pytest.raises(ValueError, match="belongs to another call"):
            fit_many(target, folder=tmp_path, best_by=other)
    settings = {"best_by": partial(less, 0.0)}
    fit_many(target, folder=tmp_path / "nameless", **settings)
    with pytest.raises(ValueError, match="belongs to another call") as refused:
        fit_many(target, folder=tmp_path / "nameless", best_by=partial(less(0.0)))
    assert "best_by: what has no name" in refused.value.__notes__[0]


def test_a_fingerprint_is_the_same_in_another_process():
    source = "f = lambda x, y=(1, 'a'): (x in {'b', 'c', 'd'}, [i + y for i in x])"
    code = f"{source}\nfrom relbo.runtime.functions import fingerprint\nprint(fingerprint(f))"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    space: dict = {}
    exec("\n\n" + source, space)
    assert {run.stdout.strip() for run in runs} == {fingerprint(space["f"])}


def test_failures_are_counted_and_tried_again(tmp_path):
    found = fit_many([broken, target_at(1.0)], folder=tmp_path)
    (failure,) = found.failures
    assert (failure.name, failure.seed) == ("0", 0) and "ValueError" in failure.message
    assert list(found) == [("1", 0)] and "1 fits; 1 failure." in str(found) and "first failure: 0, seed 0" in str(found)
    mended = fit_many([target_at(0.0), target_at(1.0)], folder=tmp_path)
    assert len(mended) == 2 and not mended.failures


def test_ctrl_c_keeps_what_is_done(monkeypatch):
    def interrupted(target, seed, **settings):
        if seed == 2:
            raise KeyboardInterrupt
        return relbo.fit(target, seed=seed, **settings)

    monkeypatch.setattr("relbo.loop.many.fit", interrupted)
    with pytest.warns(UserWarning, match="Interrupted: returning 2 of 3 fits"):
        assert len(fit_many(target_at(1.0), seeds=range(3))) == 2


def test_all_are_compared_with_one_reference(fits):
    _, found = fits
    rng = np.random.default_rng(0)
    agreements, failures = found.compare(found["low", 0], 1000, num_processes=1)
    assert not failures and agreements["low", 3].agrees and not agreements["high", 0].agrees
    _, failures = found.compare({"nothing": rng.normal(size=200)}, 1000, num_processes=1)
    assert len(failures) == len(found)


def test_wrong_use_is_said():
    with pytest.raises(TypeError, match="fit_many has no setting checkpoint: seeds are its second argument, folder="):
        fit_many(target_at(0.0), checkpoint="fit.ckpt")
    with pytest.raises(TypeError, match="fit has no setting famly"):
        fit_many(target_at(0.0), famly="normal")
    with pytest.raises(ValueError, match="every seed once"):
        fit_many(target_at(0.0), seeds=[1, 1])
    with pytest.raises(ValueError, match=r"names of files: .* got 'a/b'"):
        fit_many({"a/b": target_at(0.0)})


# Where jobs run


def test_threads_are_not_used():
    """JAX has its own: a backend of threads means this process."""
    with joblib.parallel_config("threading", n_jobs=2):
        assert dict(run_jobs(Square(), {1: 3, 2: 5}, None)) == {1: 9, 2: 25}


@pytest.mark.slow
def test_processes_of_this_machine_may_die():
    jobs = dict(enumerate(range(6)))
    found = dict(run_jobs(Square(deadly=4), jobs, 2))
    assert {number: found[number] for number in (0, 1, 2, 3, 5)} == {0: 0, 1: 1, 2: 4, 3: 9, 5: 25}
    assert found[4].startswith("4: its process died")


def test_a_cluster_of_dask_makes_the_same_fits(cluster, fits, tmp_path):
    _, here = fits
    with joblib.parallel_config("dask"):
        there = relbo.fit_many({"low": target_at(-1.0)}, seeds=[0, 3], folder=tmp_path, **SETTINGS)
        agreements, failures = there.compare(here["low", 0], 1000)
    assert sorted(there) == [("low", 0), ("low", 3)] and not there.failures and not failures
    for key in there:
        # To rounding: a process of Dask's does not share the compile options of the tests.
        np.testing.assert_allclose(there[key].locations, here[key].locations, rtol=1e-5)
        np.testing.assert_allclose(there[key].sample_unconstrained(3), here[key].sample_unconstrained(3), rtol=1e-5)
        assert agreements[key].agrees


def simulate(rng):
    level = rng.normal(0.0, 2.0, 2).astype(np.float32)
    return level, rng.normal(level[0], 1.0)


def test_a_calibration_on_dask_is_the_same(cluster):
    settings = {"make_target": target_at, "num_simulations": 4, "num_draws": 50, "progress_bar": False}
    settings["fit"] = {name: value for name, value in SETTINGS.items() if name != "progress_bar"}
    here = relbo.calibrate(simulate, num_processes=1, **settings)
    with joblib.parallel_config("dask"):
        there = relbo.calibrate(simulate, **settings)
    assert here.num_failures == there.num_failures == 0 and here.names == there.names
    np.testing.assert_array_equal(here.ranks, there.ranks)


class Threads(Square):
    def run(self, number, job):
        return os.environ["NPROC"]


def test_a_worker_of_dask_has_the_threads_that_dask_gives_it(cluster, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 48)  # of this machine, which is none of theirs
    with joblib.parallel_config("dask"):
        assert dict(run_jobs(Threads(), {0: 1}, None)) == {0: "2"}  # one, and one that may wait for a callback


def test_a_worker_of_dask_may_die(cluster):
    with joblib.parallel_config("dask", wait_for_workers_timeout=120):  # they are started again
        found = dict(run_jobs(Square(deadly=3), dict(enumerate(range(5))), None))
    assert found.pop(3).startswith("3: no worker finished it (KilledWorker: ")
    assert found == {0: 0, 1: 1, 2: 4, 4: 16}


# The journal


def test_a_journal_forgets_a_line_that_was_cut_short(tmp_path):
    path, facts = tmp_path / "done.jsonl", {"seed": 3}
    journal = Journal(path, "a test", facts)
    journal.add({"number": 1})
    journal.add({"number": 2})
    path.write_bytes(path.read_bytes()[:-4])
    again = Journal(path, "a test", facts)
    assert again.entries == [{"number": 1}]
    again.add({"number": 5})
    assert Journal(path, "a test", facts).entries == [{"number": 1}, {"number": 5}]
    with pytest.raises(ValueError, match=r"belongs to another call \(seed: 3 there, 4 here\)"):
        Journal(path, "a test", {"seed": 4})
    path.write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="is no journal of a test"):
        Journal(path, "a test", facts)

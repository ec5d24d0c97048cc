"""Two processes on this machine, with half of the rows each: the posterior of one process that has them all."""

import pathlib
import re
import time

import numpy as np
import pytest

import fault_worker
import relbo
from mesh_crew import Crew

LEAN = {"model": "logistic", "settings": "lean"}
COLLECTIVE = re.compile(r"= .*\b(all-reduce|all-gather|all-to-all|collective-permute)(?:-start)?\(")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def jobs(settings: str = "lean") -> list[dict]:
    return [
        {"name": "density", "model": "logistic", "how": "read", "settings": settings},
        {"name": "plate", "model": "plate", "how": "data", "settings": settings},
    ]


@pytest.fixture(scope="module")
def together(tmp_path_factory, cache):
    """All that two processes do well, in one pair of them: starting costs the most."""
    folder = tmp_path_factory.mktemp("together")
    density, plate = jobs()
    density |= {"checkpoint": str(folder / "fit.ckpt"), "save": str(folder / "fit.relbo")}
    points = {"name": "points", **LEAN, "how": "points"}
    seeds = {"name": "seeds", **LEAN, "how": "data", "seeds": True}
    return Crew(folder, cache, density, plate, points, seeds, dump=str(folder / "dump")).ends_well()


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cache):
    return Crew(tmp_path_factory.mktemp("alone"), cache, *jobs(), processes=1).ends_well()


def check_same_posterior(two: Crew, one: Crew, name: str, alone_name: str | None = None) -> None:
    """Between the two to the last bit; to one process, which sums in another order, to rounding."""
    first, second, whole = two.found(name), two.found(name, 1), one.found(alone_name or name)
    for key, expected in whole.items():
        assert np.array_equal(first[key], second[key]), key
        assert first[key].shape == expected.shape, key  # as many components
        np.testing.assert_allclose(first[key], expected, rtol=2e-3, atol=2e-3, err_msg=key)


@pytest.mark.parametrize("name", ["density", "plate"])
def test_two_processes_find_the_posterior_of_one(together, alone, name):
    check_same_posterior(together, alone, name)


def test_points_divided_among_processes_give_the_same(together, alone):
    check_same_posterior(together, alone, "points", "density")


def test_an_evaluation_is_one_sum_over_devices_and_no_program_gathers_data(together):
    """Of all programs of all fits, as XLA compiled them."""
    evaluations = 0
    for path in (together.folder / "dump").glob("*after_optimizations.txt"):
        found = COLLECTIVE.findall(path.read_text())
        if "jit_evaluate" in path.name and found != [] and "all-gather" not in found:
            evaluations += 1
            assert found == ["all-reduce"], path.name
        elif "_identity_fn" not in path.name:  # by which processes compare a few bytes
            assert "all-gather" not in found or _gathers_points(path), path.name
    assert evaluations >= 2  # a log density and a plate


def _gathers_points(path: pathlib.Path) -> bool:
    """Where points were divided, their values and gradients are all that is gathered: blocks are powers of two, and
    the data have 240 rows."""
    gathered = re.findall(r"= \(?f32\[(\d+)[^=]*all-gather(?:-start)?\(", path.read_text())
    return "jit_evaluate" in path.name and all(int(length).bit_count() == 1 for length in gathered)


def test_the_first_process_alone_writes_files_that_others_read(together):
    posterior = relbo.load(together.folder / "fit.relbo")
    np.testing.assert_array_equal(posterior.weights, together.found("density")["weights"])
    assert sorted(path.name for path in together.folder.glob("fit.*")) == ["fit.ckpt", "fit.relbo"]


def test_seeds_that_differ_are_refused_by_all(together):
    for process in range(2):
        message = together.error("seeds", process)
        assert message.startswith("ValueError: The processes of this fit differ in the seed.")
        assert f"Process {process} has the seed: {process}." in message


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_others_and_the_same_command_goes_on(num_kills, together, cache, tmp_path):
    """To the same bits, wherever it strikes."""
    rng = np.random.default_rng(num_kills)
    path, expected = tmp_path / "fit.ckpt", fault_worker.digest(str(together.folder / "fit.ckpt"))
    job, slowest, kills = {"name": "killed", **LEAN, "how": "read", "checkpoint": str(path)}, 0.0, 0
    while kills < num_kills:
        crew = Crew(tmp_path, cache, job)
        victim = int(rng.integers(2))
        _wait_for_a_write(path, crew)
        time.sleep(rng.uniform(0, 0.3))
        if crew.processes[0].poll() is not None or _is_whole(path):  # it was too quick: begin anew
            crew.wait()
            path.unlink()
            continue
        crew.processes[victim].kill()
        begun = time.monotonic()
        assert crew.processes[1 - victim].wait(60) != 0
        slowest, kills = max(slowest, time.monotonic() - begun), kills + 1
        crew.wait()
        assert "has died or cannot be reached" in crew.log(1 - victim) or "another task died" in crew.log(1 - victim)
    print(f"{kills} kills, the other process ended within {slowest:.1f} s")
    Crew(tmp_path, cache, job).ends_well()
    assert fault_worker.digest(str(path)) == expected


def _wait_for_a_write(path: pathlib.Path, crew: Crew) -> None:
    before = path.stat().st_mtime_ns if path.exists() else None
    while all(process.poll() is None for process in crew.processes):
        if path.exists() and path.stat().st_mtime_ns != before:
            return
        time.sleep(0.002)


def _is_whole(path: pathlib.Path) -> bool:
    return not path.with_name(f"{path.name}.previous").exists() and len(relbo.load(path).trace) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["density", "plate"])
def test_by_default_too(name, tmp_path_factory, cache):
    job = [job for job in jobs("default") if job["name"] == name]
    two = Crew(tmp_path_factory.mktemp("two"), cache, *job).ends_well()
    check_same_posterior(two, Crew(tmp_path_factory.mktemp("one"), cache, *job, processes=1).ends_well(), name)

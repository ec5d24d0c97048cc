"""Checkpoints: a fit goes on where its file says, a foreign or damaged file is refused, a full disk costs no result."""

import contextlib
import errno
import os
import resource

import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from fault_worker import log_density
from lean_fits import SETTINGS, interrupting, lean_target, same, undisturbed
from relbo.ascent import GradientAscent
from relbo.storage import container
from relbo.storage.checkpoint import locked


@pytest.fixture
def target():
    return lean_target()


@pytest.fixture
def whole():
    return undisturbed()


def test_a_finished_checkpoint_gives_its_result_and_goes_on_if_allowed(target, whole, tmp_path):
    path = tmp_path / "fit.ckpt"
    assert same(relbo.fit(target, checkpoint=path, **{**SETTINGS, "max_components": 3}), relbo.load(path))
    assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)
    again = relbo.fit(target, checkpoint=path, **SETTINGS)
    assert same(again, whole) and again.stop_reason == whole.stop_reason
    assert os.listdir(tmp_path) == ["fit.ckpt"]


def test_a_checkpoint_of_another_fit_is_refused(target, tmp_path):
    path = tmp_path / "fit.ckpt"
    relbo.fit(target, checkpoint=path, **{**SETTINGS, "max_components": 1})
    before = path.read_bytes()
    wider = relbo.from_log_density(lambda x: jnp.sum(jnp.log1p(3 + x**2) - 0.5 * x**2), jnp.zeros(1))
    for model, changed, message in (
        (target, {"seed": 4}, "its seed is 3, not 4"),
        (target, {"step": "line_search"}, "step_rule, min_improvement differ"),
        (wider, {}, "its log density is not this one"),
        (relbo.from_log_density(log_density, jnp.zeros(2)), {}, "1 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            relbo.fit(model, checkpoint=path, **{**SETTINGS, **changed})
    assert path.read_bytes() == before


def test_a_saved_posterior_is_no_checkpoint(target, whole, tmp_path):
    relbo.save(whole, tmp_path / "fit.relbo", num_draws=0)
    with pytest.raises(ValueError, match="a saved posterior, not a checkpoint"):
        relbo.fit(target, checkpoint=tmp_path / "fit.relbo", **SETTINGS)


def test_bad_paths(target, tmp_path):
    with pytest.raises(ValueError, match="which is not a folder"):
        relbo.fit(target, checkpoint=tmp_path / "no" / "fit.ckpt", **SETTINGS)
    with pytest.raises(ValueError, match="is a folder"):
        relbo.fit(target, checkpoint=tmp_path, **SETTINGS)


def test_a_continued_fit_has_checkpoints_too(target, whole, tmp_path):
    start = relbo.fit(target, **{**SETTINGS, "max_components": 3})
    path = tmp_path / "fit.ckpt"
    rest = {key: value for key, value in SETTINGS.items() if key in ("seed", "stop", "progress_bar")}
    relbo.fit(target, start=start, checkpoint=path, max_components=5, **rest)
    assert same(relbo.fit(target, start=start, checkpoint=path, max_components=8, **rest), whole)


def test_other_data_are_another_fit(tmp_path):
    """Where all predictors are zero a logistic regression does not depend on its data: one point would not do."""

    def logistic(beta, x, y):
        return -0.5 * jnp.sum(beta**2) - jnp.sum(jnp.log1p(jnp.exp(-y * (x @ beta))))

    x, y = np.linspace(-1, 1, 40).reshape(20, 2), np.where(np.arange(20) % 3, 1.0, -1.0)
    path, short = tmp_path / "fit.ckpt", {**SETTINGS, "max_components": 1}
    relbo.fit(relbo.from_log_density(logistic, jnp.zeros(2), args=(x, y)), checkpoint=path, **short)
    with pytest.raises(ValueError, match="other data, or another model"):
        relbo.fit(relbo.from_log_density(logistic, jnp.zeros(2), args=(x, -y)), checkpoint=path, **short)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_other_data_are_another_fit_however_large_the_density(scale, tmp_path):
    """What rounding allows grows with the log density, so values alone would take one model for the other."""

    def log_density(z, mean):
        return -3e5 - 0.5 * jnp.sum((z - mean) ** 2) / scale**2 - jnp.log1p(z[1] ** 2)

    models = [relbo.from_log_density(log_density, jnp.zeros(3), args=(mean,)) for mean in np.eye(3)]
    settings = {**SETTINGS, "max_components": 1, "checkpoint": tmp_path / "fit.ckpt"}
    first = relbo.fit(models[0], **settings)
    with pytest.raises(ValueError, match="log density is not this one"):
        relbo.fit(models[2], **settings)
    assert same(relbo.fit(models[0], **settings), first)


def test_a_checkpoint_of_an_older_version_has_no_slopes(target, whole, tmp_path):
    path = tmp_path / "fit.ckpt"
    relbo.fit(target, checkpoint=path, **{**SETTINGS, "max_components": 3})
    header, arrays = container.unpack(path.read_bytes(), "")
    assert len(header["fit"].pop("slopes")) == 35
    container.write_atomically(path, container.pack(header, arrays))
    assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)


def test_another_start_is_another_fit(target, tmp_path):
    one, other = (relbo.fit(target, **{**SETTINGS, "max_components": 2, "seed": seed}) for seed in (3, 4))
    path, rest = tmp_path / "fit.ckpt", {"seed": 3, "stop": (), "max_components": 3}
    relbo.fit(target, start=one, checkpoint=path, **rest)
    with pytest.raises(ValueError, match="not begun from this start"):
        relbo.fit(target, start=other, checkpoint=path, **rest)
    with pytest.raises(ValueError, match="it was begun with start=, and this one has none"):
        relbo.fit(target, checkpoint=path, **{**SETTINGS, **rest})
    begun_anew = tmp_path / "anew.ckpt"
    relbo.fit(target, checkpoint=begun_anew, **{**SETTINGS, "max_components": 2})
    with pytest.raises(ValueError, match="not begun from this start"):
        relbo.fit(target, start=one, checkpoint=begun_anew, **rest)


def test_numpy_numbers_and_infinite_scores_can_be_written(target, whole, tmp_path):
    scores = iter([-np.inf, 1.0, np.nan, 0.0])
    settings = {**SETTINGS, "seed": np.int64(3), "best_by": lambda posterior: np.float32(next(scores, -1.0))}
    posterior = relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **settings)
    assert posterior.num_components == 2  # the iterate with the best score
    assert same(relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **settings), posterior)
    loud = relbo.fit(target, min_improvement=np.float64(-np.inf), **{**SETTINGS, "max_components": 2})
    relbo.save(loud, tmp_path / "fit.relbo", num_draws=0)
    assert same(relbo.load(tmp_path / "fit.relbo"), loud)


def test_the_best_iterate_is_the_one_that_is_polished(target, tmp_path):
    short = {"refine": GradientAscent(num_steps=5, num_draws=4), "max_components": 3}
    settings = {**SETTINGS, **short, "checkpoint": tmp_path / "fit.ckpt"}
    scores = iter([0.0, 1.0])
    posterior = relbo.fit(target, best_by=lambda posterior: next(scores, -1.0), **settings)
    assert posterior.num_components == 2 and posterior.trace[-1].kind == "polish"
    more = relbo.fit(target, best_by=lambda posterior: -1.0, **{**settings, "max_components": 4})
    assert more.num_components == 2 and len(more.trace) == 5  # it went on, and the second was the best


def test_a_continued_fit_may_have_another_step_rule(target):
    start = relbo.fit(target, **{**SETTINGS, "max_components": 2})
    for step in ("adaptive", "fully_corrective"):
        assert relbo.fit(target, start=start, step=step, stop=(), max_components=3).num_components >= 2
    kept = relbo.fit(target, start=start, max_memory="1GB", stop=(), max_components=2)
    assert kept.booster.step_rule == start.booster.step_rule and kept.booster.oracle == start.booster.oracle


def test_one_fit_leaves_the_files_of_another_alone(target, tmp_path):
    live = tmp_path / ".fit.2.0123456789abcdef.relbo-tmp"
    dead = tmp_path / ".fit.0123456789abcdef.relbo-tmp"
    live.touch()
    dead.touch()
    relbo.fit(target, checkpoint=tmp_path / "fit", **{**SETTINGS, "max_components": 1})
    assert live.exists() and not dead.exists()


@pytest.fixture
def sealed(monkeypatch):
    """Nothing can be made in any folder (the tests may run as root, who can write everywhere)."""

    def seal() -> None:
        opened = os.open

        def refuse(name, flags, *rest, **more):
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            return opened(name, flags, *rest, **more)

        monkeypatch.setattr(os, "open", refuse)

    return seal


def test_a_folder_that_cannot_be_written(sealed, target, tmp_path):
    sealed()
    with pytest.raises(ValueError, match=r"which cannot be written .Permission denied.. Give another path"):
        relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **SETTINGS)


def test_a_finished_checkpoint_needs_only_to_be_read(sealed, target, whole, tmp_path, recwarn):
    path = tmp_path / "fit.ckpt"
    relbo.fit(target, checkpoint=path, **SETTINGS)
    sealed()
    assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)
    assert not recwarn


@pytest.mark.parametrize(("code", "refused"), [(errno.ENOLCK, False), (errno.EWOULDBLOCK, True)])
def test_file_systems_without_locks(code, refused, target, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("relbo.storage.checkpoint.fcntl.flock", fail)
    with pytest.raises(ValueError, match="Another fit") if refused else contextlib.nullcontext():
        relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **{**SETTINGS, "max_components": 1})


def test_one_process_at_a_time(target, tmp_path):
    path = tmp_path / "fit.ckpt"
    with locked(path), pytest.raises(ValueError, match=rf"Another fit \(process {os.getpid()}\) is using"):
        relbo.fit(target, checkpoint=path, **SETTINGS)
    assert os.listdir(tmp_path) == []


def test_a_damaged_checkpoint_falls_back_to_the_one_before(target, whole, tmp_path, monkeypatch):
    path = tmp_path / "fit.ckpt"
    monkeypatch.setattr(relbo.Booster, "step", interrupting(relbo.Booster.step, 4))
    with pytest.warns(UserWarning, match="Interrupted"):
        relbo.fit(target, checkpoint=path, **SETTINGS)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match="is cut short.*Going on from"):
        assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)
    newer = bytearray(path.read_bytes())
    newer[8] += 1
    path.write_bytes(newer)
    with pytest.raises(ValueError, match="Upgrade relbo"):
        relbo.fit(target, checkpoint=path, **SETTINGS)
    path.write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="delete the file or give another path"):
        relbo.fit(target, checkpoint=path, **SETTINGS)


def test_every_iteration_is_written(target, tmp_path, monkeypatch):
    lengths = []
    write = container.os.replace

    def replace(old, new):
        write(old, new)
        if str(new).endswith("fit.ckpt"):
            lengths.append(len(relbo.load(new).trace))

    monkeypatch.setattr(container.os, "replace", replace)
    relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", **SETTINGS)
    assert lengths == [1, 2, 3, 4, 5, 6, 7, 8, 8]


# Killed while writing


STEPS = ["open", "write", "fsync", "chmod", "link", "replace"]


@pytest.mark.parametrize("stage", STEPS)
def test_killed_at_any_step_of_a_write(stage, target, whole, tmp_path, monkeypatch):
    """As if the process ended there: nothing after the blow runs, not even the removal of the temporary file."""
    path = tmp_path / "fit.ckpt"

    class Blow(BaseException):
        pass

    def strike(*args, **kwargs):
        raise Blow

    relbo.fit(target, checkpoint=path, **{**SETTINGS, "max_components": 2})
    good = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(container.os, "unlink", lambda *args: None)
        if stage == "open":
            patch.setattr(container, "open", strike, raising=False)
        elif stage == "write":
            patch.setattr(container, "open", lambda path, mode: _Dying(path, mode, Blow), raising=False)
        else:
            patch.setattr(container.os, stage, strike)
        with pytest.raises(Blow):
            relbo.fit(target, checkpoint=path, **SETTINGS)
    assert path.read_bytes() == good
    assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)
    assert sorted(os.listdir(tmp_path)) == ["fit.ckpt"]


class _Dying:
    """A file whose second write never comes."""

    def __init__(self, path, mode, blow):
        self.file, self.blow = open(path, mode, 0), blow  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.file.close()

    def write(self, part):
        if self.file.tell():
            raise self.blow
        self.file.write(part)


# A full disk


def test_a_full_disk_does_not_end_the_fit(target, whole, tmp_path, monkeypatch):
    path = tmp_path / "fit.ckpt"
    relbo.fit(target, checkpoint=path, **{**SETTINGS, "max_components": 3})
    good = path.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(container.os, "fsync", full)
    with pytest.warns(UserWarning, match="could not be written \\(No space left on device\\).*after 3 of them") as seen:
        posterior = relbo.fit(target, checkpoint=path, **SETTINGS)
    assert len(seen) == 2  # said once, not at every iteration, and at the end
    assert "relbo.save it elsewhere" in str(seen[1].message)
    assert same(posterior, whole)
    assert path.read_bytes() == good and os.listdir(tmp_path) == ["fit.ckpt"]
    with pytest.raises(OSError, match="No space left"):
        relbo.save(posterior, path, num_draws=0)
    assert path.read_bytes() == good
    monkeypatch.undo()
    assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)


def test_a_write_that_the_system_refuses(target, whole, tmp_path):
    """The limit on the size of files is the system's own, as a full disk is."""
    path = tmp_path / "fit.ckpt"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.warns(UserWarning, match="could not be written"):
            assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []

"""Ctrl-C and SIGTERM: what was computed is kept, and the message says how to go on."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest

import relbo
from lean_fits import FRAGILE_SETTINGS, SETTINGS, fragile, interrupting, lean_target, same, undisturbed
from relbo.storage import container


@pytest.fixture
def target():
    return lean_target()


@pytest.fixture
def whole():
    return undisturbed()


@pytest.mark.parametrize("with_file", [True, False])
def test_ctrl_c_keeps_what_there_is(with_file, target, whole, tmp_path, monkeypatch):
    path = tmp_path / "fit.ckpt"
    more = {"checkpoint": path} if with_file else {}
    monkeypatch.setattr(relbo.Booster, "step", interrupting(relbo.Booster.step, 3))
    how = "the same call goes on" if with_file else r"fit\(target, start=posterior\)"
    with pytest.warns(UserWarning, match=f"Interrupted: returning the posterior after 4 iterations.*{how}"):
        part = relbo.fit(target, **SETTINGS, **more)
    assert part.stop_reason == "it was interrupted" and len(part.trace) == 4
    monkeypatch.undo()
    if with_file:
        assert same(relbo.fit(target, **SETTINGS, **more), whole)
    else:
        rest = {"seed": 3, "stop": (), "progress_bar": False}
        assert same(relbo.fit(target, start=part, max_components=8, **rest), whole)


def test_an_interruption_while_writing(target, whole, tmp_path, monkeypatch):
    """The iteration whose writing was interrupted is written after all, and the message is true."""
    path, calls, fsync = tmp_path / "fit.ckpt", iter(range(100)), os.fsync

    def interrupted(handle):
        if next(calls) == 6:  # of two a write: of the file, and of the folder
            raise KeyboardInterrupt
        fsync(handle)

    monkeypatch.setattr(container.os, "fsync", interrupted)
    with pytest.warns(UserWarning, match="after 4 iterations. The checkpoint .* holds it, too"):
        part = relbo.fit(target, checkpoint=path, **SETTINGS)
    assert len(part.trace) == len(relbo.load(path).trace) == 4
    assert same(relbo.fit(target, checkpoint=path, **SETTINGS), whole)


def test_warnings_as_errors_cost_no_result(target, monkeypatch, caplog):
    monkeypatch.setattr(relbo.Booster, "step", interrupting(relbo.Booster.step, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(relbo.fit(target, **SETTINGS).trace) == 3
    assert "Interrupted: returning the posterior" in caplog.text


def test_a_real_signal_inside_a_function_on_the_host():
    """In the middle of the user's own function."""
    simulator, model, midway = fragile()

    def interrupt(values):
        simulator.mend()
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass  # where Python looks for signals
        return values

    simulator.break_after(midway, interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of the test runner ignores it
    try:
        with pytest.warns(UserWarning, match="^Interrupted: returning the posterior"):
            assert relbo.fit(model, **FRAGILE_SETTINGS).stop_reason == "it was interrupted"
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_there_is_anything(target, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(relbo.Booster, "init", interrupt)
    with pytest.raises(KeyboardInterrupt):
        relbo.fit(target, **SETTINGS)


TERMINATED = """
    import os, signal, sys
    sys.path.insert(0, {folder!r})
    import relbo
    from lean_fits import SETTINGS, lean_target
    step = relbo.Booster.step
    def terminated(self, key, state, *rest):
        if state.iteration == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, key, state, *rest)
    relbo.Booster.step = terminated
    relbo.fit(lean_target(), checkpoint={checkpoint!r}, **SETTINGS)
    print("not reached")
"""


@pytest.mark.parametrize("checkpoint", ["fit.ckpt", None])
def test_sigterm_ends_the_process(checkpoint, tmp_path):
    """As it does that of any other program; what happened to the fit is said."""
    script = textwrap.dedent(TERMINATED.format(folder=str(pathlib.Path(__file__).parents[1]), checkpoint=checkpoint))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 128 + signal.SIGTERM and done.stdout == ""
    assert "Terminated (SIGTERM) after 4 iterations: the process ends." in done.stderr
    if checkpoint is None:
        assert "Nothing of the fit is kept: fit(checkpoint=path)" in done.stderr
    else:
        assert "holds the fit: the same call goes on from there" in done.stderr
        assert len(relbo.load(tmp_path / checkpoint).trace) == 4


@pytest.mark.parametrize(("code", "status"), [(3, 3), ("no licence", "no licence"), (None, None)])
def test_a_log_density_that_exits_is_obeyed(code, status):
    simulator, model, midway = fragile()
    simulator.break_after(midway, lambda values: sys.exit(code))
    try:
        with pytest.raises(SystemExit) as raised:
            relbo.fit(model, **FRAGILE_SETTINGS)
        assert raised.value.code == status
    finally:
        simulator.mend()

"""Building Stan programs: once, by whoever comes first, and with the compiler's own words when it fails."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from relbo.targets import from_stan
from relbo.targets.stan.build import build, cache_folder


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """A compiler that writes down what it is asked for, takes its time, and makes an empty file."""
    log, script = tmp_path / "log", tmp_path / "fake-c++"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo "fake ${FAKE_VERSION:-1}" && exit\n'
        f'echo "$*" >> {log}\n'
        "sleep 0.3\n"
        '[ -n "$FAKE_FAILS" ] && echo "program.cpp:1: error: it is broken" >&2 && exit 1\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("RELBO_CACHE_DIR", str(tmp_path / "cache"))
    return lambda: log.read_text().splitlines() if log.exists() else []


TINY = "parameters { real x; } model { x ~ normal(0, 1); }"


def test_a_program_is_compiled_once_and_says_so(fake_compiler, capfd, monkeypatch):
    path = build(TINY, "tiny", None)
    assert "compiling the Stan program 'tiny' (about 30 s, once)" in capfd.readouterr().err
    assert len(fake_compiler()) == 3  # glue, program, link
    assert build(TINY, "tiny", None) == path and len(fake_compiler()) == 3 and capfd.readouterr().err == ""
    assert build(TINY.replace("1", "2"), "tiny", None) != path and len(fake_compiler()) == 5  # the glue serves again
    monkeypatch.setenv("FAKE_VERSION", "2")
    assert build(TINY, "tiny", None) != path and len(fake_compiler()) == 8
    suffixes = sorted(file.suffix for file in path.parent.iterdir() if file.suffix != ".lock")
    assert suffixes == [".o", ".o", ".so", ".so", ".so"]  # and no leftovers


def test_processes_and_threads_that_build_at_once_build_once(fake_compiler):
    code = f"from relbo.targets.stan.build import build; build({TINY!r}, 'tiny', None)"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    others = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    threads = [threading.Thread(target=build, args=(TINY, "tiny", None)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait() for other in others] == [0, 0]
    assert len(fake_compiler()) == 3


def test_a_failed_build_leaves_nothing_and_shows_the_error(fake_compiler, monkeypatch):
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(RuntimeError, match=r"(?s)failed.*it is broken"):
        build(TINY, "tiny", None)
    assert all(file.suffix == ".lock" for file in cache_folder().iterdir())
    monkeypatch.delenv("FAKE_FAILS")
    assert build(TINY, "tiny", None).exists()


def test_included_files_count(fake_compiler, tmp_path):
    (tmp_path / "prior.stan").write_text("x ~ normal(0, 1);")
    program = "parameters { real x; } model {\n#include prior.stan\n}"
    first = build(program, "tiny", tmp_path)
    (tmp_path / "prior.stan").write_text("x ~ normal(0, 2);")
    assert build(program, "tiny", tmp_path) != first


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RELBO_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == tmp_path / ".cache" / "relbo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "relbo"
    monkeypatch.setenv("RELBO_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == pathlib.Path(tmp_path / "own") and cache_folder().is_dir()


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"'no-such-compiler' was not found.*apt install g\+\+.*xcode-select.*CXX"):
        from_stan(TINY)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"'g\+\+' was not found"):
        from_stan(TINY)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'httpstan is needed .* pip install "relbo\[stan\]"'):
        from_stan(TINY)

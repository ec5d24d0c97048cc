"""A Stan program as a shared object, compiled once and kept in a cache.

stanc, the headers and the libraries are files of the installed package httpstan, which is never imported. The program
and our glue are compiled side by side; the glue's object file serves every later program. Whatever decides what comes
out (the C++ that stanc wrote, the glue, the compiler, the flags) is part of a file's name in the cache, so that a file
that exists is right. It appears there whole, and a lock keeps two processes from doing the same work.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from relbo.runtime.folders import cache_folder
from relbo.runtime.require import locate

_GLUE = pathlib.Path(__file__).with_name("glue.cpp")

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-DSTAN_THREADS",  # an autodiff stack for every thread: XLA chooses from which one it calls
    "-D_REENTRANT",
    "-DBOOST_DISABLE_ASSERTS",
    "-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION",
    # Stan's default of 1e-8 would refuse every simplex that has been rounded to float32.
    "-DSTAN_MATH_CONSTRAINT_TOLERANCE=1e-6",
)
_LIBRARIES = ("-lsundials_cvodes", "-lsundials_idas", "-lsundials_kinsol", "-lsundials_nvecserial", "-ltbb")


@dataclass(frozen=True)
class Toolchain:
    """What compiles a program. `fingerprint` names everything here that decides what comes out."""

    stanc: pathlib.Path
    compile: tuple[str, ...]
    link: tuple[str, ...]
    fingerprint: str


def build(source: str, name: str, include: pathlib.Path | None) -> pathlib.Path:
    """The shared object of a program, from the cache or compiled.

    `name` is what Stan's messages call the program, and `include` the folder where its `#include` files are.

    Raises:
        ValueError: if stanc does not accept the program, with stanc's own text.
        ImportError: if httpstan is not installed.
        RuntimeError: if there is no C++ compiler, or it fails.
    """
    tools = _find_toolchain()
    cpp, warnings = _translate(tools, source, name, include)
    path = cache_folder() / f"model-{_digest(tools.fingerprint, cpp)}.so"
    with _locked(path):
        if not path.exists():
            print(f"relbo: compiling the Stan program '{name}' (about 30 s, once) ...", file=sys.stderr)
            print(warnings, end="", file=sys.stderr)
            _compile(tools, cpp, path)
    return path


def has_parameters(source: str, include: pathlib.Path | None) -> bool:
    """Whether the program has any, asked before it is compiled. True for a program that stanc does not accept."""
    result = _stanc(locate("httpstan", extra="stan") / "stanc", source, ["--info"], include)
    try:
        return result.returncode != 0 or bool(json.loads(result.stdout)["parameters"])
    except (ValueError, KeyError):  # another stanc, with another answer
        return True


def inputs_of(source: str, include: pathlib.Path | None) -> dict[str, dict[str, Any]]:
    """The names in the program's data block, with "type" and "dimensions" of each.

    Raises:
        ValueError: if stanc does not accept the program, with stanc's own text.
    """
    result = _stanc(locate("httpstan", extra="stan") / "stanc", source, ["--info"], include)
    if result.returncode != 0:
        raise ValueError(f"stanc does not accept the Stan program.\n{result.stderr.strip()}")
    return json.loads(result.stdout)["inputs"]


def _find_toolchain() -> Toolchain:
    stan = locate("httpstan", extra="stan")
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"a Stan program is compiled by a C++ compiler, and {compiler[0]!r} was not found. Install one "
            "(Debian, Ubuntu: apt install g++; macOS: xcode-select --install), or set the environment variable CXX."
        )
    compile_ = (*compiler, *_FLAGS, f"-I{stan / 'include'}", f"-I{jax.ffi.include_dir()}")
    link = (*compiler, "-shared", f"-L{stan / 'lib'}", f"-Wl,-rpath,{stan / 'lib'}")
    versions = _run([*compiler, "--version"]), importlib.metadata.version("httpstan"), jax.__version__
    return Toolchain(stan / "stanc", compile_, link, _digest(_GLUE.read_text(), *versions, *compile_, *link))


def _translate(tools: Toolchain, source: str, name: str, include: pathlib.Path | None) -> tuple[str, str]:
    """The program in C++, and stanc's warnings."""
    options = ["--name", "relbo_model", "--filename-in-msg", f"{name}.stan", "--print-cpp"]
    result = _stanc(tools.stanc, source, options, include)
    if result.returncode != 0:
        raise ValueError(f"stanc does not accept the Stan program {name!r}.\n{result.stderr.strip()}")
    return result.stdout, result.stderr


def _stanc(
    stanc: pathlib.Path, source: str, options: list[str], include: pathlib.Path | None
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as scratch:
        program = pathlib.Path(scratch, "program.stan")
        program.write_text(source)
        command: list[str | os.PathLike] = [stanc, *options, program]
        if include is not None:
            command += ["--include-paths", include]
        return subprocess.run(command, capture_output=True, text=True)


def _compile(tools: Toolchain, cpp: str, path: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        source, program, linked = (pathlib.Path(scratch, f"program.{suffix}") for suffix in ("cpp", "o", "so"))
        source.write_text(cpp)
        with ThreadPoolExecutor() as pool:
            glue = pool.submit(_glue_object, tools, path.parent)
            _run([*tools.compile, "-c", source, "-o", program])
        _run([*tools.link, program, glue.result(), *_LIBRARIES, "-o", linked])
        os.replace(linked, path)


def _glue_object(tools: Toolchain, folder: pathlib.Path) -> pathlib.Path:
    path = folder / f"glue-{tools.fingerprint}.o"
    with _locked(path), tempfile.TemporaryDirectory(dir=folder) as scratch:
        if not path.exists():
            compiled = pathlib.Path(scratch, "glue.o")
            _run([*tools.compile, "-c", _GLUE, "-o", compiled])
            os.replace(compiled, path)
    return path


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """One process, and one thread in it, at a time. The lock goes with the process, however that ends."""
    import fcntl  # not on Windows, for which there is no httpstan either

    with open(path.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str | os.PathLike]) -> str:
    """What the command prints. Its errors are cut short: a C++ compiler can write thousands of lines."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
        raise RuntimeError(f"{shlex.join(map(str, command))} failed.\n" + "\n".join(lines[:10]))
    return result.stdout


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]

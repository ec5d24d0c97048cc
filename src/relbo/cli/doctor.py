"""`relbo doctor` and `relbo reproduce`: what there is on this machine, and the experiments of the paper."""

import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
from typing import Any

from relbo.cli.session import ERROR, Session
from relbo.runtime.folders import cache_folder

_NEEDED = ("relbo", "jax", "jaxlib", "equinox", "optax", "jaxtyping", "numpy", "rich")
_OPTIONAL = {
    "numpyro": "numpyro", "pymc": "pymc", "httpstan": "stan", "funsor": "enumeration", "arviz": "arviz",
    "matplotlib": "plots", "typer": "cli", "pyarrow": "parquet",
}  # fmt: skip
"""Packages by the extra that installs them."""


def doctor(talk: Session) -> None:
    """Exit code 1 if a fit could not run here."""
    problems: list[str] = []
    found: dict[str, Any] = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "machine": f"{platform.platform()}, {os.cpu_count()} processors",
        "packages": {name: _version(name) for name in _NEEDED},
        "extras": {name: _version(name) for name in _OPTIONAL},
        "devices": _devices(problems),
        "compiler": _compiler(),
        "cache": _cache(problems),
    }
    problems += [f"{name} is not installed" for name, version in found["packages"].items() if version is None]
    talk.table(("what", "found"), _rows(found))
    for problem in problems:
        talk.say(f"problem: {problem}", style="bold red")
    talk.say("" if problems else "All that a fit needs is here.", style="bold green")
    talk.result(**found, problems=problems)
    talk.code = ERROR if problems else 0


def _rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    extras = [
        (name, version or f'not installed (pip install "relbo[{_OPTIONAL[name]}]")')
        for name, version in found["extras"].items()
    ]
    packages = [(name, version or "not installed") for name, version in found["packages"].items()]
    rest = [(name, found[name]) for name in ("python", "machine", "devices", "compiler", "cache")]
    return [(name, str(value)) for name, value in [*rest, *packages, *extras]]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(problems: list[str]) -> str:
    """What JAX computes on, tried with a small sum."""
    try:
        jax = importlib.import_module("jax")
        total = float(jax.numpy.arange(4.0).sum())
    except Exception as error:
        problems.append(f"JAX cannot compute: {type(error).__name__}: {error}")
        return "none"
    if total != 6.0:
        problems.append(f"JAX computes 0 + 1 + 2 + 3 = {total}")
    precision = "float64" if jax.config.read("jax_enable_x64") else "float32"
    return f"{', '.join(map(str, jax.devices()))}, {precision}"


def _compiler() -> str:
    """For Stan programs."""
    command = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(command[0]) is None:
        return f"{command[0]} was not found: only Stan programs need it"
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return (said.splitlines() or [command[0]])[0]


def _cache(problems: list[str]) -> str:
    try:
        folder = cache_folder()
    except OSError as error:
        problems.append(f"the cache folder cannot be made: {error}")
        return "none"
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    writable = "" if os.access(folder, os.W_OK) else ", not writable"
    return f"{folder}: {len(files)} files, {size / 1e6:.1f} MB{writable}"


def reproduce(talk: Session, names: list[str], options: list[str]) -> None:
    """Run the paper's experiments, which are part of the repository and not of the installed package."""
    sys.path.insert(0, os.getcwd())
    spec = importlib.util.find_spec("experiments")
    home = pathlib.Path(spec.origin).parent if spec is not None and spec.origin else None
    if home is None or not (home / "figure1.py").is_file():
        raise ValueError(
            "the experiments are not here: they are part of relbo's repository, and not of the installed package. "
            "Clone it, and run this command in its folder."
        )
    talk.code = importlib.import_module("experiments.__main__").main([*(names or ["all"]), *options])

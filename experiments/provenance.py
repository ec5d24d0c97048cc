"""Which code made a result: digests of relbo's engine and of the experiment, and the versions of the libraries.

A digest is of the syntax tree without words: comments, docstrings and what an error says change nothing. Parts of relbo
on which no number of an experiment can depend (the command line, plots, reports, files, front ends to other languages,
progress, several processes) are left out; what is new is in.
"""

import ast
import functools
import hashlib
import pathlib
import platform
from collections.abc import Iterable
from importlib import metadata

import relbo

HERE = pathlib.Path(__file__).parent
LEFT_OUT = (
    "__main__.py", "cli", "plots", "reporting", "views", "storage", "calibration", "comparison", "distributed",
    "targets/numpyro", "targets/pymc", "targets/stan", "targets/rows", "posterior/guide.py", "posterior/prediction.py",
    "diagnostics/diagnosis.py", "diagnostics/verdict.py", "diagnostics/resampling.py", "loop/cautions.py",
    "loop/fits.py", "loop/many.py", "loop/progress.py", "loop/together.py", "loop/words.py", "runtime/folders.py",
    "runtime/interrupts.py", "runtime/journal.py", "runtime/plain.py", "runtime/require.py", "runtime/tables.py",
    "runtime/warn.py", "runtime/words.py", "runtime/workers.py",
)  # fmt: skip
"""Parts of relbo that no result depends on: experiments go through `from_log_density`, fit in one process, save
nothing, and of a diagnosis read log Z alone."""
MACHINERY = ("provenance", "report", "runs", "palette")
"""Modules of the experiments that keep and show results, and compute none."""
_LIBRARIES = ("jax", "jaxlib", "equinox", "optax", "numpy", "numpyro", "scikit-learn")


@functools.cache
def engine_digest() -> str:
    """Of those parts of relbo that a result can depend on."""
    root = pathlib.Path(relbo.__file__).parent
    named = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    return digest(path for name, path in sorted(named.items()) if not name.startswith(LEFT_OUT))


def digest(paths: Iterable[pathlib.Path]) -> str:
    trees = (ast.dump(_bare(ast.parse(path.read_bytes()))) for path in paths)
    return hashlib.sha256("\0".join(trees).encode()).hexdigest()[:12]


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """relbo's version, its engine's digest, and that of the experiment's modules."""
    own = digest(HERE / f"{name}.py" for name in sorted(modules))
    return {"relbo": relbo.__version__, "engine": engine_digest(), "experiment": own}


@functools.cache
def versions() -> dict[str, str]:
    """Of Python and the libraries that took part. One that is not there is left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def imported(module: str) -> set[str]:
    """The modules that compute which one of them imports, directly or not, itself included."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found or name in MACHINERY or not (HERE / f"{name}.py").is_file():
            continue
        found.add(name)
        for node in ast.walk(ast.parse((HERE / f"{name}.py").read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module == "experiments":
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments."):
                waiting.append((node.module or "").removeprefix("experiments."))
    return found


def _bare(tree: ast.Module) -> ast.Module:
    """Without strings that stand alone (docstrings, and what is said of fields) and without what errors say."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        if isinstance(node, ast.Raise):
            node.exc = node.cause = None
    return tree

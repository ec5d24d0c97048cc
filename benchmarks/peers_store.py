"""The cells of the comparison on disk: one file each, whole or not at all; then joined with the references."""

import json
import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PACKAGES = ("jax", "jaxlib", "numpyro", "blackjax", "flowjax", "pymc", "nutpie", "optax", "numpy", "relbo")
REPOSITORY = Path(__file__).resolve().parents[1]
KINDS = ("done", "over the limit", "failed", "not applicable")


class Key(NamedTuple):
    """Which cell."""

    model: str
    seed: int
    method: str

    def path(self, folder: Path) -> Path:
        return folder / f"{self.model}.{self.method}.{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.model}, {self.method}, seed {self.seed}"


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all: a reader, or a run that was killed, never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(beside, path)


def write_cell(folder: Path, key: Key, facts: dict[str, Any]) -> dict[str, Any]:
    """A cell with its key; its kind must be one of `KINDS`."""
    if facts["kind"] not in KINDS:
        raise ValueError(f"a cell's kind must be one of {', '.join(KINDS)}, got {facts['kind']!r}.")
    cell = {**key._asdict(), **facts}
    write_json(key.path(folder), cell)
    return cell


def read_cells(folder: Path) -> dict[Key, dict[str, Any]]:
    """All finished cells of a folder."""
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
    return {Key(cell["model"], cell["seed"], cell["method"]): cell for cell in cells}


# Joining


def join(cells: dict[Key, dict], models: dict[str, Any], methods: dict[str, Any], references: dict[str, Any]) -> dict:
    """Everything that the page is made of: settings, versions, references and cells with their errors."""
    return {
        "machine": machine(),
        "models": {
            name: {"title": model.title, "dim": model.dim, "num_modes": model.num_modes, "through": model.through}
            | {"pymc": model.pymc is not None, "reference": summary(references.get(name))}
            for name, model in models.items()
        },
        "methods": {name: asdict(method) for name, method in methods.items()},
        "cells": [
            cell | errors(cell, references.get(key.model))
            for key, cell in cells.items()
            if key.model in models and key.method in methods
        ],
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on and with."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {"python": platform.python_version(), "cpu": cpu_name(), "num_cores": os.cpu_count(), "versions": versions}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of this repository; with a + if the package's or the methods' files differ from it."""
    try:
        digest = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", "src", "benchmarks/methods")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return digest[:12] + ("+" if changed else "")


def git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def summary(reference: Any) -> dict[str, Any] | None:
    """What the page says of a reference: how it was had, and its own errors in its standard deviations."""
    if reference is None:
        return None
    sd = np.asarray(reference.sd)
    return {
        "log_z": reference.log_z,
        "log_z_std_err": reference.log_z_std_err,
        "log_z_how": reference.log_z_how,
        "how": reference.how,
        "ess_min": reference.ess_min,
        "r_hat_max": reference.r_hat_max,
        "mode_mass": reference.mode_mass,
        "mean_mcse_max": float(np.max(np.asarray(reference.mean_mcse) / sd)),
        "sd_mcse_max": float(np.max(np.asarray(reference.sd_mcse) / sd)),
    }


def errors(cell: dict[str, Any], reference: Any) -> dict[str, Any]:
    """KL, errors of means (in sds), of sds (relative) and of masses; what cannot be known is None."""
    if cell["kind"] != "done" or reference is None:
        return {}
    found: dict[str, Any] = {"kl": None, "kl_std_err": None}
    if reference.log_z is not None and cell.get("elbo") is not None:
        found["kl"] = reference.log_z - cell["elbo"]
        found["kl_std_err"] = float(np.hypot(cell["elbo_std_err"], reference.log_z_std_err))
    sd = np.asarray(reference.sd)
    by_part = {
        "mean": (np.array(cell["mean"], float) - np.asarray(reference.mean)) / sd,
        "sd": np.array(cell["sd"], float) / sd - 1,
    }
    for part, values in by_part.items():
        known = bool(np.isfinite(values).all())
        found[f"{part}_error_max"] = float(np.abs(values).max()) if known else None
        found[f"{part}_error_rms"] = float(np.sqrt(np.mean(values**2))) if known else None
    if reference.mode_mass is not None and cell.get("mode_counts"):
        masses = np.array(cell["mode_counts"]) / sum(cell["mode_counts"])
        found["mode_mass"] = masses.tolist()
        found["mode_mass_error_max"] = float(np.abs(masses - np.asarray(reference.mode_mass)).max())
    return found


# A second run


def compare(first: dict[Key, dict], second: dict[Key, dict], max_change: float = 0.3) -> list[dict[str, Any]]:
    """For every cell in both: the change of the ELBO (of KL, with the other sign) in standard errors, of CPU seconds.

    Both are of the same seed, and the reference's log Z cancels. `close` if the ELBOs are within three of their joint
    standard errors, or both unknown, and CPU seconds within `max_change` of the first.
    """
    rows = []
    for key in first.keys() & second.keys():
        old, new = first[key], second[key]
        row: dict[str, Any] = {"key": key, "kinds": (old["kind"], new["kind"]), "close": old["kind"] == new["kind"]}
        if old["kind"] == new["kind"] == "done":
            row["cpu_seconds"] = old["cpu_seconds"]["total"], new["cpu_seconds"]["total"]
            row["cpu_change"] = row["cpu_seconds"][1] / row["cpu_seconds"][0] - 1
            row["close"] = abs(row["cpu_change"]) <= max_change
            if old.get("elbo") is not None and new.get("elbo") is not None:
                row["elbos"] = old["elbo"], new["elbo"]
                row["elbo_std_err"] = float(np.hypot(old["elbo_std_err"], new["elbo_std_err"]))
                row["close"] &= abs(new["elbo"] - old["elbo"]) <= 3 * row["elbo_std_err"]
            else:
                row["close"] &= old.get("elbo") is None and new.get("elbo") is None
        rows.append(row)
    return sorted(rows, key=lambda row: row["key"])

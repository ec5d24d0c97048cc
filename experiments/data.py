"""Data sets for the experiments. None is part of the project: they are read from where `--data` says."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np

from experiments.report import Options
from experiments.sources import SOURCES, is_known

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data"
"""A folder beside the repository, looked at when `--data` is not given."""


@dataclasses.dataclass(frozen=True)
class Classification:
    """Rows with labels 0 and 1, split in two; `digest` names the contents."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def __post_init__(self):
        for x, y in ((self.x_train, self.y_train), (self.x_test, self.y_test)):
            if x.ndim != 2 or y.shape != x.shape[:1]:
                raise ValueError(f"{self.name}: X of shape {x.shape} and y of shape {y.shape} do not belong together.")
            if not np.isfinite(x).all():
                raise ValueError(f"{self.name}: X holds {int((~np.isfinite(x)).sum())} values that are not finite.")
            if not set(np.unique(y).tolist()) == {0, 1}:
                raise ValueError(f"{self.name}: labels must be 0 and 1, got {np.unique(y)[:5].tolist()}.")

    @property
    def digest(self) -> str:
        parts = (self.x_train, self.y_train, self.x_test, self.y_test)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]

    def with_intercept(self) -> "Classification":
        """With a column of ones in front."""

        def ones(x):
            return np.concatenate([np.ones_like(x[:, :1]), x], axis=1)

        return Classification(
            f"{self.name}, intercept", ones(self.x_train), self.y_train, ones(self.x_test), self.y_test
        )

    def standardized(self) -> "Classification":
        """Each column to mean 0 and deviation 1 on the train part."""
        mean, deviation = self.x_train.mean(0), self.x_train.std(0)
        deviation = np.where(deviation > 0, deviation, 1.0).astype(self.x_train.dtype)
        x_train, x_test = (self.x_train - mean) / deviation, (self.x_test - mean) / deviation
        return dataclasses.replace(self, x_train=x_train, x_test=x_test)


def find(options: Options, name: str) -> pathlib.Path | None:
    """The file `name` in the folder (or the file itself) that `--data` names, else beside the repository, else None."""
    if options.quick and options.data is None:
        return None
    place = options.data or SHARED
    path = place if place.is_file() and place.name == name else place / name
    return path if path.is_file() else None


def check(options: Options, names: Sequence[str]) -> None:
    """Who said where the data are, and has none of those that are asked for, did not mean the embedded ones."""
    if options.data is not None and not any(find(options, name) for name in names):
        raise ValueError(
            f"--data {options.data} holds none of this experiment's files: {', '.join(names)} "
            "(experiments/README.md says what they are)."
        )


def title_of(path: pathlib.Path) -> str:
    """The name of a data set, which says so if its contents are not those that the page was made with."""
    return path.stem if path.name not in SOURCES or is_known(path) else f"{path.stem} (other contents than ours)"


def load_classification(path: pathlib.Path, test_path: pathlib.Path | None = None) -> Classification:
    """An archive with X_train, y_train, X_test, y_test; or the authors' pair of archives, each with X and y.

    Labels may be 0/1 or -1/+1. The authors' files (`ds1.100_train.npz` and `ds1.100_test.npz`, and likewise for the
    eICU extract) hold one part each.
    """
    if test_path is None:
        with np.load(path) as file:
            names = ("X_train", "y_train", "X_test", "y_test")
            missing = [name for name in names if name not in file]
            if missing:
                raise ValueError(f"{path.name} lacks {', '.join(missing)}; it holds {', '.join(file)}.")
            x_train, y_train, x_test, y_test = (file[name] for name in names)
    else:
        (x_train, y_train), (x_test, y_test) = _part(path), _part(test_path)
    return Classification(title_of(path), _features(x_train), _labels(y_train), _features(x_test), _labels(y_test))


def load_eicu(path: pathlib.Path, task: int = 0) -> Classification:
    """The authors' extract of eICU: xtrain, ytrain, xtest, ytest; column `task` of the labels (0: death in the ICU)."""
    with np.load(path) as file:
        missing = [name for name in ("xtrain", "ytrain", "xtest", "ytest") if name not in file]
        if missing:
            raise ValueError(f"{path.name} lacks {', '.join(missing)}; it holds {', '.join(file)}.")
        x_train, y_train, x_test, y_test = (file[name] for name in ("xtrain", "ytrain", "xtest", "ytest"))
    if y_train.ndim != 2 or y_train.shape[1] != 3:
        raise ValueError(f"ytrain of {path.name} must have three columns, one a task, got shape {y_train.shape}.")
    y_train, y_test = _labels(y_train[:, task]), _labels(y_test[:, task])
    return Classification("eICU extract", _features(x_train), y_train, _features(x_test), y_test)


def breast_cancer() -> Classification:
    """scikit-learn's breast cancer data: what chemreact and systems use where no data is given."""
    from sklearn.datasets import load_breast_cancer

    return embedded("breast cancer (scikit-learn)", load_breast_cancer, positive=1)


def eights() -> Classification:
    """scikit-learn's digits, the eights against the others (64 features, rare positives): for icu without data."""
    from sklearn.datasets import load_digits

    return embedded("eights among digits (scikit-learn)", load_digits, positive=8)


def growers() -> Classification:
    """scikit-learn's wines of three growers, the first against the others: for wine without data."""
    from sklearn.datasets import load_wine

    return embedded("wines of three growers (scikit-learn)", load_wine, positive=0)


def embedded(name: str, load, positive: int) -> Classification:
    """One of scikit-learn's data sets, one class against the others, standardised, two thirds to train."""
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
    x, y = x.astype(np.float32), (y == positive).astype(np.uint8)
    return Classification(name, x[train], y[train], x[test], y[test]).standardized()


def _part(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """One part in the authors' format: y, and X or the arrays of a sparse matrix in rows (CSR)."""
    with np.load(path) as file:
        if "y" in file and "X" in file:
            return file["X"], file["y"]
        if {"y", "data", "indices", "indptr", "shape"} <= set(file) and file.get("format", b"csr") == b"csr":
            x = np.zeros(tuple(file["shape"]), np.float32)
            rows = np.repeat(np.arange(x.shape[0]), np.diff(file["indptr"]))
            np.add.at(x, (rows, file["indices"]), file["data"])
            return x, file["y"]
        raise ValueError(
            f"{path.name} must hold X (or data, indices, indptr, shape) and y; it holds {', '.join(file)}."
        )


def _features(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float32)


def _labels(y: np.ndarray) -> np.ndarray:
    y = np.asarray(y).ravel()
    if not (np.isin(y, (0, 1)).all() or np.isin(y, (-1, 1)).all()):
        raise ValueError(f"Labels must be 0 and 1, or -1 and 1, got {np.unique(y)[:5].tolist()}.")
    return (y > 0).astype(np.uint8)

"""`python -m experiments.prepare NAME ORIGINAL... --out FOLDER`: the public originals, made into the files we read.

    chemreact10          ds1.npz ds1.100_test.npz      GitHub trevorcampbell/ubvi, ratschlab/boosting-bbvi
    chemreact100_part    ds1.100_test.npz              GitHub ratschlab/boosting-bbvi
    wine_quality         train_test_split.npz          GitHub ratschlab/boosting-bbvi, data/wine
    icu_mortality        FOLDER                        PhysioNet challenge-2012: set-a, set-b, set-c, Outcomes-?.txt
    eicu_demo_mortality  FOLDER                        PhysioNet eicu-crd-demo: patient, apacheApsVar, apachePredVar
    cbcl_faces           CBCL_Face.mat                 GitHub hiroyuki-kasai/NMFLibrary (not to be passed on)

Each is written as a compressed archive, and the digest of its arrays is compared with that in `experiments/sources.py`.
`python -m experiments.prepare check FOLDER` compares what is there already.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable

import numpy as np

from experiments import prepare_icu
from experiments.sources import SOURCES, digest_of

Arrays = dict[str, np.ndarray]
_FLIPPED = (1, 2, 3, 4, 7, 9)
"""Columns of ds1.10 whose sign is the other way round in ds1.100: principal components have none."""
_WINE = (
    "fixed_acidity", "volatile_acidity", "citric_acid", "residual_sugar", "chlorides", "free_sulfur_dioxide",
    "total_sulfur_dioxide", "density", "pH", "sulphates", "alcohol", "quality",
)  # fmt: skip


def chemreact10(all_rows: pathlib.Path, test_rows: pathlib.Path) -> Arrays:
    """ds1.10 in the authors' split: the test rows are those of `test_rows`, in its order; the others train.

    Columns are standardised over all rows, and some change sign, after which the first ten columns of ds1.100 are
    these to rounding. Equal rows with equal labels are interchangeable.
    """
    with np.load(all_rows) as file:
        x = np.concatenate([file["X"], file["Xt"]]).astype(np.float64)
        y = np.concatenate([file["Y"], file["Yt"]]).ravel()
    x = x[:, np.ptp(x, axis=0) > 0]  # a constant column is no feature
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    x[:, list(_FLIPPED)] *= -1
    wanted, labels = _authors_part(test_rows)
    places = _matched(x, (y > 0), wanted[:, : x.shape[1]], labels)
    train = np.setdiff1d(np.arange(len(x)), places)
    return _split(x[train], (y > 0)[train], x[places], (y > 0)[places])


def chemreact100_part(test_rows: pathlib.Path) -> Arrays:
    """The authors' test part, split anew, 70 to 30, stratified by label."""
    x, labels = _authors_part(test_rows)
    rng = np.random.default_rng(0)
    train, test = [], []
    for label in (False, True):
        rows = rng.permutation(np.flatnonzero(labels == label))
        num = round(0.7 * len(rows))
        train.append(rows[:num])
        test.append(rows[num:])
    rows_train, rows_test = (np.sort(np.concatenate(part)).astype(np.int32) for part in (train, test))
    found = _split(x[rows_train], labels[rows_train], x[rows_test], labels[rows_test])
    return found | {"row_train": rows_train, "row_test": rows_test}


def wine_quality(split: pathlib.Path) -> Arrays:
    """The authors' split, values unchanged; label 1 is white."""
    with np.load(split) as file:
        parts = [file[name] for name in ("Xtrain", "ytrain", "Xtest", "ytest")]
    return _split(*parts) | {"feature_names": np.array(_WINE)}


def cbcl_faces(matrix: pathlib.Path) -> Arrays:
    """`M` holds (256 - grey level) / 256: turned back into grey levels."""
    from scipy.io import loadmat

    return {"faces": np.rint(256 * (1 - loadmat(matrix)["M"])).astype(np.uint8)}


PREPARED: dict[str, Callable[..., Arrays]] = {
    "chemreact10": chemreact10,
    "chemreact100_part": chemreact100_part,
    "wine_quality": wine_quality,
    "icu_mortality": prepare_icu.icu_mortality,
    "eicu_demo_mortality": prepare_icu.eicu_demo_mortality,
    "cbcl_faces": cbcl_faces,
}


def _authors_part(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as file:
        return file["X"], file["y"].ravel() > 0


def _matched(rows: np.ndarray, labels: np.ndarray, wanted: np.ndarray, wanted_labels: np.ndarray) -> np.ndarray:
    """For every wanted row the place of an equal one (to 1e-6) with the same label, each used once."""
    waiting: dict[tuple, list[int]] = {}
    for place, (row, label) in enumerate(zip(np.round(rows, 6) + 0.0, labels, strict=True)):
        waiting.setdefault((*row, bool(label)), []).append(place)
    found = []
    for row, label in zip(np.round(wanted, 6) + 0.0, wanted_labels, strict=True):
        places = waiting.get((*row, bool(label)))
        if not places:
            raise ValueError(
                "A test row of ds1.100 is not among the rows of ds1.10: these files do not belong together."
            )
        found.append(places.pop(0))
    return np.array(found)


def _split(x_train, y_train, x_test, y_test) -> Arrays:
    return {
        "X_train": np.asarray(x_train, np.float32),
        "y_train": np.asarray(y_train).ravel().astype(np.uint8),
        "X_test": np.asarray(x_test, np.float32),
        "y_test": np.asarray(y_test).ravel().astype(np.uint8),
    }


def checked(path: pathlib.Path) -> str:
    """Whether a file holds the arrays that the page was made with."""
    found, expected = digest_of(path), SOURCES[path.name].digest
    return f"{path.name}: {'as ours' if found == expected else f'digest {found}, ours is {expected}'}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.prepare", description="Make the data files.")
    parser.add_argument("name", choices=[*PREPARED, "check"])
    parser.add_argument("originals", nargs="+", type=pathlib.Path, help="the public files, or for check the folder")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="where to write (.)")
    given = parser.parse_args(arguments)
    for path in given.originals:
        if not path.exists():
            parser.error(f"there is no file or folder {path}")
    if given.name == "check":
        print("\n".join(checked(path) for path in sorted(given.originals[0].glob("*.npz")) if path.name in SOURCES))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{given.name}.npz"
    np.savez_compressed(path, **PREPARED[given.name](*given.originals))
    print(checked(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where each data set comes from, under which licence, and the digest of the arrays that our results were made with.

None of it is part of the project. `experiments/prepare.py` turns the public originals into the files named here.
"""

import dataclasses
import hashlib
import pathlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class Source:
    """One file: who reads it, what it holds, its origin and licence, and the digest of its arrays."""

    file: str
    used_by: str
    holds: str
    origin: str
    licence: str
    digest: str


SOURCES = {
    source.file: source
    for source in (
        Source(
            "chemreact10.npz", "chemreact, explanations, systems", "24,059 + 2,674 rows, the first 10 features",
            "ds1.10 of P. Komarek (komarix.org/ac/ds), as `examples/data/ds1.npz` of GitHub trevorcampbell/ubvi, "
            "put in the split of `ds1.100_test.npz` of GitHub ratschlab/boosting-bbvi",
            "none stated", "87f38ce224b6a968",
        ),
        Source(
            "chemreact100_part.npz", "chemreact, explanations",
            "1,872 + 802 rows of 100 features: the authors' test part, split anew",
            "`boosting_bbvi/data/chem/ds1.100_test.npz` of GitHub ratschlab/boosting-bbvi",
            "none stated", "4bc8bf5bf7cc605a",
        ),
        Source(
            "icu_mortality.npz", "icu", "8,400 + 3,600 stays, 70 features",
            "PhysioNet/CinC Challenge 2012 v1.0.0, sets a, b and c (physionet.org/content/challenge-2012)",
            "ODC-BY 1.0", "12d575e2f5486d0e",
        ),
        Source(
            "eicu_demo_mortality.npz", "icu", "1,539 + 640 stays, 70 features",
            "eICU Collaborative Research Database Demo v2.0 (physionet.org/content/eicu-crd-demo)",
            "ODbL 1.0", "10311957c7de09f7",
        ),
        Source(
            "wine_quality.npz", "wine", "5,197 + 1,300 wines, 12 features, white against red",
            "UCI Wine Quality, in the split of `boosting_bbvi/data/wine/train_test_split.npz` of GitHub "
            "ratschlab/boosting-bbvi",
            "CC BY 4.0 (UCI)", "4d836dbbc4d63ebc",
        ),
        Source(
            "cbcl_faces.npz", "faces", "361 x 2,429 grey levels, one face a column (the paper says 2,492 images)",
            "MIT CBCL Face Database #1, train faces, as `data/CBCL_Face.mat` of GitHub hiroyuki-kasai/NMFLibrary",
            "not open: internal research use, not to be passed on", "64b0953de4e87161",
        ),
    )
}  # fmt: skip


def digest_of(path: pathlib.Path) -> str:
    """Of names, types, shapes and contents of the arrays in an archive, however it is compressed."""
    found = hashlib.sha256()
    with np.load(path) as file:
        for name in sorted(file.files):
            array = np.ascontiguousarray(file[name])
            found.update(f"{name}{array.dtype.str}{array.shape}".encode())
            found.update(array.tobytes())
    return found.hexdigest()[:16]


def is_known(path: pathlib.Path) -> bool:
    """Whether the file holds what our results were made with."""
    source = SOURCES.get(path.name)
    return source is not None and digest_of(path) == source.digest


def markdown() -> str:
    """The table of the page."""
    lines = ["| file | read by | holds | origin | licence | digest of the arrays |", "|---|---|---|---|---|---|"]
    for one in SOURCES.values():
        cells = (f"`{one.file}`", one.used_by, one.holds, one.origin, one.licence, f"`{one.digest}`")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)

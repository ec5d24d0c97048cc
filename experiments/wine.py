"""Red or white wine: in the authors' code, not in the paper."""

import dataclasses

from experiments import data
from experiments.classification import run_table
from experiments.report import Options, Report
from experiments.runs import Runs

REMARKS = [
    "The paper has no figures for wine; its code does.",
    "The features are standardised on the train part; the authors' file holds raw values.",
]


def run(options: Options, runs: Runs) -> Report:
    path = data.find(options, "wine_quality.npz")
    if path is None:
        return run_table(f"Wine, {data.SUBSTITUTE}", [_sklearn_wine(options)], options, runs, [], REMARKS[:1])
    wine = data.load_classification(path).standardized()
    return run_table("Wine", [wine], options, runs, [], REMARKS)


def _sklearn_wine(options: Options) -> data.Classification:
    """scikit-learn's wines of three growers: the first against the others."""
    from sklearn.datasets import load_wine

    return dataclasses.replace(data.embedded(options, load_wine, positive=0), name="wines of three growers")

"""Red or white wine: in the authors' code, not in the paper."""

import dataclasses

from experiments import data
from experiments.classification import run_table
from experiments.report import Options, Report, Table
from experiments.runs import Runs

PAPER = Table("The paper has no figures for this data set", ["system"], [])
REMARKS = ["The features are standardised on the train part; the authors' file holds raw values."]


def run(options: Options, runs: Runs) -> Report:
    path = data.find(options, "wine_quality.npz")
    wine = data.load_classification(path).standardized() if path else _sklearn_wine()
    return run_table("Wine", [wine], options, runs, PAPER, REMARKS)


def _sklearn_wine() -> data.Classification:
    """scikit-learn's wines of three growers: the first against the others."""
    from sklearn.datasets import load_wine

    return dataclasses.replace(data.embedded(load_wine, positive=0), name="wines of three growers")

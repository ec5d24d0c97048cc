"""Table 2 of the paper: mortality in intensive care."""

from experiments import data
from experiments.classification import run_table
from experiments.report import Options, Report, Table
from experiments.runs import Runs

PAPER = Table(
    "The paper's Table 2 (eICU, credentialed data, no intercept)",
    ["system", "train log-likelihood", "test AUROC"],
    [["boosted BBVI", "-0.195", "0.844 ± 0.006"], ["BBVI", "-0.200", "0.838 ± 0.016"]],
)
REMARKS = [
    "eICU itself needs credentials. icu_mortality is the open PhysioNet challenge of 2012 (12,000 stays), "
    "eicu_demo_mortality the open demo of eICU (2,179 stays). With the authors' train_test_split.npz in the folder of "
    "--data, the paper's own extract is used, too.",
]


def run(options: Options, runs: Runs) -> Report:
    sets = data.found(options, "icu_mortality.npz", "eicu_demo_mortality.npz")
    extract = data.find(options, "train_test_split.npz")
    if extract is not None:
        sets.append(data.load_eicu(extract))
    if not sets:
        return run_table(
            f"Intensive care (Table 2), {data.SUBSTITUTE}", [data.breast_cancer(options)], options, runs, [], []
        )
    return run_table("Intensive care (Table 2)", sets, options, runs, [PAPER], REMARKS)

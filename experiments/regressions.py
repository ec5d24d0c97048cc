"""Tables 1 and 2 of the paper (chemreact, icu), and wine, which is in the authors' code alone."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from experiments import data
from experiments.regression import BBVI, DEFAULT, LAST, NORMAL, PAPER, QUICK, Settings, pieces
from experiments.regression_tables import figure, names, of, paired, paired_table, spread_ratio, table, values
from experiments.report import Options, Report, Table, difference, shown
from experiments.runs import Runs

FEW = 3
"""Seeds of a data set with many rows, of the second family and of the default."""
_DEAR_ROWS = 5500


@dataclasses.dataclass(frozen=True)
class Subject:
    """A table of the paper: its figures, its files, and what stands in where those are not there."""

    title: str
    files: tuple[str, ...]
    substitute: Callable[[], data.Classification]
    paper: tuple[Table, ...]
    gains: dict[str, tuple[float, float]]
    """The paper's differences in AUROC, with its two `+-` added in squares, for the figure."""
    remarks: tuple[str, ...]
    seeds: int = 5
    with_intercept: int = 1
    """Seeds of the model with an intercept."""


CHEMREACT = Subject(
    "ChemReact (Table 1)",
    ("chemreact10.npz", "chemreact100_part.npz", "ds1.100_train.npz"),
    data.breast_cancer,
    (
        Table(
            "The paper's Table 1 (100 features, 24,059 + 2,674 rows, no intercept; +- is the deviation over ten seeds)",
            ["system", "family", "train log-likelihood", "test AUROC"],
            [
                ["boosted BBVI", "Laplace", "-0.677", "0.794 +- 0.005"],
                ["BBVI", "Laplace", "-0.681", "0.781 +- 0.012"],
                ["BBVI", "Gaussian", "-0.671", "0.790 +- 0.009"],
                ["earlier boosting, three rows", "truncated normals", "-2.7 to -3.0", "0.62 to 0.64"],
            ],
        ),
    ),
    {"Table 1, Laplace": (0.013, 0.013)},
    (
        "The paper's train part with 100 features could not be had: chemreact10 has all rows and the first ten "
        "features, chemreact100_part a tenth of the rows (the authors' test part, split anew) and all features. With "
        "the authors' ds1.100_train.npz and ds1.100_test.npz in the folder of --data, the paper's own data are used, "
        "too. The `+-` of the paper's train log-likelihoods were not at hand.",
    ),
)
ICU = Subject(
    "Intensive care (Table 2)",
    ("icu_mortality.npz", "eicu_demo_mortality.npz", "train_test_split.npz"),
    data.eights,
    (
        Table(
            "The paper's Table 2 (eICU, credentialed data; Laplace; +- is the deviation over ten seeds)",
            ["system", "family", "train log-likelihood", "test AUROC"],
            [["boosted BBVI", "Laplace", "-0.195", "0.844 +- 0.006"], ["BBVI", "Laplace", "-0.200", "0.838 +- 0.016"]],
        ),
    ),
    {"Table 2, Laplace": (0.006, 0.017)},
    (
        "eICU itself needs credentials. icu_mortality is the open PhysioNet challenge of 2012 (12,000 stays), "
        "eicu_demo_mortality the open demo of eICU (2,179 stays). With the authors' train_test_split.npz in the folder "
        "of --data, the paper's own extract is used, too.",
    ),
)
WINE = Subject(
    "Wine (not in the paper)",
    ("wine_quality.npz",),
    data.growers,
    (),
    {},
    (
        "The paper has no figures for wine; its code does. The features are standardised on the train part; the "
        "authors' file holds raw values.",
    ),
    seeds=10,
    with_intercept=3,
)


def chemreact(options: Options, runs: Runs) -> Report:
    return _run(CHEMREACT, options, runs)


def icu(options: Options, runs: Runs) -> Report:
    return _run(ICU, options, runs)


def wine(options: Options, runs: Runs) -> Report:
    return _run(WINE, options, runs)


def _run(subject: Subject, options: Options, runs: Runs) -> Report:
    """Every system on every data set, over the seeds; the model with an intercept on a few of them."""
    data.check(options, subject.files)
    sets = _sets(subject, options)
    settings = QUICK if options.quick else Settings()
    work = []
    for one in sets:
        dear = len(one.y_train) > _DEAR_ROWS
        seeds = options.seed_range(FEW if dear else subject.seeds)
        work += pieces(one, seeds, 1 if dear or options.quick else FEW, ("Laplace",), settings)
        if not options.quick:
            work += pieces(one, seeds[: 0 if dear else FEW], 0, ("Gaussian",), settings)
            work += pieces(one.with_intercept(), seeds[: subject.with_intercept], 1, ("Laplace",), settings)
    results = [row for found in runs.all(work) for row in found["rows"]]
    return report(subject, results, dataclasses.asdict(settings))


def report(subject: Subject, results: Sequence[dict[str, Any]], settings: dict[str, Any]) -> Report:
    """Everything that is shown, from the raw results."""
    found = names(results)
    is_own = not all("scikit-learn" in name for name in found)
    title = subject.title if is_own else f"Logistic regression on {found[0]}, for want of data"
    tables = [*(subject.paper if is_own else ()), *(table(results, name) for name in found)]
    tables += [paired_table(results), *_gains(results)]
    remarks = [*(subject.remarks if is_own else ()), *_remarks(results)]
    drawn = figure(results, subject.gains if is_own else {})
    return Report(title, settings, tables, results, drawn, remarks)


def _sets(subject: Subject, options: Options) -> list[data.Classification]:
    """Those of the files that are there, each in its format; or scikit-learn's data."""
    found = {name: data.find(options, name) for name in (*subject.files, "ds1.100_test.npz")}
    sets = []
    for name, path in found.items():
        if path is None or name == "ds1.100_test.npz":
            continue
        if name == "ds1.100_train.npz":
            if (test := found["ds1.100_test.npz"]) is not None:
                sets.append(data.load_classification(path, test))
        elif name == "train_test_split.npz":
            sets.append(data.load_eicu(path))
        else:
            loaded = data.load_classification(path)
            sets.append(loaded.standardized() if name == "wine_quality.npz" else loaded)
    return sets or [subject.substitute()]


def _gains(results: Sequence[dict[str, Any]]) -> list[Table]:
    """Where the default's gain comes from: a covariance matrix, then boosting."""
    rows = []
    for name in names(results):
        default, normal = of(results, name, DEFAULT), of(results, name, NORMAL)
        if not default:
            continue
        more = values(default, "elbo") - values(normal, "elbo")
        last = {row["seed"]: row["elbo"] for row in of(results, name, LAST, "Laplace")}
        rest = [row["elbo"] - last[row["seed"]] for row in default]
        first = difference(paired(results, name, NORMAL, "full normal", "elbo"))
        rows.append([name, first, difference(more), difference(rest), len(default)])
    columns = [
        "data", "one full normal less BBVI, Laplace", "the default less one full normal",
        "the default less boosted Laplace (finite step, last)", "seeds",
    ]  # fmt: skip
    return [Table("Where ELBO is gained, nats: by a covariance matrix, and by boosting", columns, rows)]


def _remarks(results: Sequence[dict[str, Any]]) -> list[str]:
    kept = [row["components"] == 1 for row in results if row["system"] == PAPER]
    ratios = [
        ratio
        for name in names(results)
        for family in ("Laplace", "Gaussian")
        if (ratio := spread_ratio(results, name, LAST, family)) is not None
    ]
    remarks = [
        "The boosted fits continue the BBVI fit of the same seed, so that they are paired; the iterate with the best "
        "train log-likelihood is taken, as in the paper, and BBVI itself (the first iterate) competes. The last "
        "iterate stands beside it. All figures are measured on draws that took no part in the choice.",
        "The train log-likelihood of the paper's code is E_q[log p(y | x, w)] per row; the log predictive density "
        "log E_q[p(y | x, w)] is that of the prediction which a Bayesian makes. Both are shown.",
        f"With the paper's RELBO the chosen iterate was BBVI itself in {sum(kept)} of {len(kept)} fits. The rows "
        "'finite step' have the same family, fixed step and as many steps; the objective is the finite-step one, the "
        "oracle starts where the residual of the mixture is large, and gradients stick the landing.",
        f"'BBVI, as many steps' is one component with as many steps as a boosted fit has in all, and such gradients. "
        f"'{NORMAL}' is relbo's default with one component: where it gains most, what helps is a covariance matrix.",
    ]
    if ratios:
        remarks.append(
            f"The AUROC of the last iterate (finite step) varies over the seeds {min(ratios):.2f} to "
            f"{max(ratios):.2f} times as much as that of BBVI."
        )
    base = [name for name in names(results) if name.endswith("intercept")]
    if base:
        found = [f"{name.split(',')[0]} {shown(values(of(results, name, BBVI), 'train_ll'))}" for name in base]
        remarks.append(
            "Without an intercept a model of few positives cannot say that they are rare, and its train log-likelihood "
            f"is near -ln 2. With one it is, for BBVI: {', '.join(found)}."
        )
    return remarks

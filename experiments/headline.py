"""The main finding, computed from the raw results."""

from experiments.explaining import CHANGES
from experiments.regression import BBVI, LAST, PAPER
from experiments.regression_tables import names, of, paired, values
from experiments.regressions import CHEMREACT, ICU
from experiments.verdict import Raw


def headline(raw: Raw) -> str:
    """The main finding in two sentences."""
    if not {"chemreact", "icu"} <= set(raw):
        return ""
    steps = raw["chemreact"]["settings"]["first_steps"]
    gains = [gain for subject in (CHEMREACT, ICU) for gain, _ in subject.gains.values()]
    results = [row for name in ("chemreact", "icu", "wine") if name in raw for row in raw[name]["results"]]
    kept = [row["components"] == 1 for row in results if row["system"] == PAPER]
    sets = [
        (name, one)
        for name in ("chemreact", "icu")
        for one in names(raw[name]["results"])
        if not one.endswith("intercept")
    ]
    biggest = max(
        (abs(float(paired(raw[name]["results"], one, LAST, "Laplace", "test_auroc").mean())) for name, one in sets)
    )
    num = min(len(of(raw[name]["results"], one, BBVI, "Laplace")) for name, one in sets)
    spread = (
        max(
            float(values(of(raw[name]["results"], one, BBVI, "Laplace"), "test_auroc").std(ddof=1))
            for name, one in sets
        )
        if num > 1
        else 0.0
    )
    first = CHANGES["authors' steps"].first_steps
    return (
        f"**The paper's gains in AUROC were not reproduced with a BBVI of {steps:,} steps (the authors': {first})**: "
        f"with "
        f"its RELBO the iterate chosen by train log-likelihood was the first component in {sum(kept)} of {len(kept)} "
        f"fits, and with relbo's objective boosted and plain fits differ by at most {biggest:.2g} (the paper: "
        f"{gains[0]} "
        f"and {gains[1]}; BBVI's own deviation over seeds is up to {spread:.2g})."
    )

"""The comparison in the README, between its two marks, from results/peers.json: no number is written by hand."""

import argparse
import json
import re
from pathlib import Path

from peers_page import HERE, MVN, NUTS, cpu_cell, error_cell, escape, moment_cell, table, verdict
from peers_tables import OWN, Results

BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
_NOTE = """\
Medians over seeds. KL(q || p) in nats (*: distance to the best ELBO, where log Z is not known); errors of means (in
sds) and of sds, root mean square; CPU seconds on one core, imports and compilation included. One normal is NumPyro's
AutoMultivariateNormal. Everything measured, with settings and failures: [benchmarks/PEERS.md](benchmarks/PEERS.md)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "peers.json", help="what peers.py joined")
    parser.add_argument("--readme", type=Path, default=HERE.parent / "README.md")
    options = parser.parse_args()
    results = Results(json.loads(options.json.read_text()))
    options.readme.write_text(filled(options.readme.read_text(), summary(results)))
    print(options.readme)


def filled(readme: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The README, or another page, with `text` between the marks, whatever stood there."""
    if readme.count(begin) != 1 or readme.count(end) != 1:
        raise ValueError(f"The README must have one {begin} and one {end}. Put them where the comparison belongs.")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", readme, flags=re.DOTALL)


def summary(results: Results) -> str:
    return f"{verdict(results)}\n\n{rows(results)}\n\n{_NOTE}"


def rows(results: Results) -> str:
    """A row for each model: accuracy of relbo, of a single normal and of the best other, and time, NUTS included."""
    head = ["model", "d", "KL: relbo", "one normal", "best other", "moments: relbo", "NUTS", "CPU s: relbo", "NUTS"]
    return table(head, [row(results, model) for model in results.measured])


def row(results: Results, model: str) -> list[str]:
    facts, other = results.models[model], results.ranking(model).best_other
    star = "" if (facts["reference"] or {}).get("log_z") is not None else " *"
    return [
        f"{escape(facts['title'])}{star}",
        str(facts["dim"]),
        error_cell(results, model, OWN),
        error_cell(results, model, MVN),
        error_cell(results, model, other) if other else "",
        *(moment_cell(results, model, name) for name in (OWN, NUTS)),
        *(cpu_cell(results, model, name) for name in (OWN, NUTS)),
    ]


if __name__ == "__main__":
    main()

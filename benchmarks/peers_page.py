"""The page of the comparison, PEERS.md, and its figure, from results/peers.json: no number is written by hand."""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers_tables import LEVEL_STD_ERRS, OWN, Results

HERE = Path(__file__).resolve().parent
NUTS, MVN = "nuts", "auto_mvn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "peers.json", help="what peers.py joined")
    parser.add_argument("--page", type=Path, default=HERE / "PEERS.md")
    parser.add_argument("--figure", type=Path, default=HERE / "results" / "peers.png")
    options = parser.parse_args()
    from peers_figure import draw

    results = Results(json.loads(options.json.read_text()))
    draw(results).savefig(options.figure, dpi=130)
    figure = os.path.relpath(options.figure, options.page.parent)
    options.page.write_text(page(results, figure))
    print(f"{options.page} and {options.figure}")


def page(results: Results, figure: str) -> str:
    parts = [
        "# relbo and its peers",
        verdict(results),
        f"![Error against CPU seconds, a panel for each model]({figure})",
        "Left is cheaper, lower is more accurate. Vertical lines are samplers, which have no ELBO.",
        "## Model by model\n\n" + summary_table(results),
        "## Samplers and moments\n\n" + moments_table(results),
        "## Everything measured\n\n" + "\n\n".join(model_section(results, model) for model in results.measured),
        "## What did not finish\n\n" + failures(results),
        "## Settings\n\n" + settings_table(results),
        "## How it was measured\n\n" + how(results),
    ]
    return "\n\n".join(parts) + "\n"


# The verdict


def verdict(results: Results) -> str:
    """Where relbo wins and loses, in sentences."""
    lines = (*incomplete(results), accuracy(results), *losses(results), cost(results), *moments(results))
    return "\n".join(f"- {line}" for line in lines)


def incomplete(results: Results) -> list[str]:
    """What a reader must know first of a run that was stopped."""
    missing = results.missing()
    if not missing:
        return []
    methods = {method: sum(other == method for _, other in missing) for method in results.methods}
    parts = [f"{results.methods[name]['title']} on {num}" for name, num in methods.items() if num]
    seeds = max(len(cells) for cells in results.cells.values())
    num_pairs, num_models = len(results.models) * len(results.methods), len(results.models)
    return [
        f"**Not complete.** {len(missing)} of {num_pairs} pairs of model and method were not run: {', '.join(parts)}"
        f" of {num_models} models; the others with {seeds} seed{'s' if seeds > 1 else ''}; "
        '"all other tools" are those that were.'
    ]


def accuracy(results: Results) -> str:
    rankings = {model: results.ranking(model) for model in results.measured}
    count = {kind: sum(r.outcome == kind for r in rankings.values()) for kind in ("won", "level", "lost", "no result")}
    none = f" On {count['no result']} it has no result." if count["no result"] else ""
    places = ranks(results)
    rank = f" Its rank is {statistics.median(places):g} in the median and {max(places)} at worst." if places else ""
    return (
        f"**Accuracy.** By ELBO, relbo is ahead of all other variational tools on {count['won']} of {len(rankings)} "
        f"models, level with the best of them on {count['level']} (within {LEVEL_STD_ERRS:g} standard errors), and "
        f"behind on {count['lost']}.{none}{rank}"
    )


def ranks(results: Results) -> list[int]:
    return [order.index(OWN) + 1 for model in results.measured if OWN in (order := results.ranking(model).order)]


def losses(results: Results) -> list[str]:
    """One sentence with every model on which another tool is more accurate."""
    lost = []
    for model in results.measured:
        ranking = results.ranking(model)
        if ranking.outcome == "lost":
            other = results.methods[ranking.best_other]["title"]
            lost.append(f"{model} (by {with_error(-ranking.margin, ranking.margin_std_err)} nats, {other})")
        elif ranking.outcome == "no result":
            lost.append(f"{model} (no result of relbo)")
    return [f"**Where it loses**: {'; '.join(lost)}."] if lost else []


def cost(results: Results) -> str:
    sentences = []
    for name in (NUTS, MVN):
        ratios = results.ratios(name)
        if ratios:
            cheaper, worst = sum(ratio < 1 for ratio in ratios.values()), max(ratios, key=ratios.__getitem__)
            sentences.append(
                f"{statistics.median(ratios.values()):.1f} times those of {results.methods[name]['title']} in the "
                f"median, {ratios[worst]:.1f} times at worst ({worst}), fewer on {cheaper} of {len(ratios)}"
            )
    totals = [total for model in results.measured if (total := results.cpu(model, OWN)) is not None]
    shares = [
        results.cpu(model, OWN, "compile") / total
        for model in results.measured
        if (total := results.cpu(model, OWN)) is not None
    ]
    compiling = f" In the median, compilation is {statistics.median(shares):.0%} of them." if shares else ""
    range_of = f" ({min(totals):.0f} to {max(totals):.0f})" if totals else ""
    return f"**Cost.** relbo's CPU seconds{range_of} are {'; '.join(sentences)}.{compiling}"


def moments(results: Results) -> list[str]:
    """Means and sds beside NUTS's, where both are known."""
    names = [model for model in results.measured if all(known(results, model, name) for name in (OWN, NUTS))]
    if not names:
        return []
    medians = {
        (name, part): statistics.median(results.field(model, name, f"{part}_error_rms") for model in names)
        for name in (OWN, NUTS)
        for part in ("mean", "sd")
    }
    better = sum(both_errors(results, model, OWN) < both_errors(results, model, NUTS) for model in names)
    return [
        f"**Moments.** Root-mean-square errors, in the median over {len(names)} models: means "
        f"{medians[OWN, 'mean']:.3f} sd (NUTS {medians[NUTS, 'mean']:.3f}), sds {medians[OWN, 'sd']:.1%} "
        f"(NUTS {medians[NUTS, 'sd']:.1%}). Both together are smaller with relbo on {better} of them."
    ]


def known(results: Results, model: str, method: str) -> bool:
    return results.field(model, method, "mean_error_rms") is not None


def both_errors(results: Results, model: str, method: str) -> float:
    return results.field(model, method, "mean_error_rms") + results.field(model, method, "sd_error_rms")


# Tables


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns are aligned left, the others right."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def summary_table(results: Results) -> str:
    """One row a model: the error of relbo and of the best other, and CPU seconds beside AutoMVN and NUTS."""
    head = [
        "model",
        "d",
        "relbo's KL",
        "best other KL",
        "which",
        "relbo is",
        "CPU s: relbo",
        "AutoMVN",
        "NUTS",
        "to NUTS",
    ]
    rows = []
    for model in results.measured:
        ranking, facts = results.ranking(model), results.models[model]
        star = "" if (facts["reference"] or {}).get("log_z") is not None else " *"
        other = ranking.best_other
        rows.append([
            f"{escape(facts['title'])} (`{model}`){star}",
            str(facts["dim"]),
            error_cell(results, model, OWN),
            error_cell(results, model, other) if other else "",
            results.methods[other]["title"] if other else "",
            ranking.outcome,
            *(cpu_cell(results, model, name) for name in (OWN, MVN, NUTS)),
            number("{:.1f}", results.ratios(NUTS).get(model)),
        ])  # fmt: skip
    note = (
        "\n\nMedians over seeds, in nats. *: log Z is not known to 0.01; the distance to the best ELBO instead of KL."
    )
    return table(head, rows) + note


def error_cell(results: Results, model: str, method: str) -> str:
    error = results.error(model, method)
    if error is None:
        return kinds(results, model, method)
    std_err = results.field(model, method, "kl_std_err") or results.field(model, method, "elbo_std_err")
    return with_error(error, std_err)


def cpu_cell(results: Results, model: str, method: str) -> str:
    seconds = results.cpu(model, method)
    return kinds(results, model, method) if seconds is None else f"{seconds:.0f}"


def kinds(results: Results, model: str, method: str) -> str:
    return ", ".join(sorted({cell["kind"] for cell in results.cells.get((model, method), [])})) or "not run"


def moments_table(results: Results) -> str:
    """Root-mean-square errors of means and sds: relbo beside the samplers."""
    names = [OWN, MVN, *(name for name, method in results.methods.items() if not method["variational"])]
    head = ["model", *(f"{results.methods[name]['title']}" for name in names)]
    rows = [[f"`{model}`", *(moment_cell(results, model, name) for name in names)] for model in results.measured]
    note = (
        "\n\nRoot-mean-square error of the means in sds / of the sds, medians over seeds. With 10,000 independent "
        "draws 0.010 / 0.7 % is noise alone; the reference's own error adds to it (below, model by model)."
    )
    return table(head, rows) + note


def moment_cell(results: Results, model: str, method: str) -> str:
    if not known(results, model, method):
        return kinds(results, model, method) if not results.done(model, method) else "no reference"
    mean, sd = (results.field(model, method, f"{part}_error_rms") for part in ("mean", "sd"))
    return f"{mean:.3f} / {sd:.1%}"


COLUMNS: dict[str, Callable[[Results, str, str], str]] = {
    "KL": lambda r, model, name: error_cell(r, model, name) if r.methods[name]["variational"] else "",
    "ELBO": lambda r, model, name: with_error(r.field(model, name, "elbo"), r.field(model, name, "elbo_std_err")),
    "k-hat": lambda r, model, name: number("{:.2f}", r.field(model, name, "k_hat")),
    "mean, max": lambda r, model, name: number("{:.2f}", r.field(model, name, "mean_error_max")),
    "rms": lambda r, model, name: number("{:.3f}", r.field(model, name, "mean_error_rms")),
    "sd, max": lambda r, model, name: number("{:.0%}", r.field(model, name, "sd_error_max")),
    "rms ": lambda r, model, name: number("{:.1%}", r.field(model, name, "sd_error_rms")),
    "mass": lambda r, model, name: number("{:.3f}", r.field(model, name, "mode_mass_error_max")),
    "imports": lambda r, model, name: number("{:.1f}", r.cpu(model, name, "imports")),
    "compile": lambda r, model, name: number("{:.1f}", r.cpu(model, name, "compile")),
    "run": lambda r, model, name: number("{:.1f}", r.cpu(model, name, "run")),
    "wall": lambda r, model, name: number("{:.0f}", r.median(model, name, lambda cell: cell["wall_seconds"]["total"])),
    "gradients": lambda r, model, name: number("{:.1e}", r.field(model, name, "num_gradients")),
    "MB": lambda r, model, name: number("{:.0f}", r.field(model, name, "peak_memory_mb")),
}
"""Of a model's own table: errors of means in sds and of sds, of the mass at a mode, then CPU s by part, wall s."""


def model_section(results: Results, model: str) -> str:
    facts = results.models[model]
    columns = [name for name in COLUMNS if name != "mass" or facts["num_modes"] > 1]
    rows = []
    for name, method in results.methods.items():
        done = results.done(model, name)
        title = method["title"] + (f" ({len(done)} seeds)" if len(done) > 1 else "")
        if done:
            rows.append([title, *(COLUMNS[column](results, model, name) for column in columns)])
        elif (model, name) in results.cells:
            rows.append([title, kinds(results, model, name), *[""] * (len(columns) - 1)])
    return f"### {facts['title']} (`{model}`, d = {facts['dim']})\n\n{reference(facts)}\n\n" + table(
        ["", *columns], rows
    )


def reference(facts: dict[str, Any]) -> str:
    found = facts["reference"]
    if found is None:
        return "No reference yet."
    log_z = "log Z unknown to 0.01"
    if found["log_z"] is not None:
        log_z = f"log Z = {with_error(found['log_z'], found['log_z_std_err'])} ({found['log_z_how']})"
    return (
        f"Reference: {found['how']}; its own largest errors {found['mean_mcse_max']:.3f} sd (means), "
        f"{found['sd_mcse_max']:.1%} (sds). {log_z}."
    )


def failures(results: Results) -> str:
    """By name: over the limit and failed; then what was not applicable, by reason."""
    rows = [
        [cell["model"], results.methods[cell["method"]]["title"], str(cell["seed"]), cell["kind"], cell["reason"]]
        for cell in results.not_done(("failed", "over the limit"))
    ]
    text = table(["model", "method", "seed", "what", "why"], [[escape(entry) for entry in row] for row in rows], left=5)
    reasons: dict[str, list[str]] = {}
    for cell in results.not_done(("not applicable",)):
        reasons.setdefault(cell["reason"], []).append(f"{cell['method']} on {cell['model']}")
    lines = [f"- Not applicable, {reason}: {', '.join(names)}." for reason, names in reasons.items()]
    return "\n\n".join(
        [text if rows else "Everything that was applicable finished.", *["\n".join(lines)][: len(lines)]]
    )


def settings_table(results: Results) -> str:
    rows = [
        [method["title"], "; ".join(f"{key} {value}" for key, value in method["settings"].items())]
        for method in results.methods.values()
    ]
    return "The same for every model.\n\n" + table(["method", "settings"], rows, left=2)


def how(results: Results) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items() if number)
    commits = sorted({cell["commit"] for cells in results.cells.values() for cell in cells if "commit" in cell})
    text = (HERE / "peers_how.md").read_text().strip()
    return (
        f"{text}\n\nMachine: {machine['cpu']}, {machine['num_cores']} cores. Python {machine['python']}, {versions}. "
        f"Commit of relbo: {', '.join(commits)}."
    )


# Numbers


def with_error(value: float | None, std_err: float | None) -> str:
    if value is None:
        return ""
    if not std_err:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.2f}"
    digits = 4 if std_err < 0.001 else 3 if std_err < 0.1 else 2 if std_err < 1 else 1
    return f"{value:.{digits}f} ± {std_err:.{digits}f}"


def number(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()

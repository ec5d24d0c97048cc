"""`python -m experiments.page [--mixed] [--render]`: README.md from what is said and from the results.

With `--render`, tables and figures are made anew first, where the raw results hold all that they show.

Results of several versions of the engine are not put on one page, unless `--mixed` is given; the page then says which
experiment was made by which.
"""

import json
import pathlib
import sys
from typing import Any

import relbo
from experiments import (
    explaining,
    explanations,
    face_fits,
    figure1,
    headline,
    regression,
    regressions,
    sources,
    systems,
    verdict,
)
from experiments.registry import EXPERIMENTS

HERE = pathlib.Path(__file__).parent
_REPORTS = {"figure1": figure1.report, "explanations": explanations.report, "systems": systems.report}


def page(folder: pathlib.Path = HERE, *, mixed: bool = False) -> str:
    """The whole page. An experiment without results is named as such."""
    raw = results(folder)
    text = (folder / "about.md").read_text()
    parts = {
        "headline": headline.headline(raw),
        "verdict": verdict.markdown(raw),
        "sources": sources.markdown(),
        "code": _code(raw, mixed),
        "minutes": f"{sum(one.get('cpu_seconds', 0) for one in raw.values()) / 60:.0f}",
        **_steps(),
        "names": ", ".join(EXPERIMENTS),
    }
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    sections = [text]
    for name in EXPERIMENTS:
        path = folder / "results" / f"{name}.md"
        if name not in raw:
            sections.append(f"## {name}\n\nNo results yet: `python -m experiments {name}`.\n")
            continue
        title, _, rest = path.read_text().removeprefix("# ").partition("\n")
        sections.append(f"## {name}\n\n{title}\n\n![{title}](results/{name}.png)\n{rest}")
    return "\n".join(sections).rstrip() + "\n"


def _steps() -> dict[str, str]:
    """What the page says of steps and draws, from the settings that are run."""
    faces, rules = face_fits.Budget(), [relbo.paper(name) for name in ("line_search", "fully_corrective")]
    searching = {rule["step"].num_draws for rule in rules}
    numbers = {
        "authors_steps": explaining.CHANGES["authors' steps"].first_steps,
        "authors_faces_steps": faces.few_steps,
        "bbvi_steps": regression.Settings().first_steps,
        "faces_steps": faces.num_steps,
        "paper_draws": rules[0]["oracle"].ascent.num_draws,
        "search_draws": searching.pop(),
    }
    return {name: f"{number:,}" for name, number in numbers.items()}


def results(folder: pathlib.Path = HERE) -> verdict.Raw:
    """The raw results by experiment, quick ones left out."""
    found = {}
    for name in EXPERIMENTS:
        path = folder / "results" / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text())
            if found[name]["quick"]:
                raise ValueError(f"{path.name} is of a quick run, which is no result.")
    return found


def code_of(raw: dict[str, Any]) -> dict[str, str]:
    """Which code made a result; of old ones, which had one digest for all of relbo, what there is."""
    whole = raw.get("versions", {}).get("relbo's code", "unknown")
    return raw.get("code", {"relbo": "0.1.0", "engine": f"{whole} (an old digest)", "experiment": "not recorded"})


def _code(raw: verdict.Raw, mixed: bool) -> str:
    """One sentence where one engine made everything; a table where several did, if that is allowed."""
    engines = {code_of(one)["engine"] for one in raw.values()}
    if len(engines) <= 1:
        version = code_of(next(iter(raw.values())))["relbo"] if raw else "?"
        head = (
            f"All results were made by one version of the code: relbo {version}, engine `{next(iter(engines), '?')}`."
        )
        return "\n".join([head, "", *_code_table(raw)])
    if not mixed:
        each = ", ".join(f"{name}: {code_of(one)['engine']}" for name, one in raw.items())
        raise ValueError(
            f"The results are of {len(engines)} versions of the engine ({each}). Run what is old again, or say "
            "--mixed: the page then names them."
        )
    head = (
        f"**The results are of {len(engines)} versions of the engine**, which is tuned while experiments run; numbers "
        "of different rows of this table should not be compared to the last digit."
    )
    return "\n".join([head, "", *_code_table(raw)])


def _code_table(raw: verdict.Raw) -> list[str]:
    lines = ["| experiment | engine | the experiment's own code | CPU minutes |", "|---|---|---|---|"]
    for name, one in raw.items():
        code, minutes = code_of(one), one.get("cpu_seconds")
        cost = "-" if minutes is None else f"{minutes / 60:.1f}"
        lines.append(f"| {name} | `{code['engine']}` | `{code['experiment']}` | {cost} |")
    return lines


def render(folder: pathlib.Path = HERE) -> None:
    """Tables and figures from the raw results, for the experiments whose raw results hold all that is shown."""
    subjects = {"chemreact": regressions.CHEMREACT, "icu": regressions.ICU, "wine": regressions.WINE}
    for name, raw in results(folder).items():
        if name in subjects and "code" not in raw:
            continue  # of an older form
        if name in subjects:
            made = regressions.report(subjects[name], raw["results"], raw["settings"])
        elif name in _REPORTS:
            made = _REPORTS[name](raw["results"], raw["settings"])
        else:
            continue
        (folder / "results" / f"{name}.md").write_text(made.markdown())
        made.save_figure(folder / "results" / f"{name}.png")


if __name__ == "__main__":
    if "--render" in sys.argv[1:]:
        render()
    (HERE / "README.md").write_text(page(mixed="--mixed" in sys.argv[1:]))

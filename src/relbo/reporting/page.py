"""`report`: put the page together, and write it whole or not at all."""

import base64
import hashlib
import os
import pathlib
from typing import Any

from relbo.diagnostics import Diagnosis, diagnose
from relbo.posterior.posterior import Posterior
from relbo.reporting import charts, facts, words
from relbo.reporting.encoding import to_json
from relbo.reporting.tables import parameter_table
from relbo.runtime.require import require
from relbo.storage.container import write_atomically
from relbo.views.scalars import Scalars, scalars

_HERE = pathlib.Path(__file__).parent
_NUM_DRAWS = 2000  # as in a saved file: quantiles to about a hundredth


def report(
    posterior: Posterior,
    path: str | os.PathLike,
    *,
    diagnosis: Diagnosis | None = None,
    title: str | None = None,
) -> pathlib.Path:
    """Write a page about a fit: the verdict, what was fitted, parameters, charts, diagnostics in plain words.

    The page is one file that needs no network. Without a `diagnosis`, `relbo.diagnose(posterior)` makes one; of a
    posterior that was loaded without its model, from the draws in its file. The same posterior and diagnosis give the
    same page to the last byte. Returns the path.

    Names and texts of the model are shown as text, whatever they contain, and the page forbids the browser to run any
    script but its own or to load anything from elsewhere.
    """
    require("jinja2", extra="report")
    _check(posterior, path, title)
    judged, doubt = (diagnosis, "") if diagnosis is not None else _diagnose(posterior)
    drawn, missing = _draw(posterior)
    page = _render(posterior, judged, doubt, drawn, missing, title or "A posterior by relbo")
    write_atomically(path, [page.encode()])
    return pathlib.Path(path)


def _check(posterior: Any, path: Any, title: Any) -> None:
    if not isinstance(posterior, Posterior):
        raise ValueError(
            f"report needs a posterior, got {type(posterior).__name__}. Of a file: relbo.report(relbo.load(file), to)."
        )
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path must name the file to write, such as 'report.html', got {path!r}.")
    if title is not None and not isinstance(title, str):
        raise ValueError(f"title must be a string, got {type(title).__name__}.")


def _diagnose(posterior: Posterior) -> tuple[Diagnosis | None, str]:
    """A diagnosis; or none, and why: a checkpoint holds no draws to judge by, and its page is worth having."""
    try:
        return diagnose(posterior), ""
    except ValueError as error:
        return None, str(error)


def _draw(posterior: Posterior) -> tuple[Scalars | None, str]:
    try:
        return scalars(posterior, _NUM_DRAWS), ""
    except ValueError as error:
        return None, str(error)


def _render(
    posterior: Posterior, diagnosis: Diagnosis | None, doubt: str, drawn: Scalars | None, missing: str, title: str
) -> str:
    from markupsafe import Markup

    data = charts.chart_data(posterior, diagnosis, drawn)
    scripts = [_file("vendor/uPlot.iife.min.js"), _file("static/charts.js"), _file("static/page.js")]
    styles = [_file("vendor/uPlot.min.css"), _file("static/page.css")]
    return _template().render(
        title=title,
        policy=Markup(_policy(scripts, styles)),
        styles=[Markup(style) for style in styles],
        scripts=[Markup(script) for script in scripts],
        licence=_file("vendor/LICENSE-uPlot"),
        data=Markup(to_json(data)),
        charted=data["parameters"]["names"],
        components=data["components"],
        verdict=words.verdict(diagnosis, doubt),
        figures=words.key_figures(posterior, diagnosis),
        explained=words.explained(diagnosis),
        facts=facts.facts(posterior),
        settings=facts.settings(posterior),
        code=facts.code(posterior),
        versions=facts.versions(),
        table=parameter_table(posterior, diagnosis, drawn),
        missing=missing,
    )


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "static"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


def _policy(scripts: list[str], styles: list[str]) -> str:
    """Nothing from elsewhere, and no script or style but those written here, told by their hashes."""
    allowed = {"script-src": scripts, "style-src": styles}
    rules = [f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""`relbo fit` and `relbo resume`."""

import pathlib
from dataclasses import dataclass
from typing import Any

import relbo
from relbo.cli.mapping import Arguments
from relbo.cli.models import Model
from relbo.cli.session import Session, UsageError
from relbo.cli.together import Crew
from relbo.cli.work import check_complete, load_fit, make_target, read_model, show_diagnosis, show_mapping, show_summary
from relbo.storage.reading import read

_SUMMARY_DRAWS = 2000  # quantiles to about a hundredth


@dataclass(frozen=True)
class Outputs:
    """Files to write when a fit is done."""

    fit: pathlib.Path
    report: pathlib.Path | None = None
    netcdf: pathlib.Path | None = None
    num_draws: int | None = None
    """For the diagnosis."""

    def check(self) -> None:
        """Before the work, not after it."""
        for path in (self.fit, self.report, self.netcdf):
            if path is not None and not path.resolve().parent.is_dir():
                raise UsageError(f"{path} is to be written in a folder that does not exist: make it first.")


def fit(talk: Session, model_text: str, source: dict[str, Any], outputs: Outputs, settings: dict, crew: Crew) -> None:
    outputs.check()
    crew.join(talk)
    model, data, arguments = read_model(model_text, **source)
    show_mapping(talk, model, arguments)
    target = make_target(model, data, arguments)
    talk.say(str(target))
    posterior = relbo.fit(target, progress_bar=talk.speaks, **settings, **crew.settings())
    kept = crew.part(posterior, outputs.fit, target)
    if kept is not None:
        finish(talk, kept, outputs)


def show(talk: Session, model_text: str, source: dict[str, Any], outputs: Outputs) -> None:
    """How data meet the model, and nothing more. A Stan program is not compiled for that."""
    outputs.check()
    model, data, arguments = read_model(model_text, **source)
    show_mapping(talk, model, arguments)
    if model.needs_compiling:
        check_complete(data, arguments)
        _show_dry_run(talk, model, arguments)
        return
    target = make_target(model, data, arguments)
    talk.say(str(target))
    _show_dry_run(talk, model, arguments, dim=target.dim)


def beside(path: pathlib.Path) -> pathlib.Path:
    """Where a resumed fit goes: over the old one, but never over its checkpoint."""
    return path if path.suffix == ".relbo" else path.with_suffix(".relbo")


def _show_dry_run(talk: Session, model: Model, arguments: Arguments, **more: Any) -> None:
    rows = [dict(zip(("argument", "from", "shape", "value"), row, strict=True)) for row in arguments.rows()]
    talk.result(model=model.title, arguments=rows, unused=arguments.unused, **more)
    talk.note("nothing was fitted (--dry-run)")


def finish(talk: Session, posterior: relbo.Posterior, outputs: Outputs) -> None:
    """Keep the fit first; then what is told and drawn from it."""
    relbo.save(posterior, outputs.fit)
    files = {"fit": str(outputs.fit)}
    parameters = show_summary(talk, posterior, _SUMMARY_DRAWS, 1)
    found = relbo.diagnose(posterior, num_draws=outputs.num_draws)
    judged = show_diagnosis(talk, found)
    if outputs.netcdf is not None:
        relbo.to_arviz(posterior).to_netcdf(str(outputs.netcdf))
        files["netcdf"] = str(outputs.netcdf)
    if outputs.report is not None:
        write_report(posterior, outputs.report, found)
        files["report"] = str(outputs.report)
    cost = {name: getattr(posterior, name) for name in ("num_evaluations", "seconds", "compile_seconds")}
    talk.note(f"wrote {', '.join(files.values())}")
    if found.status == "not converged":
        most = 2 * max(16, posterior.num_components)
        talk.note(f"to go on: relbo resume {outputs.fit} FILE --data DATA --max-components {most}")
    talk.result(**judged, **cost, parameters=parameters, files=files)


def write_report(
    posterior: relbo.Posterior, path: pathlib.Path, found: relbo.Diagnosis, title: str | None = None
) -> None:
    report: Any = getattr(relbo, "report", None)
    if report is None:
        raise ValueError("this version of relbo writes no report pages.")
    report(posterior, path, diagnosis=found, title=title)


def resume(
    talk: Session, path: pathlib.Path, model_text: str, source: dict[str, Any], outputs: Outputs, most: int
) -> None:
    """A checkpoint goes on as if nothing had happened; a finished fit goes on with more components."""
    outputs.check()
    before = load_fit(path)
    model, data, arguments = read_model(model_text, **source)
    target = make_target(model, data, arguments)
    about = read(path).header["fit"]
    more: dict[str, Any] = {"max_components": most} if most else {}
    if about is not None and not about["finished"]:
        talk.note(f"{path} is a checkpoint after {len(before.trace)} iterations: the fit goes on, and writes there.")
        settings = _settings(before) | {"seed": about["seed"], "checkpoint": path}
        posterior = relbo.fit(target, progress_bar=talk.speaks, **settings, **more)
    else:
        more = more or {"max_components": max(32, 2 * before.num_components)}
        talk.note(f"{path} has {before.num_components} components: going on to {more['max_components']} at the most.")
        posterior = relbo.fit(target, start=before, progress_bar=talk.speaks, **more)
    finish(talk, posterior, outputs)


def _settings(posterior: relbo.Posterior) -> dict[str, Any]:
    """Those that a checkpoint was begun with."""
    booster = posterior.booster
    if booster.missing:
        raise ValueError(
            f"the checkpoint could not hold {', '.join(booster.missing)}, of your own making. Go on in Python, with "
            "the call that began it."
        )
    return {
        "family": booster.family,
        "objective": booster.objective,
        "oracle": booster.oracle,
        "step": booster.step_rule,
        "estimator": booster.estimator,
        "refine": False if booster.refinement is None else booster.refinement,
        "precondition": booster.preconditioner,
        "min_improvement": booster.min_improvement,
        "num_measure": booster.num_measure,
    }

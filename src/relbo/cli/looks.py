"""What can be done with a fit that is there: `summary`, `diagnose`, `sample`, `predict`, `compare`, `report`."""

import pathlib
from typing import Any

import numpy as np

import relbo
from relbo.cli.data import read_data
from relbo.cli.fits import write_report
from relbo.cli.mapping import Arguments, map_again
from relbo.cli.models import Model
from relbo.cli.session import BAD_VERDICT, Session, UsageError
from relbo.cli.work import load_fit, make_target, read_model, show_diagnosis, show_summary, write_draws
from relbo.runtime.require import require


def load_with_model(path: pathlib.Path, model_text: str | None, source: dict[str, Any]) -> relbo.Posterior:
    """A fit, with its model if that was given."""
    before = load_fit(path)
    if model_text is None:
        if source["paths"] or source["given"]:
            raise UsageError("--data and --arg are for a model: give its file, too.")
        return before
    return load_fit(path, make_target(*read_model(model_text, **source)))


def summary(talk: Session, path: pathlib.Path, num_draws: int, seed: int) -> None:
    posterior = load_fit(path)
    talk.say(repr(posterior))
    parameters = show_summary(talk, posterior, num_draws, seed)
    talk.result(
        elbo=posterior.elbo,
        num_components=posterior.num_components,
        stop_reason=posterior.stop_reason,
        weights=posterior.weights,
        parameters=parameters,
    )


def diagnose(talk: Session, posterior: relbo.Posterior, num_draws: int | None, seed: int) -> None:
    found = relbo.diagnose(posterior, num_draws=num_draws, seed=seed)
    talk.result(**show_diagnosis(talk, found, whole=True))


def sample(
    talk: Session, posterior: relbo.Posterior, num_draws: int, seed: int, out: pathlib.Path | None, resample: bool
) -> None:
    draws = relbo.resample(posterior, num_draws, seed=seed) if resample else posterior.sample(num_draws, seed=seed)
    write_draws(
        out,
        draws,
        posterior.target.first_index,
        lambda: relbo.to_arviz(posterior, num_draws=num_draws, seed=seed, importance_resampled=resample),
    )
    _wrote(talk, out, num_draws=num_draws)


def predict(
    talk: Session,
    path: pathlib.Path,
    model_text: str,
    source: dict[str, Any],
    new: list[pathlib.Path],
    *,
    num_draws: int,
    seed: int,
    out: pathlib.Path | None,
) -> None:
    """Draws of the observed variables: for the data of the fit, or for new ones."""
    load_fit(path)  # sets the precision before the target is made
    model, data, arguments = read_model(model_text, **source)
    posterior = load_fit(path, make_target(model, data, arguments))
    args, kwargs = _new_arguments(model, arguments, posterior, new, source) if new else ([], {})
    draws = relbo.predict(posterior, *args, num_draws=num_draws, seed=seed, **kwargs)
    write_draws(out, draws, posterior.target.first_index, lambda: _as_dataset(draws))
    _wrote(talk, out, num_draws=num_draws, variables={name: list(np.shape(value)) for name, value in draws.items()})


def _new_arguments(
    model: Model, arguments: Arguments, posterior: relbo.Posterior, new: list[pathlib.Path], source: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The model's arguments for new data, without those that were observed: they are what is drawn."""
    seen = [np.asarray(value) for value in posterior.target.observed_data().values()]
    observed = {each.name for each in arguments.mapped if _is_among(each.value, seen)}
    values = map_again(
        arguments, read_data(new), observed, first_code=model.first_code, drop_missing=source["drop_missing"]
    )
    return model.new_arguments(values, observed)


def _is_among(value: Any, seen: list[np.ndarray]) -> bool:
    """Whether these are the observed data, up to the rounding of their precision."""
    return any(np.shape(value) == each.shape != () and np.allclose(value, each, rtol=1e-5) for each in seen)


def _as_dataset(draws: dict[str, np.ndarray]) -> Any:
    xarray = require("xarray", extra="arviz")
    return xarray.Dataset(
        {
            name: (["draw", *(f"{name}_dim_{axis}" for axis in range(value.ndim - 1))], value)
            for name, value in draws.items()
        }
    )


def compare(talk: Session, one: pathlib.Path, other: pathlib.Path, num_draws: int, seed: int) -> None:
    posterior = load_fit(one)
    found = relbo.compare(posterior, _reference(other), num_draws=num_draws, seed=seed)
    talk.say("\n".join(str(found).splitlines()[:-1]))
    talk.say(found.verdict, style="bold green" if found.agrees else "bold red")
    talk.code = 0 if found.agrees else BAD_VERDICT
    talk.result(
        agrees=found.agrees,
        verdict=found.verdict,
        parameters={
            each.name: {"mean": each.mean.value, "sd": each.sd.value, "wasserstein": each.wasserstein.value}
            for each in found.parameters
        },
    )


def _reference(path: pathlib.Path) -> Any:
    """Another fit, or draws that any other program has written for ArviZ."""
    if not path.is_file():
        raise UsageError(f"there is no file {path} to compare with.")
    if path.suffix.lower() not in (".nc", ".netcdf"):
        return load_fit(path)
    return require("arviz", extra="arviz").from_netcdf(str(path))


def report(talk: Session, posterior: relbo.Posterior, out: pathlib.Path, title: str | None) -> None:
    found = relbo.diagnose(posterior)
    write_report(posterior, out, found, title)
    talk.result(report=str(out), status=found.status)
    talk.note(f"wrote {out}")


def _wrote(talk: Session, out: pathlib.Path | None, **more: Any) -> None:
    if out is not None:
        talk.result(file=str(out), **more)
        talk.note(f"wrote {out}")

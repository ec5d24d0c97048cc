"""What was fitted and how, and how to do it again."""

import json
import platform
from importlib import metadata
from typing import Any

import jax
import numpy as np

from relbo.families import LocationScale
from relbo.families.registry import NOISES, SCALES
from relbo.posterior.posterior import Posterior
from relbo.runtime.words import plural, shorten
from relbo.storage.files import settings_of

_DOORS = {
    "NumPyroTarget": ("a NumPyro model", "relbo.from_numpyro(model, ...)"),
    "PyMCTarget": ("a PyMC model", "relbo.from_pymc(model)"),
    "StanTarget": ("a Stan program", 'relbo.from_stan("model.stan", data)'),
    "JaxTarget": ("a log density in JAX", "relbo.from_log_density(log_density, example)"),
    "CallableTarget": ("a function outside JAX", "relbo.from_callable(function, dim)"),
}
_SCALE_WORDS = {"mean_field": "diagonal", "low_rank": "low-rank plus diagonal", "full": "full"}
_MOST_DATA = 12  # names, about two lines


def facts(posterior: Posterior) -> list[tuple[str, str]]:
    """Terms and what they are, in the order of reading."""
    target = posterior.target
    rows = [
        ("Model", f"{_door(posterior)[0]}, {plural(target.dim, 'unconstrained coordinate')}, {target.dtype}"),
        ("Data", _data(target)),
        ("Approximation", f"a mixture of {plural(posterior.num_components, 'component')}: {_family(posterior)}"),
        ("Coordinates", _coordinates(posterior)),
        ("Iterations", f"{len(posterior.trace)}, {sum(r.accepted for r in posterior.trace)} of them kept"),
        ("Stopped because", posterior.stop_reason),
        ("Evaluations of the log density", _evaluations(posterior)),
        ("Time", f"{posterior.seconds:.1f} s, {posterior.compile_seconds:.1f} s of it compiling"),
    ]
    return [(term, text) for term, text in rows if text]


def settings(posterior: Posterior) -> str:
    """All settings as they are stored."""
    family = {"family": repr(posterior.booster.family)}
    return json.dumps(family | settings_of(posterior.booster), indent=2, default=str)


def code(posterior: Posterior) -> str:
    """How to fit and report again."""
    return "\n".join(
        [
            "import relbo",
            "",
            f"target = {_door(posterior)[1]}  # the model and the data that were fitted",
            f"posterior = relbo.fit(target, seed=0{_settings_in_code(posterior)})  # the seed that you passed",
            'relbo.report(posterior, "report.html")',
        ]
    )


def versions() -> list[tuple[str, str]]:
    """What this page was made with."""
    packages = ("relbo", "jax", "jaxlib", "numpy")
    installed = [(name, metadata.version(name)) for name in packages]
    return [
        *installed,
        ("Python", platform.python_version()),
        ("largest floats", jax.dtypes.canonicalize_dtype(np.float64).name),
    ]


def _door(posterior: Posterior) -> tuple[str, str]:
    kind = posterior.target.model_kind
    return _DOORS.get(kind, (kind, "..."))


def _data(target) -> str:
    observed = {name: np.shape(values) for name, values in target.observed_data().items()}
    shown = [f"{name} ({' × '.join(map(str, shape)) or 'scalar'})" for name, shape in observed.items()]
    return shorten(shown, _MOST_DATA)


def _family(posterior: Posterior) -> str:
    family = posterior.booster.family
    if not isinstance(family, LocationScale):
        return type(family).__name__
    noise, scale = _part_names(family)
    words = _SCALE_WORDS.get(scale, type(family.scale).__name__)
    return f"{(noise or type(family.noise).__name__).replace('_', '-')} laws with {words} covariance"


def _part_names(family: Any) -> tuple[str, str]:
    """What `relbo.families` calls the noise and the scale of a family; empty for one that it has no name for."""
    parts = ((NOISES, getattr(family, "noise", None)), (SCALES, getattr(family, "scale", None)))
    noise, scale = (next((name for name, law in known.items() if type(law) is type(part)), "") for known, part in parts)
    return noise, scale


def _coordinates(posterior: Posterior) -> str:
    kind = posterior.booster.preconditioner.kind
    return "the model's own, shifted to the start" if kind == "none" else f"whitened, found by the fit ({kind})"


def _evaluations(posterior: Posterior) -> str:
    parts = ", ".join(f"{purpose} {number:,}" for purpose, number in posterior.evaluations.items())
    return f"{posterior.num_evaluations:,}" + (f" ({parts})" if parts else "")


def _settings_in_code(posterior: Posterior) -> str:
    noise, scale = _part_names(posterior.booster.family)
    chosen = f', family="{scale}_{noise}"' if noise and scale else ""
    limited = posterior.stop.limit == "components"
    return chosen + (f", max_components={posterior.num_components}" if limited else "")

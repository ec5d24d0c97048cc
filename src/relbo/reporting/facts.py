"""What was fitted and how, and how to do it again."""

import json
import platform
from importlib import metadata

import jax
import numpy as np

from relbo.families import AbstractFamily, LocationScale
from relbo.families.registry import NOISES, SCALES
from relbo.posterior.posterior import Posterior
from relbo.storage.files import settings_of
from relbo.targets.stored import StoredTarget

_DOORS = {
    "NumPyroTarget": ("a NumPyro model", "relbo.from_numpyro(model, ...)"),
    "PyMCTarget": ("a PyMC model", "relbo.from_pymc(model)"),
    "StanTarget": ("a Stan program", 'relbo.from_stan("model.stan", data)'),
    "JaxTarget": ("a log density in JAX", "relbo.from_log_density(log_density, example)"),
    "CallableTarget": ("a function outside JAX", "relbo.from_callable(function, dim)"),
}
_SCALE_WORDS = {"mean_field": "diagonal", "low_rank": "low-rank plus diagonal", "full": "full"}
_MOST_DATA = 12


def facts(posterior: Posterior) -> list[tuple[str, str]]:
    """Terms and what they are, in the order of reading."""
    target = posterior.target
    found = [
        ("Model", f"{_door(posterior)[0]}, {_plural(target.dim, 'unconstrained coordinate')}, {target.dtype}"),
        ("Data", _data(target)),
        ("Approximation", f"a mixture of {_plural(posterior.num_components, 'component')}: {_family(posterior)}"),
        ("Coordinates", _coordinates(posterior)),
        ("Iterations", f"{len(posterior.trace)}, {sum(r.accepted for r in posterior.trace)} of them kept"),
        ("Stopped because", posterior.stop_reason),
        ("Evaluations of the log density", _evaluations(posterior)),
        ("Time", f"{posterior.seconds:.1f} s, {posterior.compile_seconds:.1f} s of it compiling"),
    ]
    return [(term, text) for term, text in found if text]


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
    found = [(name, metadata.version(name)) for name in packages]
    return [
        *found,
        ("Python", platform.python_version()),
        ("largest floats", jax.dtypes.canonicalize_dtype(np.float64).name),
    ]


def _kind(posterior: Posterior) -> str:
    target = posterior.target
    return target.kind if isinstance(target, StoredTarget) else type(target).__name__


def _door(posterior: Posterior) -> tuple[str, str]:
    return _DOORS.get(_kind(posterior), (_kind(posterior), "..."))


def _data(target) -> str:
    observed = {name: np.shape(values) for name, values in target.observed_data().items()}
    shown = [
        f"{name} ({' × '.join(map(str, shape)) or 'scalar'})" for name, shape in list(observed.items())[:_MOST_DATA]
    ]
    more = len(observed) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _family(posterior: Posterior) -> str:
    family = posterior.booster.family
    if not isinstance(family, LocationScale):
        return _class_words(family)
    noise = next((name for name, law in NOISES.items() if type(law) is type(family.noise)), type(family.noise).__name__)
    scale = next((name for name, law in SCALES.items() if type(law) is type(family.scale)), "")
    return f"{noise.replace('_', '-')} laws with {_SCALE_WORDS.get(scale, type(family.scale).__name__)} covariance"


def _class_words(family: AbstractFamily) -> str:
    return type(family).__name__


def _coordinates(posterior: Posterior) -> str:
    kind = posterior.booster.preconditioner.kind
    return "the model's own, shifted to the start" if kind == "none" else f"whitened, found by the fit ({kind})"


def _evaluations(posterior: Posterior) -> str:
    parts = ", ".join(f"{purpose} {number:,}" for purpose, number in posterior.evaluations.items())
    return f"{posterior.num_evaluations:,}" + (f" ({parts})" if parts else "")


def _settings_in_code(posterior: Posterior) -> str:
    family = posterior.booster.family
    names = [f"{s}_{n}" for s, scale in SCALES.items() for n, noise in NOISES.items() if _is(family, noise, scale)]
    chosen = f', family="{names[0]}"' if names else ""
    limited = posterior.stop.limit == "components"
    return chosen + (f", max_components={posterior.num_components}" if limited else "")


def _is(family: AbstractFamily, noise, scale) -> bool:
    if not isinstance(family, LocationScale):
        return False
    return type(family.noise) is type(noise) and type(family.scale) is type(scale)


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""What a user may pass where a target is wanted."""

import sys
from typing import Any

from relbo.runtime.require import is_loaded_instance
from relbo.targets.base import AbstractTarget
from relbo.targets.pymc.target import from_pymc


def as_target(model: Any) -> AbstractTarget:
    """A target as it is, and a PyMC model as its target; None stands for the model of `with model:` around it.

    pymc is not imported to find out.
    """
    if isinstance(model, AbstractTarget):
        return model
    if model is None:
        model = _open_model(sys.modules.get("pymc"))
    if is_loaded_instance(model, "pymc", "Model"):
        return from_pymc(model)
    raise ValueError(
        f"target must be a relbo target or a PyMC model, got {type(model).__name__}. Make one with "
        "relbo.from_numpyro(model, *args), relbo.from_stan(program, data), relbo.from_log_density(f, example) or "
        "relbo.from_callable(f, dim)."
    )


def _open_model(pymc: Any) -> Any:
    try:
        return pymc.modelcontext(None)
    except (AttributeError, TypeError) as error:  # without PyMC, or without a model
        raise ValueError(
            "there is no target to fit: pass one, or a PyMC model, or write `with model: relbo.fit()`."
        ) from error

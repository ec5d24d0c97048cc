"""Optional packages: imported where they are used, with an error that names the install line."""

import importlib
from types import ModuleType


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, which the optional extra `extra` of relbo installs.

    Only the plain absence of the package becomes advice. A package that is there but broken (one of its own imports is
    missing, or a submodule is) raises its own error unchanged, since installing the extra again would not mend it.

    Example:
        >>> require("json", extra="numpyro").dumps([1])
        '[1]'
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f'{package} is needed here and is not installed. Install it with: pip install "relbo[{extra}]"'
        raise ImportError(message, name=package) from error

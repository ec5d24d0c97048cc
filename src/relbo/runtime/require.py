"""Optional packages: imported where they are used, with an error that names the install line."""

import importlib
import importlib.util
import pathlib
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
        raise _missing(package, extra) from error


def locate(package: str, *, extra: str) -> pathlib.Path:
    """The folder of an installed package that is used for its files and never imported.

    Example:
        >>> locate("json", extra="stan").name
        'json'
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(package, extra)
    return pathlib.Path(spec.submodule_search_locations[0])


def _missing(package: str, extra: str) -> ImportError:
    message = f'{package} is needed here and is not installed. Install it with: pip install "relbo[{extra}]"'
    return ImportError(message, name=package)

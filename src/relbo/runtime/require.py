"""Optional packages: imported where they are used, with an error that names the install line."""

import importlib
import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any


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


def is_loaded_instance(value: Any, module: str, name: str) -> bool:
    """Whether `value` is of the class `name` of `module`, which is not imported to find out: what made it, did so.

    >>> is_loaded_instance(pathlib.Path("a"), "pathlib", "Path"), is_loaded_instance(1, "no_such_module", "Path")
    (True, False)
    """
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


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

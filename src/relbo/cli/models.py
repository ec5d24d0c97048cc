"""Models from files: a Python file is executed, a Stan program is compiled, and either becomes a target."""

import abc
import importlib.util
import inspect
import pathlib
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import relbo
from relbo.cli.mapping import Input
from relbo.cli.session import MODULE_PREFIX, UsageError
from relbo.runtime.choices import did_you_mean
from relbo.runtime.require import is_loaded_instance
from relbo.targets import AbstractTarget
from relbo.targets.pymc.data import replace_data
from relbo.targets.stan.build import inputs_of

KINDS = ("numpyro", "pymc", "log-density", "stan", "target")
_PREFERRED = ("model", "target", "log_density")


class Model(abc.ABC):
    """What the commands need of a model. Final classes below, one for every kind."""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """Where it is and what it is."""

    @property
    def first_code(self) -> int:
        """From where the model's language counts, for texts that become numbers."""
        return 0

    @property
    def needs_compiling(self) -> bool:
        """Whether it has to be compiled, which takes its time, before it is a target."""
        return False

    @abc.abstractmethod
    def inputs(self) -> list[Input]:
        """The data that it can be given."""

    @abc.abstractmethod
    def target(self, values: dict[str, Any]) -> Any:
        """The target, with these data."""

    def new_arguments(self, values: dict[str, Any], observed: set[str]) -> tuple[list[Any], dict[str, Any]]:
        """What `relbo.predict` takes for new data. What was `observed` is drawn, and not among them."""
        raise UsageError(f"{self.title}, cannot be given new data here: only NumPyro models and pm.Data can.")


def load_model(text: str, kind: str | None = None) -> Model:
    """The model in `FILE` or `FILE:NAME`. A Python file is executed to get it.

    Raises:
        UsageError: for a file that is not there, or a name that is not in it.
        ValueError: for a file that fails, with its line.
    """
    path, name = _split(text)
    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if not path.is_file():
        raise UsageError(f"there is no model file {path}.")
    if path.suffix == ".stan":
        return StanProgram(path)
    if path.suffix != ".py":
        raise UsageError(f"a model is a .py or a .stan file, got {path}.")
    module = _execute(path)
    chosen = name or _choose(module, path)
    if not hasattr(module, chosen):
        known = _candidates(module)
        raise UsageError(
            f"{path} has no {chosen!r}. {did_you_mean(chosen, known)}It has {', '.join(known) or 'nothing'}."
        )
    return _recognise(getattr(module, chosen), module, f"{path}:{chosen}", kind)


@dataclass(frozen=True)
class NumPyroModel(Model):
    function: Any
    where: str

    @property
    def title(self) -> str:
        return f"{self.where}, a NumPyro model"

    def inputs(self) -> list[Input]:
        return _inputs(self.function)

    def target(self, values: dict[str, Any]) -> Any:
        args, kwargs = _split_values(self.function, values)
        return relbo.from_numpyro(self.function, *args, **kwargs)

    def new_arguments(self, values: dict[str, Any], observed: set[str]) -> tuple[list[Any], dict[str, Any]]:
        return _split_values(self.function, values | dict.fromkeys(observed))


@dataclass(frozen=True)
class LogDensity(Model):
    """`log_density(params, ...)`, with `example` beside it, and `supports` and `init` if there are any."""

    function: Any
    module: ModuleType
    where: str

    @property
    def title(self) -> str:
        return f"{self.where}, a log density"

    def inputs(self) -> list[Input]:
        return _inputs(self.function)[1:]

    def target(self, values: dict[str, Any]) -> Any:
        example = self.module.example
        if callable(example):
            example = example(**{each.name: values[each.name] for each in _inputs(example) if each.name in values})
        inputs = self.inputs()
        num = max((number for number, each in enumerate(inputs, start=1) if each.name in values), default=0)
        args = tuple(values.get(each.name, each.default) for each in inputs[:num])
        more = {name: getattr(self.module, name) for name in ("supports", "init") if hasattr(self.module, name)}
        return relbo.from_log_density(self.function, example, args=args, **more)


@dataclass(frozen=True)
class PyMCModel(Model):
    """A model that exists already: data go to its `pm.Data`."""

    model: Any
    where: str

    @property
    def title(self) -> str:
        return f"{self.where}, a PyMC model"

    def inputs(self) -> list[Input]:
        return [Input(variable.name, required=False, ndim=variable.ndim) for variable in self.model.data_vars]

    def target(self, values: dict[str, Any]) -> Any:
        replace_data(self.model, values, None)
        return relbo.from_pymc(self.model)

    def new_arguments(self, values: dict[str, Any], observed: set[str]) -> tuple[list[Any], dict[str, Any]]:
        return [], values


@dataclass(frozen=True)
class PyMCFunction(Model):
    """A function of the data that returns a PyMC model."""

    function: Any
    where: str

    @property
    def title(self) -> str:
        return f"{self.where}, a function that makes a PyMC model"

    def inputs(self) -> list[Input]:
        return _inputs(self.function)

    def target(self, values: dict[str, Any]) -> Any:
        args, kwargs = _split_values(self.function, values)
        return relbo.from_pymc(self.function(*args, **kwargs))


@dataclass(frozen=True)
class StanProgram(Model):
    path: pathlib.Path

    @property
    def first_code(self) -> int:
        return 1

    @property
    def needs_compiling(self) -> bool:
        return True

    @property
    def title(self) -> str:
        return f"{self.path}, a Stan program"

    def inputs(self) -> list[Input]:
        found = inputs_of(self.path.read_text(), self.path.parent)
        return [Input(name, required=True, ndim=int(about["dimensions"])) for name, about in found.items()]

    def target(self, values: dict[str, Any]) -> Any:
        return relbo.from_stan(str(self.path), values)


@dataclass(frozen=True)
class ReadyTarget(Model):
    """A target that the file made itself, with its data."""

    made: Any
    where: str

    @property
    def title(self) -> str:
        return f"{self.where}, a target"

    def inputs(self) -> list[Input]:
        return []

    def target(self, values: dict[str, Any]) -> Any:
        return self.made


def _split_values(function: Any, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Values as positional arguments as far as they go, the others by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for number, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if name not in values:
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY and len(args) == number:
            args.append(values[name])
        else:
            kwargs[name] = values[name]
    return args, kwargs


def _split(text: str) -> tuple[pathlib.Path, str | None]:
    head, colon, name = text.rpartition(":")
    return (pathlib.Path(head), name) if colon and head and name.isidentifier() else (pathlib.Path(text), None)


def _execute(path: pathlib.Path) -> ModuleType:
    name = f"{MODULE_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be read as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path}{_line(error, path)} fails: {type(error).__name__}: {error}") from error
    return module


def _line(error: Exception, path: pathlib.Path) -> str:
    """Where in the model's own file it went wrong."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno},"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if pathlib.Path(frame.filename).resolve() == path.resolve()]
    return f", line {lines[-1]}," if lines else ""


def _choose(module: ModuleType, path: pathlib.Path) -> str:
    known = _candidates(module)
    preferred = [name for name in _PREFERRED if name in known]
    ready = [name for name in known if not inspect.isfunction(getattr(module, name))]
    for names in (preferred[:1], ready, known):
        if len(names) == 1:
            return names[0]
    if not known:
        raise UsageError(f"{path} defines no model: neither a function, nor a PyMC model, nor a relbo target.")
    raise UsageError(f"{path} defines {', '.join(known)}: say which is the model, as in {path}:{known[0]}.")


def _candidates(module: ModuleType) -> list[str]:
    """What may be a model: functions of this file, and PyMC models and targets that it made."""

    def may_be(value: Any) -> bool:
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        return own or _is_pymc(value) or _is_target(value)

    return [name for name, value in vars(module).items() if not name.startswith("_") and may_be(value)]


def _recognise(found: Any, module: ModuleType, where: str, kind: str | None) -> Model:
    if _is_target(found):
        return ReadyTarget(found, where)
    if _is_pymc(found):
        return PyMCModel(found, where)
    if not callable(found):
        raise UsageError(
            f"{where} is {type(found).__name__}, and a model is a function, a PyMC model or a relbo target."
        )
    kind = kind or _kind_of(module)
    if kind == "log-density":
        if not hasattr(module, "example"):
            raise UsageError(
                f"{where} is taken for a log density, and needs a point to begin with beside it, such as "
                'example = {"mu": 0.0, "sigma": 1.0}, which says the names and shapes of its parameters.'
            )
        return LogDensity(found, module, where)
    if kind == "pymc":
        return PyMCFunction(found, where)
    return NumPyroModel(found, where)


def _kind_of(module: ModuleType) -> str:
    """By what stands beside a function: an example makes it a log density, else what the file imports decides."""
    if hasattr(module, "example"):
        return "log-density"
    packages = {_package(value) for value in vars(module).values()}
    if "numpyro" in packages:
        return "numpyro"
    return "pymc" if "pymc" in packages else "log-density"


def _package(value: Any) -> str:
    name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "") or ""
    return str(name).partition(".")[0]


def _is_pymc(value: Any) -> bool:
    return is_loaded_instance(value, "pymc", "Model")


def _is_target(value: Any) -> bool:
    return isinstance(value, AbstractTarget)


def _inputs(function: Any) -> list[Input]:
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        Input(name, required=parameter.default is parameter.empty, default=parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named
    ]

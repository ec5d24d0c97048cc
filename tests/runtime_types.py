"""Types and shapes are checked at run time, in every test: beartype, read as a static checker would read annotations.

jaxtyping's own import hook gives every function its bookkeeping of sizes, which costs ten times as much as beartype
alone. Here those functions have it whose annotations name a size; the others need beartype, or nothing.
"""

import ast
import dataclasses
import inspect
import sys
import typing
from importlib.machinery import PathFinder, SourceFileLoader
from typing import Any, Self

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, PyTree, jaxtyped

_LIKE_MYPY = BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
"""An int will do where a float is asked for, and what is wrong is as jaxtyping says it."""


def check_types_of(package: str) -> None:
    """Of all that is imported from it afterwards."""
    sys.meta_path.insert(0, _Finder(package))


def checked(thing):
    """A function with its annotations checked at every call, or a dataclass with its fields checked when it is made."""
    if not inspect.isclass(thing):
        return _checked_function(thing)
    if dataclasses.is_dataclass(thing) and not hasattr(thing.__init__, "is_checked"):
        thing.__init__ = _checked_function(thing.__init__)
    return thing


def _checked_function(function):
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:  # what is imported for static checkers alone
        names_sizes = True  # jaxtyping reads what it can
    else:
        names_sizes = any(map(_names_sizes, hints.values()))
    if names_sizes or inspect.isgeneratorfunction(function):
        wrapped = jaxtyped(function, typechecker=_beartype)
    else:
        wrapped = _beartype(function, hints)
    wrapped.is_checked = True
    return wrapped


def _beartype(function, hints: dict | None = None):
    """Where methods are decorated one by one, beartype refuses `Self`: it is read as `Any`."""
    hints = getattr(function, "__annotations__", {}) if hints is None else hints
    function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return beartype(conf=_LIKE_MYPY)(function)


def _names_sizes(hint) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return bool(hint.dims)
    return isinstance(hint, type(PyTree)) or any(map(_names_sizes, typing.get_args(hint)))


# The import hook: all functions and classes of a module are decorated, before it is compiled.


class _Finder:
    def __init__(self, package: str):
        self.package = package

    def find_spec(self, name: str, path=None, target=None):
        if name.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str):
        """Compiled anew: the cache beside the source is for code that is as it was written."""
        path = self.get_filename(fullname)
        tree = _Decorating().visit(ast.parse(self.get_data(path), path))
        begin = next(index for index, node in enumerate([*tree.body, None]) if not _is_at_the_head(node))
        tree.body.insert(begin, ast.parse("from runtime_types import checked as __checked__").body[0])
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _is_at_the_head(node) -> bool:
    """What must come first in a module: its docstring, and imports from the future."""
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


class _Decorating(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef):
        """First of all decorators, for they may hide annotations, or return what is no function."""
        self.generic_visit(node)
        every = node.args
        args = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        if node.returns is not None or any(arg is not None and arg.annotation is not None for arg in args):
            node.decorator_list.append(_named_at(node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef):
        """Last of all, when `dataclass` has made its `__init__`."""
        self.generic_visit(node)
        node.decorator_list.insert(0, _named_at(node))
        return node


def _named_at(node) -> ast.Name:
    return ast.copy_location(ast.Name("__checked__", ast.Load()), node)

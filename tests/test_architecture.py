"""The shape of the code: what is public, and which room may know which."""

import ast
import dataclasses
import graphlib
import importlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from jaxtyping import Float

import relbo
from runtime_types import checked

ROOT = pathlib.Path(relbo.__file__).parent
EXPERIMENTS = pathlib.Path(__file__).parents[1] / "experiments"

ROOMS = [
    "runtime", "distributed", "records", "targets", "families", "budgets", "mixture", "model", "objectives", "ascent",
    "oracles", "coordinates", "steps", "boosting", "settings", "posterior", "diagnostics", "storage", "comparison",
    "views", "loop", "calibration", "plots", "reporting", "cli", "__main__",
]  # fmt: skip
"""From the ground up: a room imports only from itself and from rooms before it."""


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports_of(path: pathlib.Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relbo."):
            yield node.module
        elif isinstance(node, ast.ImportFrom) and node.module == "relbo":
            yield from (f"relbo.{alias.name}" for alias in node.names)


def test_every_room_is_listed():
    found = {path.stem if path.is_file() else path.name for path in ROOT.iterdir() if path.suffix in ("", ".py")}
    assert found - {"__init__", "__pycache__"} == set(ROOMS)


def test_imports_point_to_earlier_rooms():
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts == ("__init__",):
            continue
        own = ROOMS.index(parts[0])
        for module in imports_of(path):
            assert ROOMS.index(room_of(module)) <= own, f"{'.'.join(parts)} imports {module}"


def test_no_two_modules_import_each_other():
    """Within a room, too. What only a type checker reads does not count."""
    parts = {path: ("relbo", *path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    names = {path: ".".join(part).removesuffix(".__init__") for path, part in parts.items()}
    arrows = {}
    for path, name in names.items():
        nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        pairs = [(node.module, f"{node.module}.{alias.name}") for node in nodes for alias in node.names]
        arrows[name] = {whole if whole in names.values() else module for module, whole in pairs}
    graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError, which names the modules


def test_the_tree_of_tests_mirrors_the_rooms():
    """And has three folders more, for what stands beside the library."""
    tests = pathlib.Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        room, beside = path.parent.name, ("documents", "experiments", "benchmarks")
        if path.parent == tests:
            assert path.stem in ("test_architecture", *(f"test_{room}" for room in ROOMS)), f"{path} belongs to a room"
        else:
            assert room in (*ROOMS, *beside), f"{path}: src/relbo has no room {room!r}"


def test_public_names():
    names = """
        Adaptive Agreement Away Booster Calibration Diagnosis Estimate FiniteStep Fits Fixed FullyCorrective GapBelow
        GradientOracle JointOracle LaplaceOracle LineSearch MaxComponents MaxEvaluations MaxIterations MaxSeconds
        NaturalOracle Near NormCorrective Pairwise Posterior Preconditioner RELBO Record Stalled Starts State Stop
        calibrate compare diagnose distributed enable_compile_cache families fit fit_many from_callable from_log_density
        from_numpyro from_pymc from_rows from_stan load local_rows make_booster objectives oracles paper plots predict
        preset report resample save steps to_arviz
    """
    assert sorted(relbo.__all__) == sorted(names.split())
    assert all(hasattr(relbo, name) for name in relbo.__all__)


def test_public_names_have_one_home():
    """What a type checker reads, what is imported on demand, and what is listed are the same names."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    read = {alias.name: node.module for node in typed.body for alias in node.names}
    assert sorted(read) == sorted(relbo.__all__) and set(relbo.__all__) <= set(dir(relbo))
    assert {name: f"relbo.{module}" for name, module in relbo._MODULE_OF.items()} == {
        name: module for name, module in read.items() if module != "relbo"
    }
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        relbo.fitt  # noqa: B018


def test_files_and_functions_stay_small():
    for path in (*ROOT.rglob("*.py"), *EXPERIMENTS.glob("*.py")):
        text = path.read_text()
        assert text.count("\n") <= (350 if ROOT in path.parents else 400), path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                assert not body or node.end_lineno - body[0].lineno < 60, f"{path}:{node.name}"


def test_signatures_stay_short():
    """What needs more than six arguments groups them, or takes them by name."""
    for path, node in functions():
        args = node.args.posonlyargs + node.args.args
        args = args[1:] if args and args[0].arg in ("self", "cls") else args
        assert len(args) <= 6, f"{path}:{node.name} takes {len(args)} arguments by position"


def test_imports_inside_functions_are_of_optional_packages():
    """Or of a module of ours that imports such a package itself. (`fcntl` is not there on Windows.)"""
    extras = {"numpyro", "IPython", "matplotlib", "jinja2", "markupsafe", "fcntl"}
    for path, function in functions():
        for node in ast.walk(function):
            named = [node.module] if isinstance(node, ast.ImportFrom) else []
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else named
            for module in named:
                if module.startswith("relbo."):
                    module = heads(ast.parse(ROOT.parent.joinpath(*module.split(".")).with_suffix(".py").read_text()))
                    assert extras & module, f"{path}:{function.name} could import at its head"
                else:
                    assert module.partition(".")[0] in extras, f"{path}:{function.name} imports {module}"


def heads(tree: ast.Module) -> set[str]:
    """The packages that a module imports at its head."""
    plain = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    return {name.partition(".")[0] for name in plain | {node.module for node in tree.body if hasattr(node, "module")}}


def functions():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(ROOT), node


def test_few_questions_what_something_is():
    """Capabilities are methods and properties; `isinstance` is for what users give, at the boundary."""
    texts = [path.read_text() for path in ROOT.rglob("*.py")]
    calls = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    asked = sum(ast.unparse(call.func) == "isinstance" for call in calls)
    assert asked <= 5e-3 * sum(text.count("\n") for text in texts), asked


def test_every_number_that_decides_something_says_why():
    """A constant of a module has a comment on its line, or a sentence below it (those of several end a group)."""
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        lines, body = text.splitlines(), ast.parse(text).body
        for node, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.Assign) and is_number(node):
                said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                commented = "#" in lines[node.end_lineno - 1] or "#" in lines[node.lineno - 2]
                assert said or commented, f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"


def is_number(node: ast.Assign) -> bool:
    """Whether it names a number in capitals, or several."""
    names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    values = [type(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
    return all(name.isupper() for name in names) and bool(values) and set(values) <= {int, float}


def test_what_a_posterior_holds_has_a_type():
    """`Any` would hide an arrow that points up the list of rooms."""
    for cls in (relbo.Posterior, relbo.State, relbo.Record, relbo.Stop):
        hidden = [field.name for field in dataclasses.fields(cls) if "Any" in str(field.type)]
        assert not hidden, f"{cls.__name__}: {hidden}"


def test_the_root_holds_little():
    assert len(list(ROOT.glob("*.py"))) <= 5


def test_types_and_sizes_are_checked_in_every_test():
    """Of fields, of arguments among each other, and of what is returned (see `runtime_types.py`)."""

    @checked
    def but_the_last(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"], num: int = 1) -> Float[np.ndarray, "n"]:
        return (x * y)[: len(x) - num]

    assert but_the_last(np.ones(3), np.ones(3), num=0).shape == (3,)
    for wrong in ((np.ones(3), np.ones(2), 0), (np.ones(3), np.ones(3), 1), (np.ones(3), np.ones(3), "a")):
        with pytest.raises(TypeError):
            but_the_last(*wrong)
    with pytest.raises(TypeError, match="value"):
        relbo.Estimate("a", 2.0, 3)
    assert all(hasattr(each, "is_checked") for each in (relbo.fit, relbo.Booster.step, relbo.Estimate.__init__))


def test_import_is_light():
    """Importing relbo imports nothing heavy; using it neither imports the extras nor starts a JAX backend."""
    code = (
        "import sys, relbo;"
        "assert not {'jax', 'equinox', 'optax', 'numpy', 'rich'} & set(sys.modules);"
        "[getattr(relbo, name) for name in relbo.__all__];"
        "extras = {'numpyro', 'pymc', 'pytensor', 'httpstan', 'arviz', 'matplotlib', 'sklearn', 'scipy.stats'};"
        "extras |= {'typer', 'IPython'};"
        "heavy = extras & set(sys.modules);"
        "assert not heavy, heavy"
    )
    no_such_platform = os.environ | {"JAX_PLATFORMS": "no_such_platform"}  # any use of a backend would fail
    subprocess.run([sys.executable, "-c", code], check=True, env=no_such_platform)


def modules_with_examples() -> list[str]:
    paths = [path.relative_to(ROOT.parent) for path in ROOT.rglob("*.py") if ">>>" in path.read_text()]
    return sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_run(name):
    import doctest

    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_the_documents_say_what_a_user_trips_over():
    root = pathlib.Path(__file__).parents[1]
    readme, doors = (root / "README.md").read_text(), (root / "docs" / "frontends.md").read_text()
    assert "args=(data,)" in readme and "args=data" not in readme
    assert all("jax_enable_x64" in text for text in (readme, doors))
    assert "JSON" in doors and "theta[1]" in doors

"""README and documentation do what they say: every block of code runs, and nothing public is left out."""

import ast
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import jax
import matplotlib
import pytest

import relbo
from document_blocks import ROOT, Block, blocks_of, indented_of, pages

MOST_COMPONENTS = 2
MOST_SIMULATIONS = 4
"""That a block runs is tested here, with fits stopped early; `make docs` lets them end, and shows the answers."""
SHELL_SECONDS = 600
SWITCHES = (
    "jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)  # fmt: skip
"""What a page may tell a reader to switch, for a whole program: put back after each block."""


@pytest.fixture
def cheap(monkeypatch, tmp_path):
    """An empty folder, no windows, and fits that end after a few components."""
    fit, calibrate = relbo.fit, relbo.calibrate

    @functools.wraps(fit)
    def fit_few(*args, max_components=32, start=None, **settings):
        most = MOST_COMPONENTS if start is None else start.num_components + 1
        return fit(*args, max_components=min(max_components, most), start=start, **settings)

    @functools.wraps(calibrate)
    def calibrate_few(*args, num_simulations=100, **settings):
        few = {"num_simulations": min(num_simulations, MOST_SIMULATIONS), "num_processes": 1}
        return calibrate(*args, **settings | few)

    monkeypatch.setattr(relbo, "fit", fit_few)
    monkeypatch.setattr(relbo, "calibrate", calibrate_few)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    return tmp_path


def pages_with_code():
    """Pages that `make docs` executes, and lets end, are for `make test-all` here; but not what others build upon."""
    for page in pages():
        text = (ROOT / page).read_text()
        if blocks_of(text):
            slow = "\nfile_format: mystnb\n" in text and page != "docs/tutorials/extending.md"
            yield pytest.param(page, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("page", list(pages_with_code()))
def test_every_block_runs(page, cheap):
    namespace = {"__name__": "__main__"}
    for block in blocks_of((ROOT / page).read_text()):
        if block.not_run is None:
            run(block, namespace, page, cheap)


def run(block: Block, namespace: dict, page: str, folder: pathlib.Path) -> None:
    if block.language == "sh":
        subprocess.run(["bash", "-ec", block.code], cwd=folder, env=_environment(), timeout=SHELL_SECONDS, check=True)
        return
    before = {name: getattr(jax.config, name) for name in SWITCHES}
    try:
        exec(compile("\n" * block.line + block.code, str(ROOT / page), "exec"), namespace)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def _environment() -> dict[str, str]:
    """With the commands that are installed beside Python."""
    return os.environ | {"PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])}


@pytest.mark.parametrize("page", pages())
def test_code_can_be_told_from_output(page):
    """Code that is not marked as code would never be run, and a reason is a reason."""
    text = (ROOT / page).read_text()
    for content in indented_of(text):
        assert not re.search(r"^\s*(import \w|from \w+ import|\w+ = relbo\.|relbo\.\w+\()", content, re.MULTILINE), (
            content
        )
    for block in blocks_of(text):
        assert block.not_run is None or len(block.not_run) > 10, f"{page}: why is the block not run?"
        if block.language == "python":
            ast.parse(block.code, filename=page)


def test_links_between_pages_lead_somewhere():
    for page in pages():
        path = ROOT / page
        for target in re.findall(r"\]\((?!https?:|#|/)([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_the_picture_is_small():
    assert 10_000 < (ROOT / "docs" / "_static" / "two_masts.png").stat().st_size < 150_000


def load_extension(name: str):
    """A Sphinx extension of the site; skipped where Sphinx is not installed (extra `docs`)."""
    pytest.importorskip("sphinx", reason="the extra docs builds the site")
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_shows_the_peers_where_they_were_measured(tmp_path):
    peers, docs, benchmarks = load_extension("peers"), tmp_path / "docs", tmp_path / "benchmarks"
    docs.mkdir()
    peers.make_pages(docs)
    assert "make peers" in (docs / "_generated" / "peers_summary.md").read_text()
    (benchmarks / "results").mkdir(parents=True)
    (benchmarks / "results" / "peers.png").write_bytes(b"drawn")
    page = (
        "# relbo and its peers\n\n- **Accuracy.** So.\n\n![Errors](results/peers.png)\n\n## Model by model\n\ntable\n"
    )
    (benchmarks / "PEERS.md").write_text(page)
    peers.make_pages(docs)
    summary = (docs / "_generated" / "peers_summary.md").read_text()
    assert summary == "- **Accuracy.** So.\n\n![Errors](/_generated/peers.png)\n"
    assert "![Errors](peers.png)" in (docs / "_generated" / "peers.md").read_text()
    assert (docs / "_generated" / "peers.png").read_bytes() == b"drawn"


def test_docstrings_become_restructured_text():
    to_rst = load_extension("docstrings").to_rst
    assert to_rst("A `b` of $c$ and |d|:\n- e") == "A ``b`` of :math:`c` and \\|d\\|:\n\n- e"
    assert to_rst("    $$|x| = 1$$") == "    .. math::\n\n        \\vert x\\vert  = 1\n"
    assert to_rst(">>> a | b") == ">>> a | b"


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in relbo.__all__ if not re.search(rf"\brelbo\.{name}\b", text)]
    assert not missing


def test_every_public_name_is_documented():
    for name in relbo.__all__:
        thing = getattr(relbo, name)
        assert (thing.__doc__ or "").strip(), name


def test_every_page_is_in_a_table_of_contents():
    docs = ROOT / "docs"
    listed = set()
    for page in pages():
        for toctree in re.findall(r"^```\{toctree\}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
            listed |= {line.strip() for line in toctree.splitlines() if line.strip() and not line.startswith(":")}
    written = {
        path.relative_to(docs).with_suffix("").as_posix()
        for path in map(ROOT.joinpath, pages())
        if docs in path.parents
    }
    assert written - {"index"} <= listed
    assert listed <= written | {"_generated/peers"}

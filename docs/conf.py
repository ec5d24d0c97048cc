"""The documentation site: `make docs` builds it with warnings as errors into docs/_build, tutorials executed."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT / "src")]

import relbo  # noqa: E402

project = "relbo"
author = "The relbo developers"
copyright = "2026, the relbo developers"
version = release = relbo.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "docstrings",
    "mathml",
    "peers",
]
exclude_patterns = ["_build", "_ext", "_generated/peers_summary.md"]

# Text
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# Code that is run. Kernels inherit the environment: programs are compiled once for all pages, and for later builds.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "jupyter_cache")
nb_execution_timeout = 1800
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_in_temp = True
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(HERE / "_build" / "xla_cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
# ArviZ warns of its own next version and of what its table says as well, tqdm of a kernel without widgets: all of them
# with paths of the machine that builds.
_SILENT = (":FutureWarning", "Estimated shape parameter of Pareto", "IProgress not found")
os.environ["PYTHONWARNINGS"] = ",".join(f"ignore:{each}" for each in _SILENT)

# The reference
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False

# The looks
html_theme = "furo"
html_title = "relbo"
html_static_path = ["_static"]
html_css_files = ["relbo.css"]
html_js_files = ["relbo.js"]
html_theme_options = {"top_of_page_buttons": []}
html_show_sphinx = False
pygments_style, pygments_dark_style = "default", "github-dark"

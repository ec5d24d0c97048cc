"""Which tests one process runs, because they share fits and the programs compiled for them."""

import pathlib

_TOGETHER = {
    "two modes": ("test_fit", "test_diagnostics"),
    "flows": ("test_flow", "test_learned_fits"),
    "faults": (
        "test_checkpoints", "test_interruptions", "test_broken_models", "test_killed", "test_foreign_files",
        "test_progress", "test_cli_inside",
    ),
    "stan": ("test_stan", "test_stan_building", "test_doors", "test_examples", "test_wrong_use"),  # one at a time
}  # fmt: skip
_GROUPS = {module: group for group, modules in _TOGETHER.items() for module in modules}
_SHARE_NOTHING = ("test_families", "test_steps", "test_targets", "test_targets_bad_input", "test_objectives")
"""Modules whose tests compile programs of their own: any process may run any of them."""

_QUICK = {
    "chemreact": "regressions", "icu": "regressions", "wine": "regressions",
    "figure1": "quick modes", "theory": "quick modes",
}  # fmt: skip
"""Quick experiments on one data set, or on targets of one shape, and so with the same programs."""

LONGEST = (
    "regressions", "quick systems", "stan", "test_documents", "test_two_processes", "test_pymc", "flows",
    "test_cli_together", "faults", "two modes", "test_rows", "test_compiling", "test_many", "test_storage",
    "test_calibration", "test_ascent", "test_cli", "test_numpyro", "test_door", "test_coverage", "quick modes",
    "test_memory", "test_comparison",
)  # fmt: skip
"""In this order, before all others."""


def group_of(nodeid: str) -> str:
    """The group of a test: that of its module, or the test alone."""
    module = pathlib.PurePath(nodeid.partition("::")[0]).stem
    if module == "test_quick_experiments":
        name = nodeid.partition("[")[2].removesuffix("]")
        return _QUICK.get(name, f"quick {name}")
    if module == "test_documents" and "stan" in nodeid:
        return "stan"
    return nodeid if module in _SHARE_NOTHING else _GROUPS.get(module, module)

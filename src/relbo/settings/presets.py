"""Earlier systems as settings of our own parts, under the names of their papers.

What they share is what they are compared by: no whitening, no refinement, every component kept, no stopping rule but
the number of components, and 1,000 gradient steps of 16 draws for a component where there are gradient steps. What
distinguishes them is their oracle, their family and their step rule.
"""

from collections.abc import Callable
from typing import Any

from relbo.families import AbstractFamily, Cholesky, LocationScale, LowRank, Normal, TruncatedNormal
from relbo.objectives import RELBO
from relbo.oracles import GradientOracle, JointOracle, LaplaceOracle, Starts
from relbo.runtime.choices import choose_name
from relbo.settings.names import paper

_NUM_STEPS, _NUM_DRAWS = 1000, 16  # as in the paper's own settings: systems are compared at one cost
_SHARED = ("estimator", "refine", "precondition", "min_improvement", "stop", "max_components")
_PLAIN: dict[str, Any] = {name: paper()[name] for name in _SHARED}


def preset(name: str, *, family: str | AbstractFamily | None = None) -> dict[str, Any]:
    """The settings of an earlier system, to pass to `fit`: `relbo.fit(target, **relbo.preset("guo2016"))`.

    - "guo2016": Guo, Wang, Fan, Broderick, Dunson. Full-covariance normals at modes of the residual log p - log q, with
      the curvature there; weight by line search.
    - "miller2016": Miller, Foti, Adams. Low-rank normals; the mixture's ELBO jointly in the new component and its
      weight, from the best of 24 draws by importance.
    - "locatello2018_fixed", "locatello2018_norm_corrective": Locatello, Khanna, Ghosh, Rätsch (AISTATS). Mean-field
      normals truncated to one box; the linear problem with its entropy constraint as a penalty with multiplier one;
      step 2/(t+2), or all weights by projecting a gradient step in L2.
    - "dresdner2021": Dresdner, Shekhar, Pedregosa, Locatello, Rätsch. The settings of `relbo.paper` with a step size
      that adapts to the curvature met.

    `family` replaces the family that the paper used. The variants of the paper itself are those of `relbo.paper`.
    """
    choose_name("preset", name, tuple(PRESETS))
    settings = PRESETS[name]()
    return settings if family is None else settings | {"family": family}


def _guo() -> dict[str, Any]:
    oracle = LaplaceOracle(starts=Starts(num_residual=24, num_modes=0, num_initial=8))
    return {"family": LocationScale(Normal(), Cholesky()), "oracle": oracle, "step": "line_search", **_PLAIN}


def _miller() -> dict[str, Any]:
    starts = Starts(num_residual=24, num_modes=0, num_initial=0)
    oracle = JointOracle(num_steps=_NUM_STEPS, num_draws=_NUM_DRAWS, num_restarts=1, starts=starts)
    return {"family": LocationScale(Normal(), LowRank(rank=5)), "oracle": oracle, "step": "line_search", **_PLAIN}


def _locatello(step: str) -> dict[str, Any]:
    starts = Starts(num_residual=0, num_modes=0, num_initial=0, num_random=1)
    return {
        "family": TruncatedNormal(),
        "objective": RELBO(1.0),
        "oracle": GradientOracle(num_steps=_NUM_STEPS, num_draws=_NUM_DRAWS, num_restarts=1, starts=starts),
        "step": step,
        **_PLAIN,
    }


PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "guo2016": _guo,
    "miller2016": _miller,
    "locatello2018_fixed": lambda: _locatello("fixed"),
    "locatello2018_norm_corrective": lambda: _locatello("norm_corrective"),
    "dresdner2021": lambda: paper("line_search") | {"step": "adaptive"},
}

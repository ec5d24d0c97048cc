"""The numbers behind the charts, small enough for a page."""

from typing import Any

import numpy as np

from relbo.budgets import MOST_COMPONENTS
from relbo.diagnostics import Diagnosis
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.records.trace import Record
from relbo.reporting.encoding import packed, packed_bytes
from relbo.views.densities import component_densities, grid_of
from relbo.views.palette import COLOURS, DARK_COLOURS, DARK_OTHERS, OTHERS
from relbo.views.ratios import log_ratios
from relbo.views.scalars import Scalars

MOST_PARAMETERS = 200
"""So many can be looked at in the charts, the first ones; the table has more."""
_NUM_POINTS = 96  # a curve that is smooth in a small panel
_MOST_POINTS = 1500  # a cloud that a browser draws at once
_MOST_NUMBERS = 400_000
"""Of draws, and of densities: 2.1 MB each at the most, in base64."""


def chart_data(posterior: Posterior, diagnosis: Diagnosis | None, drawn: Scalars | None) -> dict[str, Any]:
    """Everything that the page's script reads."""
    return {
        "trace": _trace(posterior.trace),
        "logZ": None if diagnosis is None else _pair(diagnosis.log_z),
        "parameters": _parameters(drawn),
        "components": _components(posterior.weights, drawn),
        "ratios": _ratios(posterior, diagnosis),
        "palette": {"light": [*COLOURS, OTHERS], "dark": [*DARK_COLOURS, DARK_OTHERS]},
    }


def _pair(estimate: Estimate | None) -> list[float] | None:
    return None if estimate is None else [float(estimate.value), float(estimate.std_err)]


def _trace(trace: list[Record]) -> dict[str, list[Any]]:
    return {
        "elbo": [_pair(record.elbo) for record in trace],
        "gap": [_pair(record.gap) for record in trace],
        "components": [record.num_components for record in trace],
        "kind": [record.kind for record in trace],
        "accepted": [bool(record.accepted) for record in trace],
        "evaluations": np.cumsum([record.evaluations for record in trace]).tolist(),
        "seconds": np.cumsum([record.seconds for record in trace]).tolist(),
    }


def _parameters(drawn: Scalars | None) -> dict[str, Any]:
    if drawn is None:
        return {"names": [], "numDraws": 0}
    values = drawn.values[:, :MOST_PARAMETERS]
    num = values.shape[1]
    num_draws = max(50, min(_MOST_POINTS, len(values), _MOST_NUMBERS // max(num, 1)))
    shown = _num_shown(drawn)
    shares, weights = _grouped(drawn, shown)
    grids = [grid_of(column, _NUM_POINTS) for column in values.T]
    modes = (drawn.mode_shares, drawn.mode_weights)
    total = [component_densities(each, *modes, grid).sum(axis=0) for each, grid in zip(values.T, grids, strict=True)]
    parts = [component_densities(each, shares, weights, grid) for each, grid in zip(values.T, grids, strict=True)]
    return {
        "names": drawn.names[:MOST_PARAMETERS],
        "numLeftOut": max(0, len(drawn.names) - MOST_PARAMETERS),
        "numDraws": num_draws,
        "numPoints": _NUM_POINTS,
        "ranges": [[grid[0], grid[-1]] for grid in grids],
        "draws": packed(values[:num_draws].T),
        "labels": packed_bytes(np.minimum(drawn.labels[:num_draws], shown)),
        "total": packed(np.array(total)),
        "parts": packed(np.array(parts)),
    }


def _num_shown(drawn: Scalars) -> int:
    """How many components are kept apart; the lighter ones are shown as one."""
    num = max(1, min(drawn.values.shape[1], MOST_PARAMETERS))
    room = _MOST_NUMBERS // (num * _NUM_POINTS) - 2
    return int(np.clip(min(len(drawn.weights), MOST_COMPONENTS), 1, max(room, len(COLOURS))))


def _grouped(drawn: Scalars, shown: int) -> tuple[np.ndarray, np.ndarray]:
    """Responsibilities and weights of the components kept apart, and of all others together if there are any."""
    if shown == len(drawn.weights):
        return drawn.shares, drawn.weights
    rest = drawn.shares[:, shown:].sum(axis=1, keepdims=True)
    return np.hstack([drawn.shares[:, :shown], rest]), np.append(drawn.weights[:shown], drawn.weights[shown:].sum())


def _components(weights: np.ndarray, drawn: Scalars | None) -> list[dict[str, Any]]:
    """By weight: a name, a weight."""
    if drawn is None:
        return []
    shown = _num_shown(drawn)
    own = [{"name": f"Component {k + 1}", "weight": float(weights[k])} for k in range(shown)]
    rest = weights[shown:]
    return [*own, {"name": f"The other {len(rest)}", "weight": float(rest.sum())}] if len(rest) else own


def _ratios(posterior: Posterior, diagnosis: Diagnosis | None) -> dict[str, Any] | None:
    """A histogram of log p - log q - log Z at draws of the mixture."""
    if diagnosis is None:
        return None
    try:
        values = log_ratios(posterior, 2000)
    except ValueError:
        return None
    finite = values[np.isfinite(values)]
    if len(finite) < 50:
        return None
    shifted = finite - (np.logaddexp.reduce(finite) - np.log(len(finite)))
    low = min(-0.01, float(np.quantile(shifted, 0.005)))
    counts, edges = np.histogram(np.maximum(shifted, low), 60, (low, max(0.01, float(shifted.max()))))
    return {"counts": counts.tolist(), "edges": edges.tolist()}

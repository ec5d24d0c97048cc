"""Points through a flow and back, by programs that know nothing of the model: the door's way around its own program is
also that of training."""

from functools import partial
from typing import Any

import numpy as np

from relbo.families.autoregressive import Flow
from relbo.runtime.compiling import compiled


@partial(compiled, runs_often=True)
def way_of(flow, points):
    """The way of points (num, dim) through a flow."""
    return flow.way(points)


@partial(compiled, runs_often=True)
def pulled_back(flow, way, values, slopes, rise):
    """What was seen at the end of a way, by its start: values, with `rise` times the log determinant, and slopes.

    With them the gradient of their sum by the numbers of the flow.
    """
    by_numbers, by_start = flow.pull(way, slopes, rise)
    return values + rise * way.log_dets, by_start, by_numbers


def back_through(flow: Flow, points: Any, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Where points come from through a flow, and its log determinants there, on the host: `block` at a time."""
    points = np.asarray(points)
    parts = [_inverted(flow, part) for part in filled(points, block).reshape(-1, block, points.shape[1])]
    u, log_dets = (
        np.concatenate([np.asarray(part) for part in each])[: len(points)] for each in zip(*parts, strict=True)
    )
    return u, log_dets


@partial(compiled, runs_once=True)
def _inverted(flow, points):
    return flow.inverse(points)


def filled(points: np.ndarray, block: int) -> np.ndarray:
    """Whole blocks of points: the last one is filled up with the first point."""
    return np.concatenate([points, np.repeat(points[:1], -len(points) % block, axis=0)])

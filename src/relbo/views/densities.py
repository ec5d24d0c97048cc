r"""Densities of draws on a grid, part by part of the mixture: a part is a component, or a mode of several.

With $r_k(z_i)$ the responsibility of part $k$ for draw $i$, its marginal density is estimated by
$\sum_i r_k(z_i) K_h(x - x_i)$. Each part gets a bandwidth of its own, by the normal reference rule, which is right for
something with one peak: the sum over modes is sharp at narrow ones and smooth at wide ones, where one bandwidth for all
draws would be wrong for both. The sum over components, each with few draws, is rougher than the sum over modes.
"""

import numpy as np
from scipy.ndimage import gaussian_filter, gaussian_filter1d

_OUTSIDE = 0.002  # so much of the draws, on either side, may lie outside of a picture
_MARGIN = 0.06  # of the range, on each side: a density is seen to end


def grid_of(values: np.ndarray, num: int = 200) -> np.ndarray:
    """Even points over the bulk of the draws, with a margin that never goes beyond what was drawn.

    They are the centres of `num` cells.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        finite = np.array([-1.0, 1.0])
    low, high = np.quantile(finite, [_OUTSIDE, 1 - _OUTSIDE])
    margin = _MARGIN * (high - low)
    low, high = max(low - margin, finite.min()), min(high + margin, finite.max())
    if not high > low:  # a constant
        low, high = low - max(1e-6, 1e-3 * abs(low)), high + max(1e-6, 1e-3 * abs(high))
    step = (high - low) / num
    return low + step * (np.arange(num) + 0.5)


def component_densities(values: np.ndarray, shares: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Weighted densities (num_parts, num_points), which add up to the density of the draws on the grid."""
    finite = np.isfinite(values)
    values, shares = values[finite], shares[finite]
    return np.stack([weight * _smooth(values, share, grid) for share, weight in zip(shares.T, weights, strict=True)])


def _smooth(values: np.ndarray, share: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """One part: a histogram, smoothed. Mass at the edge of the grid is reflected, as of a bounded parameter."""
    total = share.sum()
    if total <= 0:
        return np.zeros_like(grid)
    step = grid[1] - grid[0]
    edges = np.append(grid - step / 2, grid[-1] + step / 2)
    counts = np.histogram(values, edges, weights=share)[0] / (total * step)
    width = _bandwidth(np.clip(values, grid[0], grid[-1]), share / total)
    return gaussian_filter1d(counts, max(width / step, 0.7), mode="reflect", truncate=5.0)


def _bandwidth(values: np.ndarray, share: np.ndarray) -> float:
    spread = np.sqrt(share @ (values - share @ values) ** 2)
    order = np.argsort(values)
    low, high = np.interp([0.25, 0.75], np.cumsum(share[order]), values[order])
    spread = min(spread, (high - low) / 1.35) or spread
    return float(1.06 * spread * np.sum(share**2) ** 0.2)


def plane_densities(
    points: np.ndarray, shares: np.ndarray, weights: np.ndarray, grids: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """The same in two dimensions, for points (num, 2): (num_parts, num_first, num_second)."""
    finite = np.isfinite(points).all(axis=1)
    points, shares = points[finite], shares[finite]
    return np.stack(
        [weight * _smooth_plane(points, share, grids) for share, weight in zip(shares.T, weights, strict=True)]
    )


def _smooth_plane(points: np.ndarray, share: np.ndarray, grids: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    total = share.sum()
    if total <= 0:
        return np.zeros((len(grids[0]), len(grids[1])))
    steps = [grid[1] - grid[0] for grid in grids]
    edges = [np.append(grid - step / 2, grid[-1] + step / 2) for grid, step in zip(grids, steps, strict=True)]
    counts = np.histogramdd(points, edges, weights=share)[0] / (total * steps[0] * steps[1])
    share = share / total
    spread = np.sqrt(share @ (points - share @ points) ** 2)
    widths = spread * np.sum(share**2) ** (1 / 6)
    return gaussian_filter(counts, np.maximum(widths / steps, 0.7), mode="reflect")


def level_of(density: np.ndarray, mass: float) -> float:
    """The height of the contour inside which lies the share `mass` of a density on an even grid."""
    heights = np.sort(density.ravel())[::-1]
    inside = np.cumsum(heights)
    return float(heights[np.searchsorted(inside, mass * inside[-1])]) if inside[-1] > 0 else 0.0

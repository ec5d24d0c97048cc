"""Pictures: every function takes and returns Axes, shows the numbers it should, and lets no two things overlap."""

import itertools
import re

import matplotlib
import numpy as np
import pytest
from scipy import stats

from pages import EVIL, WORSE, evil_posterior, loaded_posterior
from relbo import plots
from relbo.diagnostics import diagnose
from relbo.plots.canvas import short
from relbo.views.densities import component_densities, grid_of, level_of, plane_densities
from relbo.views.palette import COLOURS, DARK_COLOURS, MARKERS
from relbo.views.ratios import log_ratios
from relbo.views.scalars import choose_names, reference_columns, scalars, whitened

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

SINGLE = {
    "elbo": lambda axes: plots.elbo(loaded_posterior(), axes),
    "gap": lambda axes: plots.gap(loaded_posterior(), axes),
    "weights": lambda axes: plots.weights(loaded_posterior(), axes),
    "components, line": lambda axes: plots.components(loaded_posterior(), axes, names=EVIL, num_draws=2000),
    "components, plane": lambda axes: plots.components(loaded_posterior(), axes, num_draws=2000),
    "ratios": lambda axes: plots.ratios(loaded_posterior(), axes),
    "k_hats": lambda axes: plots.k_hats(diagnose(loaded_posterior()), axes),
}
MANY = {
    "marginals": (3, lambda axes: plots.marginals(loaded_posterior(), axes, num_draws=2000)),
    "pairs": (9, lambda axes: plots.pairs(loaded_posterior(), axes, num_draws=2000)),
    "coordinates": (2, lambda axes: plots.coordinates(loaded_posterior(), axes, num_draws=2000)),
}


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


@pytest.mark.parametrize("name", SINGLE)
def test_one_axes_in_and_out(name):
    given = pyplot.subplots()[1]
    assert SINGLE[name](given) is given
    made = SINGLE[name](None)
    assert isinstance(made, Axes) and made.figure is not given.figure
    nothing_overlaps(made.figure)


@pytest.mark.parametrize("name", MANY)
def test_many_axes_in_and_out(name):
    num, draw = MANY[name]
    given = pyplot.subplots(1, num)[1]
    assert {id(axes) for axes in np.ravel(draw(given))} == {id(axes) for axes in given}
    made = draw(None)
    assert made.size == num
    nothing_overlaps(made.ravel()[0].figure)
    with pytest.raises(ValueError, match=rf"axes must be {num} Axes .*, got {num + 1}"):
        draw(pyplot.subplots(1, num + 1)[1])


def nothing_overlaps(figure):
    """No two pictures of a figure, with their labels and titles; and no legend over the picture it explains."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    shown = [axes for axes in figure.axes if axes.axison]
    boxes = [axes.get_tightbbox(renderer).shrunk(0.98, 0.98) for axes in shown]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    for axes in shown:
        for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
            extents = [label.get_window_extent(renderer) for label in ticks if label.get_text() and label.get_visible()]
            inside = [box for box in extents if figure.bbox.overlaps(box)]
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(inside))


def test_two_axes_are_needed_where_two_are_asked_for():
    with pytest.raises(ValueError, match="axes must be one matplotlib Axes, got ndarray"):
        plots.elbo(loaded_posterior(), pyplot.subplots(1, 2)[1])
    with pytest.raises(ValueError, match="two coordinates are needed, got 1"):
        plots.coordinates(loaded_posterior(), names=EVIL)
    with pytest.raises(ValueError, match=r"drawn in one or two coordinates, got 3"):
        plots.components(loaded_posterior(), names=[EVIL, WORSE])
    with pytest.raises(ValueError, match="there is no parameter 'mu'"):
        plots.marginals(loaded_posterior(), names="mu")


def test_the_trace_is_drawn_as_it_is():
    trace = loaded_posterior().trace
    axes = plots.elbo(loaded_posterior(), diagnosis=diagnose(loaded_posterior()))
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_array_equal(lines["ELBO"].get_ydata(), [float(record.elbo.value) for record in trace])
    assert list(lines["rejected"].get_xdata()) == [3] and "log Z" in lines
    bars = plots.gap(loaded_posterior()).containers[0]
    assert list(bars.lines[0].get_xdata()) == [1, 2, 3]  # the first iteration has no gap
    heights = sum(np.array([bar.get_height() for bar in each]) for each in plots.weights(loaded_posterior()).containers)
    np.testing.assert_allclose(heights, 1.0)


def test_components_add_up_to_the_mixture_and_the_target_is_there():
    """On the model itself: two normals in one coordinate, by the closed form."""
    axes = plots.components(evil_posterior(), names=EVIL, num_draws=20_000)
    lines = {line.get_label(): line for line in axes.get_lines()}
    grid, total = lines["mixture"].get_data()
    exact = 0.3 * stats.norm(-2, 0.5).pdf(grid) + 0.7 * stats.norm(1.5, 1).pdf(grid)
    step = grid[1] - grid[0]
    distance = 0.5 * np.abs(total - exact).sum() * step
    assert distance < 0.04  # twice what 20,000 draws leave: bias and noise of the smoothing
    parts = sum(lines[label].get_ydata() for label in lines if label.startswith("component"))
    assert 0.5 * np.abs(parts - exact).sum() * step < 0.04


def test_a_reference_is_drawn_behind():
    draws = scalars(loaded_posterior(), 500, seed=3)
    reference = {EVIL: draws.column(EVIL) + 1.0}
    axes = plots.marginals(loaded_posterior(), reference=reference, names=EVIL, num_draws=2000)
    assert len(axes) == 1
    stairs = axes[0].patches[0]
    values, edges = stairs.get_data().values, stairs.get_data().edges
    centre = np.sum(values * np.diff(edges) * (edges[1:] + edges[:-1]) / 2)
    assert abs(centre - reference[EVIL].mean()) < np.diff(edges)[0]
    assert set(reference_columns(loaded_posterior(), reference, 100, 0)) == {EVIL}


def test_pairs_show_every_draw_once():
    grid = plots.pairs(loaded_posterior(), num_draws=800)
    assert sum(len(dots.get_offsets()) for dots in grid[1, 0].collections) == 800
    assert not grid[0, 1].axison and len(grid[0, 2].get_legend().get_texts()) == 2


def test_coordinates_are_those_of_the_fit():
    posterior = loaded_posterior()
    left, right = plots.coordinates(posterior, num_draws=300)
    points = np.asarray(posterior.sample_unconstrained(300, seed=0))
    np.testing.assert_allclose(left.collections[0].get_offsets(), points[:, :2], rtol=1e-6)
    np.testing.assert_allclose(right.collections[0].get_offsets(), whitened(posterior, points)[:, :2], rtol=1e-6)


def test_ratios_of_the_target_itself_are_all_alike():
    """The mixture is the target: every ratio is log Z, from the file as from the model."""
    for posterior in (loaded_posterior(), evil_posterior()):
        found = log_ratios(posterior, 400)
        np.testing.assert_allclose(found, found.mean(), atol=1e-4)
        axes = plots.ratios(posterior, num_draws=400)
        assert re.match(r"k-hat -?\d\.\d\d: (good|too large)", axes.get_title())


def test_smoothing_keeps_the_mass():
    drawn = scalars(loaded_posterior(), 2000)
    values = drawn.column(EVIL)
    grid = grid_of(values)
    step = grid[1] - grid[0]
    inside = (values >= grid[0] - step / 2) & (values <= grid[-1] + step / 2)
    parts = component_densities(values, drawn.shares, drawn.weights, grid)
    expected = drawn.weights * drawn.shares[inside].sum(axis=0) / drawn.shares.sum(axis=0)
    np.testing.assert_allclose(parts.sum(axis=1) * step, expected, rtol=1e-6)
    plane = plane_densities(drawn.values[:, :2], drawn.shares, drawn.weights, (grid_of(drawn.values[:, 0]), grid))
    assert plane.shape == (2, 200, 200) and np.all(plane >= 0)
    np.testing.assert_allclose(drawn.shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(drawn.mode_weights, drawn.weights, rtol=1e-5)  # two components, two modes


def test_a_bounded_parameter_keeps_its_edge():
    """An exponential law does not leak below zero, and does not dip at it."""
    values = np.random.default_rng(0).exponential(size=20_000)
    grid = grid_of(values)
    density = component_densities(values, np.ones((20_000, 1)), np.ones(1), grid)[0]
    assert grid[0] > 0 and density[0] > 0.8 and density.argmax() < 20


def test_levels_hold_their_mass():
    grid = np.linspace(-5, 5, 400)
    density = stats.norm.pdf(grid)[:, None] * stats.norm.pdf(grid)
    level = level_of(density, 0.5)
    np.testing.assert_allclose(density[density >= level].sum() / density.sum(), 0.5, atol=1e-3)


def test_constants_and_numbers_that_are_not_finite_can_be_drawn():
    assert np.all(np.diff(grid_of(np.full(10, 3.0))) > 0)
    assert np.all(np.isfinite(grid_of(np.array([np.nan, np.inf]))))
    values = np.array([0.0, 1.0, np.nan, np.inf, 2.0])
    assert np.isfinite(component_densities(values, np.ones((5, 1)), np.ones(1), np.linspace(0, 2, 10))).all()


def test_names_are_chosen_as_people_mean_them():
    names = ["mu", "theta[0]", "theta[1]", "theta_raw"]
    assert choose_names(names, None, 2) == ["mu", "theta[0]"]
    assert choose_names(names, ["theta", "mu"], 1) == ["theta[0]", "theta[1]", "mu"]
    assert choose_names(["b[0,0]", "b[0,1]"], "b[0, 1]", 1) == ["b[0,1]"]
    assert short("a" * 40 + "[12]", 12) == "aaaaaaa…[12]"
    assert short("$x$" * 20) == r"\$x\$" * 9 + "…"


LINEAR_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
# What is left of colours without one kind of cones (Machado, Oliveira and Fernandes 2009).
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("palette", [COLOURS, DARK_COLOURS], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", BLIND)
def test_the_colour_blind_can_tell_the_colours_apart(palette, eyes):
    """By the distance in CIELAB, of which 2.3 is just noticeable side by side."""
    shades = np.array([lab_of(colour, np.array(BLIND[eyes])) for colour in palette])
    distances = [np.linalg.norm(one - other) for one, other in itertools.combinations(shades, 2)]
    assert min(distances) > 9 and len(set(MARKERS)) == len(palette)


def lab_of(colour: str, eyes: np.ndarray) -> np.ndarray:
    rgb = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = LINEAR_TO_XYZ @ np.clip(eyes @ linear, 0, 1) / [0.9505, 1.0, 1.089]
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])

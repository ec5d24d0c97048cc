"""One look for all figures: colours that colour-blind readers can tell apart (Okabe and Ito), quiet axes."""

from matplotlib.axes import Axes

COLOURS = {
    "fixed": "#E69F00",
    "line_search": "#56B4E9",
    "fully_corrective": "#009E73",
    "default": "#D55E00",
    "adaptive": "#CC79A7",
    "away": "#0072B2",
    "pairwise": "#999999",
    "BBVI": "#000000",
    "paper": "#CC79A7",
    "blue": "#0072B2",
    "grey": "#999999",
}


def tidy(axes: Axes, letter: str = "", title: str = "") -> None:
    """A title at the left with its letter, and no frame at the top and at the right."""
    if title:
        axes.set_title(f"$\\bf{{{letter}}}$  {title}" if letter else title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)

"""The colours of every picture, told apart by the colour-blind too (Okabe and Ito 2008)."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of the heaviest components, in this order. Yellow and black of the original eight are left out: one is too pale on
white, the other is for text."""
DARK_COLOURS = ("#4DA6DE", "#F0823C", "#2EC29A", "#E39BC2", "#F0B429", "#9AD4F5")
"""The same hues for a dark ground, light enough to stand out from it."""
OTHERS = "#7A7A7A"
"""Of all further components together."""
DARK_OTHERS = "#A8A8A8"
MARKERS = ("o", "s", "^", "D", "v", "P")
"""A shape beside every colour, for those who see no colours at all, and for print."""
FIT, REFERENCE, BAD = COLOURS[0], "#B8B8B8", COLOURS[1]
"""What was fitted; what it is held against; what to worry about."""


def colour_of(component: int) -> str:
    """The colour of a component, numbered from 0 by weight, the heaviest first."""
    return COLOURS[component] if component < len(COLOURS) else OTHERS

"""Warnings that name the user's line, and that cost nobody a result."""

import logging
import sys
import warnings


def warn(text: str) -> None:
    """Warn at the first caller outside of this package. Where warnings are errors, it is logged instead."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "relbo":
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(text, stacklevel=level)
    except Warning:
        logging.getLogger("relbo").warning(text)

"""Numbers and texts for a page: JSON that a `<script>` element can hold, arrays as base64, figures as people round."""

import base64
import json
import math
from typing import Any

import numpy as np

from relbo.records.estimate import format_estimate
from relbo.runtime.plain import plain

_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def to_json(value: Any) -> str:
    """JSON without any character that could end the element around it, or begin a comment or an entity there.

    Numbers that JSON has no word for (NaN, infinities) become null.
    """
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character, escaped in _UNSAFE.items():
        text = text.replace(character, escaped)
    return text


def packed(array: np.ndarray) -> str:
    """An array as base64: single precision, little-endian, row by row."""
    return base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()


def packed_bytes(array: np.ndarray) -> str:
    """Small whole numbers as base64, a byte each."""
    return base64.b64encode(np.ascontiguousarray(array, "u1").tobytes()).decode()


def figure(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent where a person would write none."""
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:.{max(0, digits - 1 - size)}f}".replace("-", "−")


def with_error(value: float, std_err: float) -> str:
    """Value ± standard error: two figures of the error, the value to the same place; five places at the most.

    >>> with_error(-77.98312, 0.0123)
    '−77.983 ± 0.012'
    """
    if 0 < std_err < 1e-5 and math.isfinite(value):
        return f"{value:.5f} ± < 0.00001".replace("-", "−")
    return format_estimate(value, std_err).replace("+-", "±").replace("-", "−").replace("e−", "e-")

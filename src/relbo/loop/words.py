"""What a fit that ended says."""

import traceback


def last_line(error: BaseException) -> str:
    """The error in one line. A callback's comes as a traceback in the text of JAX's own, its last line being it."""
    text = "".join(traceback.format_exception_only(error)).partition("\n--------------------\n")[0]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "#", "("))]
    return (lines[-1] if lines else type(error).__name__)[:300]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)

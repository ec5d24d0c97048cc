"""Parts of sentences: long lists cut short, nouns in their number."""

from collections.abc import Sequence


def shorten(items: Sequence[str], most: int = 8) -> str:
    """A list as people write it; of more than `most` items the rest is counted.

    >>> shorten(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "component"), plural(1200, "draw")
    ('1 component', '1,200 draws')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

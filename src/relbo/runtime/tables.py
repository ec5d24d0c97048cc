"""Tables of texts for people: in columns for a terminal, in HTML for a notebook, where everything is escaped."""

import html
from collections.abc import Iterable, Sequence

MOST_ROWS = 60
"""Of a table in a notebook."""


def text_table(rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, columns as wide as their widest cell."""
    rows = [list(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def html_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, cut short after `MOST_ROWS`. An empty heading is left out."""
    rows = list(rows)
    head = f"<thead><tr>{_cells('th', heading)}</tr></thead>" if heading else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows[:MOST_ROWS])
    more = html_line(f"... and {len(rows) - MOST_ROWS} more") if len(rows) > MOST_ROWS else ""
    return f"<table>{head}<tbody>{body}</tbody></table>{more}"


def html_line(text: str, strong: bool = False) -> str:
    inside = f"<strong>{escape(text)}</strong>" if strong else escape(text)
    return f"<p>{inside}</p>"


def html_block(*parts: str) -> str:
    """What an object's `_repr_html_` returns."""
    return f'<div class="relbo">{"".join(parts)}</div>'


def escape(text: object) -> str:
    """Text as it is to be read, whatever it contains."""
    return html.escape(str(text), quote=True)


def _cells(tag: str, cells: Sequence[str]) -> str:
    return "".join(f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells)

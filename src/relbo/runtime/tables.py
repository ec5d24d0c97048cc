"""Tables of texts for people: in columns for a terminal, in HTML for a notebook, where everything is escaped."""

import abc
import html
from collections.abc import Iterable, Sequence

MOST_ROWS = 60
"""Of a table in a notebook."""


class Tabular(abc.ABC):
    """A result that is printed as a table, lines below it and a verdict, in a terminal as in a notebook."""

    @property
    @abc.abstractmethod
    def verdict(self) -> str:
        """In a sentence or two."""

    @abc.abstractmethod
    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The heading, which may be empty, and the rows."""

    @abc.abstractmethod
    def _lines(self) -> list[str]:
        """What there is to say below the table."""

    def __str__(self) -> str:
        heading, rows = self._table()
        return "\n".join([*text_table([heading, *rows] if heading else rows), *self._lines(), self.verdict])

    def _repr_html_(self) -> str:
        lines = map(html_line, self._lines())
        return html_block(html_line(self.verdict, strong=True), html_table(*self._table()), *lines)


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

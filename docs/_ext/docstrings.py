"""Docstrings are written as Markdown, with formulas between dollars; autodoc reads reStructuredText."""

import re

from sphinx.application import Sphinx

_BLOCK = re.compile(r"^(?P<indent>[ \t]*)\$\$(?P<tex>.+?)\$\$[ \t]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(
    r"""``.+?``|:\w+:`.+?`|(?P<doctest>^\s*(?:>>>|\.\.\.\ ).*$)  # as they are
    |`(?P<code>[^`\n]+(?:\n[^`\n]+)?)`
    |(?<!\$)\$(?P<tex>[^$]+)\$(?!\$)
    |(?P<bar>\|)""",
    re.VERBOSE | re.MULTILINE,
)
_ITEM = re.compile(r"(?<=\S)\n(?=[ \t]*- )")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _translate, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _translate(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).split("\n")


def to_rst(text: str) -> str:
    """Code spans, formulas, bars and lists of Markdown in reStructuredText; everything else is the same in both."""
    return _SPAN.sub(_as_span, _BLOCK.sub(_as_block, _ITEM.sub("\n\n", text)))


def _as_block(match: re.Match) -> str:
    indent, tex = match["indent"], " ".join(match["tex"].split())
    tex = re.sub(r"\\?\|", lambda bar: r"\Vert " if len(bar[0]) > 1 else r"\vert ", tex)  # bars in text are escaped
    return f"{indent}.. math::\n\n{indent}    {tex}\n"


def _as_span(match: re.Match) -> str:
    if match["code"] is not None:
        return f"``{' '.join(match['code'].split())}``"
    if match["tex"] is not None:
        return f":math:`{' '.join(match['tex'].split())}`"
    return r"\|" if match["bar"] else match[0]

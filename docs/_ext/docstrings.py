"""Docstrings are written as Markdown, with formulas between dollars; autodoc reads reStructuredText."""

import re

from sphinx.application import Sphinx

_BLOCK = re.compile(r"^(?P<indent>[ \t]*)\$\$(?P<tex>.+?)\$\$[ \t]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?P<literal>``.+?``)|:\w+:`.+?`|`(?P<code>[^`\n]+(?:\n[^`\n]+)?)`|(?<!\$)\$(?P<tex>[^$]+)\$(?!\$)")
_LABEL = re.compile(r"^(?P<indent>\s*)Example:$", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _translate, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _translate(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).split("\n")


def to_rst(text: str) -> str:
    """Code spans, formulas and doctest labels of Markdown in reStructuredText; everything else is the same in both."""
    text = _BLOCK.sub(_as_block, text)
    text = _SPAN.sub(_as_span, text)
    return _LABEL.sub(r"\g<indent>Example::", text) if ">>>" not in text else text


def _as_block(match: re.Match) -> str:
    indent, tex = match["indent"], " ".join(match["tex"].split())
    return f"{indent}.. math:: {tex}\n"


def _as_span(match: re.Match) -> str:
    if match["code"] is not None:
        return f"``{' '.join(match['code'].split())}``"
    if match["tex"] is not None:
        return f":math:`{' '.join(match['tex'].split())}`"
    return match[0]

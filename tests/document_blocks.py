"""The code blocks of a Markdown page, and how the page asks for them to be run.

A block of Python (`python`, or MyST's `{code-cell}`) or of a shell (`sh`, `bash`) is code; what is printed, formulas,
Stan programs and data have other names or none. The blocks of a page share one namespace and one folder, top to bottom.
Right before a block a page may say, in an HTML comment,

    not run: REASON              the block cannot be run here
    run first:                   and then Python that the page does not show
"""

import pathlib
import re
from dataclasses import dataclass

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).parents[1]
PYTHON = ("python", "{code-cell}")
SHELL = ("sh", "bash", "shell")
_COMMENT = re.compile(r"<!--\s*(?P<word>not run|run first):\s*(?P<text>.*?)-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A piece of code, the line of the page on which it begins (counted from zero), and why it is not run, if so."""

    language: str
    code: str
    line: int
    not_run: str | None = None


def pages() -> list[str]:
    """README and every page of the documentation, as paths from the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    kept = (path.relative_to(ROOT) for path in found)
    return [path.as_posix() for path in kept if not {"_build", "_generated"} & set(path.parts)]


def blocks_of(text: str) -> list[Block]:
    """All code of a page in order, code that is not shown included."""
    blocks: list[Block] = []
    waiting: str | None = None
    for token in MarkdownIt().parse(_without_front_matter(text)):
        line = token.map[0] if token.map else 0
        if token.type == "html_block":
            for match in _COMMENT.finditer(token.content):
                if match["word"] == "run first":
                    blocks.append(Block("python", match["text"], line))
                else:
                    waiting = match["text"].strip()
        elif token.type == "fence" and (language := _language(token.info)) is not None:
            blocks.append(Block(language, _code(token.content), line + 1, waiting))
            waiting = None
        elif token.type == "fence":
            waiting = None
    return blocks


def indented_of(text: str) -> list[str]:
    """Blocks set off by indentation, which have no language: output and formulas, not code."""
    return [token.content for token in MarkdownIt().parse(_without_front_matter(text)) if token.type == "code_block"]


def _language(info: str) -> str | None:
    first = (info.split() or [""])[0]
    return "python" if first in PYTHON else "sh" if first in SHELL else None


def _code(content: str) -> str:
    """Without the options at the head of a `{code-cell}`, but on the same lines."""
    lines = content.split("\n")
    for index, line in enumerate(lines):
        if not line.startswith(":"):
            break
        lines[index] = ""
    return "\n".join(lines)


def _without_front_matter(text: str) -> str:
    """The page with its head of settings blanked, so that lines keep their numbers."""
    if not text.startswith("---\n"):
        return text
    head, end, rest = text[4:].partition("\n---\n")
    return "\n" * (head.count("\n") + 3) + rest if end else text

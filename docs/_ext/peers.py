"""The comparison with other tools on the site: copies of benchmarks/PEERS.md, where it has been measured.

The page is made from measurements (`make peers`), so a checkout may lack it; then the site says so.
"""

import pathlib
import re
import shutil

from sphinx.application import Sphinx

_FIGURE = re.compile(r"!\[(?P<what>[^\]]*)\]\((?P<path>[^)]+)\)")
_MISSING = """\
```{note}
This copy of the site was built without the measurements. `make peers` makes them: hours on one core.
```
"""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: make_pages(pathlib.Path(app.srcdir)))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def make_pages(docs: pathlib.Path) -> None:
    """`_generated/peers.md`, the whole page, and `_generated/peers_summary.md`, to be included in another."""
    source, folder = docs.parent / "benchmarks" / "PEERS.md", docs / "_generated"
    folder.mkdir(exist_ok=True)
    page = folder / "peers.md"
    if not source.exists():
        _write(page, f"# relbo and its peers\n\n{_MISSING}")
        _write(folder / "peers_summary.md", _MISSING)
        return
    text = source.read_text(encoding="utf-8")
    for match in _FIGURE.finditer(text):
        figure = source.parent / match["path"]
        shutil.copyfile(figure, folder / figure.name)
        text = text.replace(f"({match['path']})", f"({figure.name})")
    _write(page, text)
    _write(folder / "peers_summary.md", summary(text))


def summary(text: str) -> str:
    """What stands before the second heading, without the first: the verdict in sentences, and the figure."""
    body = text.split("\n## ")[0].split("\n", 1)[1].strip()
    return _FIGURE.sub(r"![\g<what>](/_generated/\g<path>)", body) + "\n"


def _write(path: pathlib.Path, text: str) -> None:
    """Only what changed: Sphinx reads by date."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")

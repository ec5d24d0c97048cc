"""Formulas as MathML, which every browser draws by itself: no script, and nothing fetched from another host."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_logger = logging.getLogger(__name__)
_SIZES = re.compile(r"\\[bB]igg?[lr]?(?![a-zA-Z])")  # brackets of MathML stretch by themselves
_DOTS = re.compile(r"\\dots(?![a-zA-Z])")
_NAMES = re.compile(r"\\(log|exp|det)\s+(?=[a-zA-Z\\])")  # "log p", not "logp"
_BARE_FRACTION = re.compile(r"(\\[td]?frac)(\d)(\d)")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer, node: nodes.math) -> None:
    writer.body.append(_formula(node, as_block=False))
    raise nodes.SkipNode


def _block(writer, node: nodes.math_block) -> None:
    formula = _formula(node, as_block=True)
    writer.body.append(f'<div class="math" tabindex="0" role="group" aria-label="formula">{formula}</div>\n')
    raise nodes.SkipNode


def _formula(node: nodes.Element, as_block: bool) -> str:
    """MathML; what docutils does not know is a warning, and so an error of the build."""
    tex = _DOTS.sub(r"\\ldots", _SIZES.sub("", node.astext()))
    tex = _NAMES.sub(r"\\\1\\, ", _BARE_FRACTION.sub(r"\1{\2}{\3}", tex))
    try:
        return tex2mathml(tex, as_block=as_block)
    except MathError as error:
        _logger.warning("cannot draw the formula %r: %s", node.astext(), error, location=node)
        return ""

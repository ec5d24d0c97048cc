"""Formulas as MathML, which every browser draws by itself: no script, and nothing fetched from another host."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer, node: nodes.math_block) -> None:
    formula = tex2mathml(_aligned(node.astext()), as_block=True)
    writer.body.append(f'<div class="math" tabindex="0" role="group" aria-label="formula">{formula}</div>\n')
    raise nodes.SkipNode


def _aligned(formula: str) -> str:
    """Several lines are aligned at their `&`, without having to say so."""
    is_bare = "\\\\" in formula and "\\begin" not in formula
    return f"\\begin{{aligned}}{formula}\\end{{aligned}}" if is_bare else formula

"""Sphinx extension: reference parts that are rendered from the code, diagrams, and code in docstrings."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from docs.generate import PARTS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

log = logging.getLogger(__name__)
MERMAID: Final = Path(__file__).parent.parent / "labextension/node_modules/mermaid/dist/mermaid.min.js"
"""Mermaid comes with JupyterLab's packages. Served with the site, it draws without a network, and from files, too."""
DRAW: Final = """
const theme = document.documentElement.dataset.theme === 'dark' ? 'dark' : 'default';
mermaid.initialize({ startOnLoad: true, theme });
"""


class Rendered(SphinxDirective):
    """A part of the reference, by its name in `PARTS`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in PARTS:
            raise self.error(f"unknown part {name!r}; use one of {', '.join(PARTS)}")
        return self.parse_text_to_nodes(PARTS[name](), allow_section_headings=True)


class Diagram(SphinxDirective):
    """A Mermaid diagram, drawn by the browser."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = html.escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">\n{text}\n</pre>\n', format="html")]


def add_mermaid(app: Sphinx, name: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    """Load Mermaid on pages with a diagram."""
    if tree is not None and any('class="mermaid"' in raw.astext() for raw in tree.findall(nodes.raw)):
        app.add_js_file("mermaid.min.js")
        app.add_js_file(None, body=DRAW)


def copy_mermaid(app: Sphinx, error: Exception | None) -> None:
    """Put Mermaid beside the pages."""
    if error is None and app.builder.format == "html":
        if MERMAID.exists():
            shutil.copyfile(MERMAID, Path(app.outdir) / "_static" / MERMAID.name)
        else:
            log.warning("diagrams are not drawn: %s is missing (make .make/node)", MERMAID)


def mark_code(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Mark indented blocks of a docstring as code: reStructuredText expects `::` above them."""
    out: list[str] = []
    for line in lines:
        begins = line.startswith("    ") and (not out or not out[-1].strip()) and not is_in_block(out)
        if begins:
            out += ["::", ""]
        out.append(line)
    lines[:] = out


def is_in_block(lines: list[str]) -> bool:
    """Return whether the last line that is not empty is indented."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return re.match(r" {4}", last) is not None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register directives and hooks."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("dlaas", Rendered)
    app.add_directive("mermaid", Diagram)
    app.connect("html-page-context", add_mermaid)
    app.connect("build-finished", copy_mermaid)
    app.connect("autodoc-process-docstring", mark_code)
    return {"parallel_read_safe": True, "version": "1"}

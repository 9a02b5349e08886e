"""Sphinx extension: the directive `{dlaas}` inserts a part of the reference that is rendered from the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sphinx.util.docutils import SphinxDirective

from docs.generate import PARTS

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx


class Rendered(SphinxDirective):
    """A part of the reference, by its name in `PARTS`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in PARTS:
            raise self.error(f"there is no part {name!r}; there is {', '.join(PARTS)}")
        return self.parse_text_to_nodes(PARTS[name](), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("dlaas", Rendered)
    return {"parallel_read_safe": True, "version": "1"}

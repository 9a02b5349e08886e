"""Configuration of the documentation site. Build it with `make docs`."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "server")]

from jupyter_dlaas._version import __version__  # noqa: E402

project = "jupyter_dlaas"
author = "The jupyter_dlaas developers"
copyright = author  # noqa: A001  # the name that Sphinx reads
release = version = __version__

extensions = [
    "docs.extension",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    # Types in signatures that are no part of the public API, and those of other packages.
    (r"py:.*", r"(jupyter_dlaas\.(?!api|learner\.training_run\.run)|collections|pathlib|typing|IPython|torch).*"),
    (r"py:.*", r"(P|R|Client|Follower|Path|Cursor|InteractiveShell|[A-Z]\w*View|jupyter_dlaas\.api\.jobs\.\w)"),
]
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block", "substitution"]
myst_heading_anchors = 3
myst_links_external_new_tab = True
nb_execution_mode = "off"  # the tests execute notebooks, through real jobs

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100  # beyond that, one parameter a line
default_role = "code"  # docstrings use single backticks
smartquotes = False  # would turn the two hyphens of `--env` into a dash

html_theme = "pydata_sphinx_theme"
html_title = "jupyter_dlaas"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars: dict[str, list[str]] = {"how-it-works": [], "troubleshooting": []}  # no pages below them
html_show_sourcelink = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "navigation_with_keys": False,
}
copybutton_exclude = ".linenos, .gp, .go"
linkcheck_ignore = [r"http://localhost.*"]

"""Sphinx configuration: MyST pages, numpydoc docstrings, the pydata theme. Built with warnings as errors (`make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import ggufslice

project = "ggufslice"
author = "the ggufslice developers"
project_copyright = "the ggufslice developers"
release = version = ggufslice.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "cli_reference",
    "rule_table",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Single backticks in docstrings name things of ours; they become links where Sphinx knows the name.
default_role = "py:obj"
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the signature and numpydoc's sections say them already
autodoc_member_order = "bysource"
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
nitpicky = False
smartquotes = False  # options start with two hyphens

html_theme = "pydata_sphinx_theme"
html_title = "ggufslice"
html_static_path = ["_static"]
html_css_files = ["ggufslice.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"changelog": [], "performance": [], "security": [], "peers": []}
pygments_style = "default"

"""How Sphinx makes the documentation."""

import importlib.metadata
import importlib.util
import pathlib
import sys

# The installed package, with its extension module, and not the checkout's sources.
root = pathlib.Path(__file__).resolve().parent.parent
sys.path[:] = [p for p in sys.path if p and pathlib.Path(p).resolve() != root]

project = "pyddstore"
author = "the libddstore authors"
copyright = f"2026, {author}"
release = version = importlib.metadata.version("pyddstore")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pyddstore {release}"

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]

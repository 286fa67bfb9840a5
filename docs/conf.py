"""How Sphinx builds the site from README, `docs/`, the notebooks and the pages of the results: `make docs`.

The source folder is that of the repository, so that one relative link works here and where the repository is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import remat

project = "remat"
release = version = remat.__version__
copyright = author = "the authors of remat"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "commands",
    "docstrings",
    "formulas",
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "experiments/**.md", "experiments/notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "demo-output"]

# A link, an anchor or a name that leads nowhere is a warning, and a warning fails the build.
nitpicky = True
# But not for backticks in docstrings, which become a link if they name something documented; for what others document;
# for types that are hints as text; and for inner types.
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    ("py:class", r"(numpy|torch|pandas|pd|collections|contextlib|fractions|hypothesis|pathlib)\..*"),
    ("py:class", r"Path|Progress|Figure|Axes|Styler|Dtype|Mode|Prices|Comparison|(Mapping|tuple)\[.*"),
    ("py:class", r".*\b(LazyField|Deferred|Arcs|MaxFlow)"),
    (
        "py:class",
        r".*\b(_\w+|Rule|Edge|PlannedGraph|PeakCheck|CompiledGraph|HeldMemory|Boundary|Log|StorageFacts|Order|PlanRequest|plan_log\.CompiledStep)",
    ),
]
suppress_warnings = ["ref.python"]  # a name in backticks that several classes have, such as `bytes`
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "html_image"]

# Notebooks are stored without outputs, and run here. What has not changed since the last build is not run again.
nb_execution_mode = "cache"
nb_execution_cache_path = "build/notebooks"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 88
# Our docstrings list names that share a line, `tails, heads: ...`, and types stand in signatures alone.
napoleon_use_param = napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]

smartquotes = False  # they would make a dash of the hyphens of `--json`
html_theme = "furo"
# Those of furo, and the versions that are published beside this one.
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_math_renderer = "mathml"
html_title = "remat"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Sphinx) -> None:
    """Adds the first page."""
    app.connect("build-finished", _send_to_the_first_page)


def _send_to_the_first_page(app: Sphinx, failure: Exception | None) -> None:
    """The index lies in `docs/`, as its source does; who opens the folder of the site is sent there."""
    if failure is None and app.builder.format == "html":
        refresh = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(f"<!doctype html><title>remat</title>{refresh}\n")

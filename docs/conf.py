"""Settings of sphinx for the pages of this folder: `make docs`. It needs no network, and a warning is an error."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from torchcaps import __version__  # noqa: E402, found by the line above, without being installed
from torchcaps.runtime.project import address  # noqa: E402

project = "torchcaps"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
parts = ("docstrings", "public_names", "name_links", "repository_links", "notebooks")
extensions += [f"sphinx_parts.{part}" for part in parts]
exclude_patterns = ["sphinx_parts"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # links to headings, as [that](page.md#heading)

# a page that is put together from others may begin with a heading of any level
suppress_warnings = ["myst.header"]
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # torch's words on every module are not repeated
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

# where links to files beside this folder lead; without an address the site holds copies of them
home = address("Repository")
repository = os.environ.get("TORCHCAPS_REPOSITORY", f"{home}/blob/HEAD" if home else "")
pages_of = {"bench/RECORDS.md": "performance"}  # files beside this folder that a page shows whole

html_theme = "furo"
html_title = f"torchcaps {version}"
html_static_path, html_css_files = ["_static"], ["pages.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
smartquotes = False  # a quote in a shape is a quote

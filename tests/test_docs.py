"""The documentation builds without a warning and without a network, and every public name is on one of its pages."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchcaps

HOME = Path(__file__).parent.parent
DOCS = HOME / "docs"
sys.path.append(str(DOCS))

from sphinx_parts.docstrings import as_rst, fields_of  # noqa: E402
from sphinx_parts.public_names import marked, offered  # noqa: E402

# modules with names that no page tells: for those who work on torchcaps
INTERNAL = {"torchcaps.bench", "torchcaps.data.files"}
OFFLINE = """
import socket, sys

def refuse(*args):
    raise OSError("the documentation shall build without a network")

socket.socket.connect = socket.getaddrinfo = refuse
from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason="pip install 'torchcaps[docs]'")
    for module in ("sklearn", "matplotlib"):
        pytest.importorskip(module, reason="pip install 'torchcaps[experiments]'")
    folder = tmp_path_factory.mktemp("site")
    args = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    done = subprocess.run([sys.executable, "-c", OFFLINE, *args], capture_output=True, text=True, cwd=HOME, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_the_documentation_builds_and_every_page_is_reached_and_offline(site):
    index = (site / "index.html").read_text()
    sources = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert len(sources) >= 15
    for path in sources:
        page = (site / path).read_text()
        assert f'href="{path}"' in index or path.name == "index.html"
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"', page)
        outside = [address for pair in loaded for address in pair if "//" in address]
        assert not outside, f"{path} loads {outside}"


def test_every_public_name_is_on_a_page(site):
    """As sphinx's own list of what it told knows it; of names that two modules offer, one is enough."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        told = {name for kind, names in InventoryFile.load(file, "", "/".join).items() if kind.startswith("py:") for name in names}
    modules = marked(DOCS / "api")
    assert len(modules) >= 20
    things = {id(_thing(name)) for name in told}
    for name in modules:
        module = importlib.import_module(name)
        missing = [each for each in offered(module) if f"{name}.{each}" not in told and id(getattr(module, each)) not in things]
        assert not missing, f"of {name}: {missing}"


def test_every_module_that_says_what_is_public_has_a_page():
    found = {"torchcaps"} | {
        each.name
        for each in pkgutil.walk_packages(torchcaps.__path__, "torchcaps.")
        if not each.name.endswith("__main__") and re.search(r"^__all__ = ", _source(each), re.MULTILINE)
    }
    assert {"torchcaps.ops", "torchcaps.layers", "torchcaps.models", "torchcaps.data"} <= found
    assert found - INTERNAL <= set(marked(DOCS / "api"))


def test_shapes_and_underscores_of_a_docstring_stay_as_they_are():
    first = "Poses [*b i d] -> [*b j e], of `squash` and `a b`s; W_ij, |z|."
    said = as_rst([first, "", "    model = f(x_)", "", "Then:", "- one", "  more"])
    assert said[0] == r"Poses [\*b i d] -> [\*b j e], of \ :py:obj:`squash`\  and \ ``a b``\ s; W\_ij, \|z\|."
    assert said[2:5] == ["::", "", "        model = f(x_)"]
    assert said[6:10] == ["Then:", "", "- one", "  more"]


def test_comments_of_fields_are_told():
    from torchcaps.ops import Routed

    assert fields_of(Routed) == ["- `pose_sum`: sum of the output poses of all passes but the last"]
    assert fields_of(torchcaps.CapsNet) == []


def _source(module: pkgutil.ModuleInfo) -> str:
    return Path(module.module_finder.find_spec(module.name).origin).read_text()


def _thing(name: str) -> object:
    """By its whole name: modules as far as there are any, then attributes."""
    module, *rest = name.split(".")
    thing = importlib.import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        thing = getattr(thing, part, None) or importlib.import_module(module)
    return thing

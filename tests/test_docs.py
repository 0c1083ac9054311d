"""The documentation builds without a warning and without a network, and every public name is on one of its pages."""

import importlib
import pkgutil
import posixpath
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchcaps
from torchcaps.papers import FIGURES

HOME = Path(__file__).parent.parent
DOCS = HOME / "docs"
sys.path.append(str(DOCS))

from sphinx_parts.docstrings import as_rst, fields_of, is_left_out, readable  # noqa: E402
from sphinx_parts.public_names import filled, marked, offered, told_by, written  # noqa: E402

# modules with names that no page tells: for those who work on torchcaps
INTERNAL = {"torchcaps.bench", "torchcaps.data.sources.files"}
OFFLINE = """
import socket, sys

def refuse(*args):
    raise OSError("the documentation shall build without a network")

socket.socket.connect = socket.getaddrinfo = refuse
from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_documentation_builds_offline_with_every_page_and_every_public_name(tmp_path):
    """One test, so that it is built once, whoever shares out the tests."""
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason="pip install 'torchcaps[docs]'")
    for module in ("sklearn", "matplotlib"):
        pytest.importorskip(module, reason="pip install 'torchcaps[experiments]'")
    args = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")]
    done = subprocess.run([sys.executable, "-c", OFFLINE, *args], capture_output=True, text=True, cwd=HOME, timeout=300)
    assert done.returncode == 0, done.stderr
    _every_page_is_reached_and_loads_nothing_from_outside(tmp_path / "html")
    _every_public_name_is_told(tmp_path / "html")
    _search_works_from_files(tmp_path / "html")


def _every_page_is_reached_and_loads_nothing_from_outside(site: Path) -> None:
    index = (site / "index.html").read_text()
    written = [path for kind in ("*.md", "*.ipynb") for path in DOCS.rglob(kind)]
    sources = [path.relative_to(DOCS).with_suffix(".html") for path in written]
    assert len(sources) >= 15
    for path in sources:
        page = (site / path).read_text()
        assert f'href="{path}"' in index or path.name == "index.html"
        assert str(HOME) not in page, f"{path} tells where it was built"
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"', page)
        # figures of notebooks are part of their page, as data: addresses
        outside = [address for pair in loaded for address in pair if re.match(r"(?!data:).*//", address)]
        assert not outside, f"{path} loads {outside}"


def _search_works_from_files(site: Path) -> None:
    """The index is a script, which a browser loads from a file too; where there is one it is asked."""
    assert 'src="searchindex.js' in (site / "search.html").read_text()
    browser = shutil.which("chromium")
    for asked, wanted in (
        {"unsquash": "api/ops.html", "EM+routing": "papers/heinsen2019.html"}.items() if browser else ()
    ):
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        address = (site / "search.html").as_uri() + f"?q={asked}"
        command = [browser, *flags, "--virtual-time-budget=20000", "--dump-dom", address]
        page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        found = re.findall(r'href="([^"]+)"', page[page.index('id="search-results"') :])
        assert any(link.startswith(wanted) for link in found), found


def _every_public_name_is_told(site: Path) -> None:
    """As sphinx's own list of what it told knows it; of names that two modules offer, one is enough."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        told = {
            name
            for kind, names in InventoryFile.load(file, "", posixpath.join).items()
            if kind.startswith("py:")
            for name in names
        }
    modules = marked(DOCS / "api")
    assert len(modules) >= 20
    things = {id(_thing(name)) for name in told}
    for name in modules:
        module = importlib.import_module(name)
        missing = [
            each for each in offered(module) if f"{name}.{each}" not in told and id(getattr(module, each)) not in things
        ]
        assert not missing, f"of {name}: {missing}"


def test_every_public_name_is_written_on_its_page():
    """As the pages are before sphinx reads them: told in full in one place, by a line and a link in the others."""
    modules = marked(DOCS / "api")
    assert len(modules) >= 20
    for name in modules:
        module = importlib.import_module(name)
        page = "\n".join(written(module, told_by(modules)))
        missing = [each for each in offered(module) if not re.search(rf"[. `]{each}\b", page)]
        assert offered(module) and not missing, f"of {name}: {missing}"


def test_the_reference_is_in_teaching_order():
    """Pages stand in the order of the index, files of a package in that of the page, tables before the first file."""
    index = (DOCS / "index.md").read_text()
    listed = re.findall(r"^api/(\S+)$", index, re.MULTILINE)
    assert listed[:4] == ["torchcaps", "layers", "models", "ops"]
    assert sorted(listed) == sorted(path.stem for path in (DOCS / "api").glob("*.md"))
    modules = marked(DOCS / "api")
    told = {page: filled((DOCS / f"api/{page}.md").read_text(), modules) for page in ("torchcaps", "layers", "models")}
    headings = re.findall(r"^## (\w+)$", told["layers"], re.MULTILINE)
    assert headings[:3] == ["capsules", "primary", "routed"] and len(headings) >= 10
    assert told["models"].index("py:data:: MODELS") < told["models"].index("## capsnet")
    names = re.findall(r"py:obj}`(\w+) <", told["torchcaps"])
    assert names.index("RoutedCapsules") < names.index("CodeNets") < names.index("CapsNet") < names.index("squash")
    with pytest.raises(ValueError, match=r"torchcaps.layers offers nothing of rooted"):
        filled("<!-- names torchcaps.layers first rooted -->", modules)


def test_pages_stand_in_a_readers_order_each_once():
    index = (DOCS / "index.md").read_text()
    captions = re.findall(r"^:caption: (.+)$", index, re.MULTILINE)
    assert captions == ["Start", "Guides", "Routings", "Papers", "Verdict and speed", "API"]
    trees = re.findall(r"^```{toctree}\n(?::[^\n]*\n)*\n(.*?)^```$", index, re.DOTALL | re.MULTILINE)
    listed = [re.sub(r".*<(.+)>", r"\1", line) for tree in trees for line in tree.splitlines()]
    pages = [path for kind in ("*.md", "*.ipynb") for path in DOCS.rglob(kind)]
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in pages} - {"index"}
    assert sorted(listed) == sorted(names), "each page is in one list of docs/index.md"
    assert listed.index("do-capsules-beat-cnns") < listed.index("performance") < listed.index("api/torchcaps")


def test_the_gallery_shows_every_figure_below_its_command():
    text = (DOCS / "gallery.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(shown) == len(set(shown)) >= 40
    figures = {path.relative_to(DOCS).as_posix() for kind in ("*.png", "*.gif") for path in DOCS.rglob(kind)}
    assert set(shown) == figures | {"../bench/h200-scale.png"}
    assert (DOCS / "../bench/h200-scale.png").exists()
    for number, link in enumerate(re.finditer(r"\(papers/(\w+)/[^)]+\.png\)", text)):
        above = re.findall(r"^`torchcaps figures (\w+)`$", text[: link.start()], re.MULTILINE)
        assert above[-1] == link[1] and link[1] in FIGURES, f"figure {number} stands below {above[-1:]}"
    for command in ("python docs/pictures.py", "torchcaps demo", "torchcaps play", "torchcaps bench scale"):
        assert f"`{command}`" in text


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
    from torchcaps.train.recipe import Stage

    assert fields_of(Routed) == ["- `pose_sum`: sum of the output poses of all iterations but the last"]
    assert fields_of(torchcaps.CapsNet) == []
    assert not any("noqa" in line for line in fields_of(Stage))


def test_signatures_and_members_show_no_inside_of_a_dataclass():
    from torchcaps.ops import Routed
    from torchcaps.train import Options

    assert (
        readable("(rows: X = <function run_folder>, curve: list = <factory>)")
        == "(rows: X = run_folder, curve: list = ...)"
    )
    assert is_left_out(Options.rows) and is_left_out(Routed.pose_sum) and is_left_out(torchcaps.CapsNet.register_buffer)
    assert not is_left_out(torchcaps.CapsNet.forward)


def test_figures_of_speed_and_memory_are_those_of_the_records():
    """Or rounded from them; what the author's own code takes is in no record."""
    records = figures_in((HOME / "bench" / "RECORDS.md").read_text())
    for page in (HOME / "README.md", *(DOCS / name for name in ("choose-a-routing.md", "faq.md", "performance.md"))):
        said = figures_in(re.sub(r"\(the author's code: [^)]*\)", "", page.read_text()))
        assert len(said) >= 5, page
        typed = [each for each in said if not any(is_rounded(each, record) for record in records)]
        assert not typed, f"{page.name} has figures that are in no record: {typed}"
    assert not is_rounded(("2.96", "ms"), ("2.966", "ms")) and not is_rounded(("9", "ms"), ("19", "ms"))
    assert is_rounded(("1,782", "MiB"), ("1,782", "MiB")) and not is_rounded(("1.8", "GB"), ("1,782", "MiB"))


def figures_in(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(\d[\d.,]*) (ms|MiB|GB)\b", text)


def is_rounded(said: tuple[str, str], record: tuple[str, str]) -> bool:
    decimals = len(said[0].partition(".")[2])
    return said[1] == record[1] and said[0] == f"{float(record[0].replace(',', '')):,.{decimals}f}"


@pytest.mark.slow
def test_every_picture_is_drawn_by_the_script_and_is_small(tmp_path):
    for module in ("matplotlib", "sklearn", "PIL"):
        pytest.importorskip(module, reason="pip install 'torchcaps[experiments]'")
    from pictures import main

    drawn = main(tmp_path)
    shown = re.findall(r"\]\((pictures/[^)]+)\)", "".join(page.read_text() for page in DOCS.glob("*.md")))
    committed = sorted((DOCS / "pictures").iterdir())
    assert (
        sorted(path.name for path in drawn)
        == [path.name for path in committed]
        == sorted({Path(link).name for link in shown})
    )
    assert all(path.stat().st_size < 100_000 for path in committed)
    assert all(path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 5_000 for path in drawn)


@pytest.mark.parametrize("address", ["", "https://example.org/blob/main/"])
def test_links_to_files_beside_the_pages_work(tmp_path, address):
    for module in ("sphinx", "myst_parser"):
        pytest.importorskip(module, reason="pip install 'torchcaps[docs]'")
    files = {
        "code/one.py": "x = 1\n",
        "NOTES.md": "# Notes\n",
        "bench/SHOWN.md": "Shown, with [numbers](numbers.txt).\n",
        "bench/numbers.txt": "1\n",
        "docs/conf.py": f"""
import sys
sys.path.append({str(DOCS)!r})
extensions = ["myst_parser", "sphinx_parts.repository_links"]
html_theme, repository, pages_of = "basic", {address!r}, {{"bench/SHOWN.md": "shown"}}
""",
        "docs/index.md": """# Index

[file](../code/one.py) [folder](../code) [notes](../NOTES.md) [record](../bench/SHOWN.md) [page](shown.md)

```{toctree}
shown
```
""",
        "docs/shown.md": "# Shown\n\n```{include} ../bench/SHOWN.md\n```\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    args = ["-q", "-W", "-b", "html", str(tmp_path / "docs"), str(tmp_path / "html")]
    done = subprocess.run([sys.executable, "-c", OFFLINE, *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    index, shown = (
        re.sub(r"<[^a/][^>]*>|</[^a][^>]*>", "", (tmp_path / "html" / page).read_text())
        for page in ("index.html", "shown.html")
    )
    leads = {words: to for to, words in re.findall(r'<a [^>]*href="([^"]+)"[^>]*>([^<]+)</a>', index + shown)}
    assert leads["page"] == leads["record"] == "shown.html"
    if address:
        wanted = {"file": "code/one.py", "folder": "code", "notes": "NOTES.md", "numbers": "bench/numbers.txt"}
        assert {words: leads[words] for words in wanted} == {words: address + name for words, name in wanted.items()}
        return
    assert "folder" not in leads and "folder" in index
    for words, text in (("file", "x = 1\n"), ("notes", "# Notes\n"), ("numbers", "1\n")):
        assert (tmp_path / "html" / leads[words]).read_text() == text


@pytest.mark.parametrize(
    "given, override, wanted",
    [
        (None, None, ""),
        ("https://host/us/caps", None, "https://host/us/caps/blob/HEAD"),
        ("https://host/us/caps", "https://host/us/caps/blob/abc", "https://host/us/caps/blob/abc"),
        ("https://host/us/caps", "", ""),
    ],
)
def test_pages_lead_to_the_repository_of_pyproject_unless_told_otherwise(monkeypatch, given, override, wanted):
    monkeypatch.setattr("torchcaps.runtime.project.address", {"Repository": given}.get)
    monkeypatch.delenv("TORCHCAPS_REPOSITORY", raising=False)
    if override is not None:
        monkeypatch.setenv("TORCHCAPS_REPOSITORY", override)
    monkeypatch.setattr(sys, "path", [*sys.path])  # conf.py adds to it
    assert runpy.run_path(str(DOCS / "conf.py"))["repository"] == wanted


def _source(module: pkgutil.ModuleInfo) -> str:
    return Path(module.module_finder.find_spec(module.name).origin).read_text()


def _thing(name: str) -> object:
    """By its whole name: modules as far as there are any, then attributes; a function may hide a module of its name."""
    module, *rest = name.split(".")
    thing = importlib.import_module(module)
    for number, part in enumerate(rest, 1):
        module, found = f"{module}.{part}", getattr(thing, part, None)
        further = number < len(rest) and not hasattr(found, rest[number])
        thing = importlib.import_module(module) if found is None or further else found
    return thing

"""Notebooks: valid, in one form, without outputs but for figures, and every cell runs."""

import base64
import re
import shlex
import sys
from pathlib import Path

import pytest
from test_pages import understood

DOCS = Path(__file__).parent.parent / "docs"
sys.path.append(str(DOCS))

from run_notebooks import FOLDER, INSTALL, address, code_cells, filled, read, run, run_cell, written  # noqa: E402

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CELL = {"cell_type", "id", "metadata", "source"}
KEYS = {"markdown": CELL, "code": CELL | {"execution_count", "outputs"}}
LARGEST = 400_000  # bytes


def sources(notebook: dict) -> str:
    return "\n".join("".join(cell["source"]) for cell in notebook["cells"])


def faults(notebook: dict) -> list[str]:
    """Name what nbformat 4.5 would refuse, and outputs that are no figures."""
    found = []
    if (notebook.get("nbformat"), notebook.get("nbformat_minor")) != (4, 5):
        found.append("not nbformat 4.5")
    if set(notebook) != {"cells", "metadata", "nbformat", "nbformat_minor"}:
        found.append(f"keys {sorted(notebook)}")
    ids = [cell.get("id", "") for cell in notebook["cells"]]
    if len(set(ids)) < len(ids) or not all(re.fullmatch(r"[\w-]{1,64}", each) for each in ids):
        found.append("ids that are no names, or twice the same")
    for cell in notebook["cells"]:
        if set(cell) != KEYS.get(cell["cell_type"]):
            found.append(f"{cell['cell_type']} cell with {sorted(cell)}")
        if not all(isinstance(line, str) for line in cell["source"]):
            found.append("a source that is no list of lines")
        found += _output_faults(cell)
    return found


def _output_faults(cell: dict) -> list[str]:
    found = []
    if cell.get("execution_count") is not None:
        found.append("an execution count")
    for output in cell.get("outputs", ()):
        if set(output) != {"data", "metadata", "output_type"} or set(output["data"]) != {"image/png"}:
            found.append(f"an output with {sorted(output.get('data', output))}")
        elif not base64.b64decode(output["data"]["image/png"]).startswith(b"\x89PNG"):
            found.append("a figure that is no PNG")
        elif not cell["metadata"].get("alt"):
            found.append("a figure without a text for those who cannot see it")
    return found


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["inside-the-capsules", "own-images", "quick-start"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_in_one_form_with_figures_alone(path):
    notebook = read(path)
    assert not faults(notebook)
    assert path.read_text() == written(notebook), "write it by docs/run_notebooks.py"
    assert path.stat().st_size < LARGEST
    assert any(cell["outputs"] for cell in code_cells(notebook))
    paths = re.findall(r"(?:/home|/root|/tmp|/work|/Users|[A-Z]:\\)\S*", sources(notebook))
    assert not paths, f"paths of one machine: {paths}"
    assert "".join(code_cells(notebook)[0]["source"]) == INSTALL.format(address=address())


def test_a_notebook_with_more_would_be_noticed():
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": [], "execution_count": None, "outputs": []}
    good = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    assert not faults(good)
    text = {"data": {"text/plain": ["1"]}, "metadata": {}, "output_type": "display_data"}
    for change in ({"execution_count": 1}, {"outputs": [text]}, {"id": "a b"}, {"source": [1]}, {"name": "a"}):
        assert len(faults(good | {"cells": [cell | change]})) == 1, change
    assert faults(good | {"nbformat_minor": 4}) and faults(good | {"cells": [cell, cell]})
    assert faults(filled({"cells": [cell | {"metadata": {}}]} | good, {0: b"\x89PNG"}))  # no alt


def test_links_lead_to_pages_and_commands_exist():
    n_commands = 0
    for path in NOTEBOOKS:
        text = sources(read(path))
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert (FOLDER / link).exists(), f"{path.name}: {link}"
        for line in re.findall(r"^!\{sys\.executable\} -m torchcaps (.+)$", text, re.MULTILINE):
            understood(shlex.split(line), whole=True)
            n_commands += 1
    assert n_commands >= 2


def test_a_cell_runs_as_in_a_notebook(capfd):
    class Figure:
        def _repr_png_(self):
            return b"png"

    names = {"Figure": Figure, "_command": lambda line: print("ran", line)}
    assert run_cell("x = 2\nx + 1", names) is None
    assert run_cell("Figure()\nx", names) is None  # not the last line
    assert run_cell("!ls\nFigure()", names) == b"png"
    assert capfd.readouterr().out == "3\n2\nran ls\n"
    with pytest.raises(NameError):
        run_cell("print(y)", names)


def test_our_figures_show_themselves():
    pytest.importorskip("matplotlib", reason="pip install 'torchcaps[experiments]'")
    from torchcaps.figures.canvas import DPI, canvas

    with canvas(2, 1) as figure:
        figure.subplots().plot([0, 1])
    header = figure._repr_png_()[:24]
    assert header[:4] == b"\x89PNG"
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (2 * DPI, DPI)


def test_a_page_of_the_site_has_text_code_and_figures_and_offers_colab():
    pytest.importorskip("myst_parser", reason="pip install 'torchcaps[docs]'")
    from sphinx_parts.notebooks import as_myst

    code = {"cell_type": "code", "metadata": {"alt": "A line"}, "source": ["x = 1\n", "x"]}
    code["outputs"] = [{"data": {"image/png": "iVBO"}}]
    cells = [{"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]}, code, {**code, "source": ["!ls"]}]
    page = as_myst({"cells": cells}, "one.ipynb", "https://github.com/owner/name/blob/main/")
    assert page.startswith("# Title\n\nText.\n\n[Open in Colab](https://colab.research.google.com/github/owner/name/")
    assert "/blob/main/docs/notebooks/one.ipynb) · {download}`" in page
    assert "```python\nx = 1\nx\n```\n\n![A line](data:image/png;base64,iVBO)" in page and "```sh\n!ls" in page
    assert "colab" not in as_myst({"cells": cells}, "one.ipynb")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_draws_the_stored_figures(path):
    for module in ("matplotlib", "sklearn", "PIL"):
        pytest.importorskip(module, reason="pip install 'torchcaps[experiments]'")
    drawn = run(path)
    stored = {number for number, cell in enumerate(code_cells(read(path))) if cell["outputs"]}
    assert set(drawn) == stored
    assert all(figure.startswith(b"\x89PNG") for figure in drawn.values())

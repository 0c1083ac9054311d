"""Show notebooks as pages: text as it stands, cells as python blocks, stored figures below them. Nothing is run.

A figure's `alt` text is in the metadata of its cell. A page offers its notebook for download, and, where the address
of the repository (conf.py) is one of GitHub's, in Colab.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.sphinx_ import Parser

COLAB = "https://colab.research.google.com/github/"
GITHUB = "https://github.com/"


def as_myst(notebook: dict[str, Any], name: str, repository: str = "") -> str:
    """Convert a notebook to the text of a page; `name` is that of its file in docs/notebooks."""
    title, *rest = (part for cell in notebook["cells"] for part in _parts(cell))
    return "\n\n".join([title, _offer(name, repository), *rest]) + "\n"


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```{'sh' if source.startswith('!') else 'python'}\n{source}\n```"
    for output in cell["outputs"]:
        yield f"![{cell['metadata'].get('alt', '')}](data:image/png;base64,{output['data']['image/png']})"


def _offer(name: str, repository: str) -> str:
    download = f"{{download}}`Download this page as a notebook <{name}>`"
    if not repository.startswith(GITHUB):
        return f"{download}."
    return f"[Open in Colab]({COLAB}{repository.removeprefix(GITHUB).rstrip('/')}/docs/notebooks/{name}) · {download}"


class NotebookParser(Parser):
    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        env = document.settings.env
        name = Path(env.doc2path(env.docname)).name
        super().parse(as_myst(json.loads(inputstring), name, env.config.repository), document)


def setup(app: Any) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

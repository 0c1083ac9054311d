"""Run the notebooks and store their figures in them: `python docs/run_notebooks.py [NAME ...]`, all without a name.

Needs `torchcaps[experiments]`. Each notebook runs in a process of its own, in an empty folder. A figure is kept where
it is the value of a cell's last line; nothing else that a cell shows is stored. The first cell of code, which installs
torchcaps where it is missing, is written here too: its address is `Repository` of pyproject.toml.
"""

import ast
import base64
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from torchcaps.runtime.project import PLACEHOLDER

HERE = Path(__file__).parent
FOLDER = HERE / "notebooks"
INSTALL = """# Install torchcaps where it is missing, as on Colab. In a checkout this does nothing.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("torchcaps") is None:
    source = "torchcaps[experiments] @ git+{address}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)"""


def address() -> str:
    """Return the repository's address, a placeholder until a release fills it in."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository", f"{PLACEHOLDER}torchcaps")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def written(notebook: dict[str, Any]) -> str:
    """Write a notebook in the one form that is committed, so that a change of a word is a change of a line."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> bytes | None:
    """Run a cell as a notebook does, `!` lines as commands; return the figure that its last line is, if it is one."""
    lines = [f"_command({line[1:]!r})" if line.startswith("!") else line for line in source.split("\n")]
    *body, last = ast.parse("\n".join(lines)).body or [ast.Pass()]
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([*body, last], []), "cell", "exec"), names)
        return None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if hasattr(value, "_repr_png_"):
        return value._repr_png_()
    if value is not None:
        print(repr(value))
    return None


def command(line: str) -> None:
    words = [word.replace("{sys.executable}", sys.executable) for word in shlex.split(line)]
    subprocess.run(words, check=True)


def run_here(path: Path, out: Path) -> None:
    """Run all cells of a notebook in this process and folder; the figure of cell n goes to out/n.png."""
    names: dict[str, Any] = {"__name__": "__main__", "_command": command}
    for number, cell in enumerate(code_cells(read(path))):
        if (figure := run_cell("".join(cell["source"]), names)) is not None:
            (out / f"{number}.png").write_bytes(figure)


def run(path: Path) -> dict[int, bytes]:
    """Run a notebook in a fresh process and an empty folder; return its figures by the number of the cell of code."""
    with tempfile.TemporaryDirectory() as folder:
        work, out = Path(folder) / "work", Path(folder) / "out"
        work.mkdir()
        out.mkdir()
        paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        args = [sys.executable, __file__, "--here", str(path.resolve()), str(out)]
        subprocess.run(args, cwd=work, env=environment, check=True)
        return {int(file.stem): file.read_bytes() for file in sorted(out.glob("*.png"))}


def filled(notebook: dict[str, Any], figures: dict[int, bytes]) -> dict[str, Any]:
    """Put the install cell and the figures into a notebook, and nothing else that running left."""
    for number, cell in enumerate(code_cells(notebook)):
        if number == 0:
            cell["source"] = INSTALL.format(address=address()).splitlines(keepends=True)
        cell["execution_count"], cell["outputs"] = None, []
        if number in figures:
            data = {"image/png": base64.b64encode(figures[number]).decode()}
            cell["outputs"] = [{"data": data, "metadata": {}, "output_type": "display_data"}]
    return notebook


def main(names: list[str]) -> None:
    from pictures import small

    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            figures = {number: small(picture) for number, picture in run(path).items()}
            path.write_text(written(filled(read(path), figures)))
            print(path, f"{len(figures)} figures, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        run_here(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(sys.argv[1:])

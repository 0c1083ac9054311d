"""Write the generated tables into README.md and docs/: `python -m torchcaps.readme` (or `make table`).

A table stands between `<!-- table NAME -->` and `<!-- end -->`; NAME is a paper, or a paper and `ema` for averaged weights, or a
paper and `run` for the rows that have results, or a paper and `only` with the names of rows.
"""

import re
from pathlib import Path

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.recipe import find
from torchcaps.results import markdown, table

MARKED = re.compile(
    r"(<!-- table (?P<paper>\w+)(?P<how> ema| run)?(?: only(?P<names>( [\w-]+)+))? -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def filled(text: str, results: Path) -> str:
    """The text with every marked table computed from the result files."""

    def fill(found: re.Match[str]) -> str:
        paper = found["paper"]
        if paper not in PAPERS:
            raise ValueError(f"a table of {paper!r} is marked and there is no such paper; there are {', '.join(PAPERS)}")
        recipes = {name: recipe for name, recipe in RECIPES.items() if name.startswith(paper + "/")}
        if found["names"]:
            recipes = {name: find(name, recipes) for name in (f"{paper}/{row}" for row in found["names"].split())}
        rows = table(recipes, results, "_ema" if found["how"] == " ema" else "")
        return found[1] + markdown([row for row in rows if row.values or not found["how"]]) + found["end"]

    return MARKED.sub(fill, text)


def pages(home: Path) -> list[Path]:
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages(Path()):
        page.write_text(filled(page.read_text(), Path("results")))

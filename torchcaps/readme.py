"""Write the generated tables into README.md and docs/: `python -m torchcaps.readme` (or `make table`).

A table stands between `<!-- table NAME -->` and `<!-- end -->`; NAME is a paper, or a paper and `ema` for averaged weights.
"""

import re
from pathlib import Path

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.results import markdown, table

MARKED = re.compile(r"(<!-- table (?P<paper>\w+)(?P<ema> ema)? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, results: Path) -> str:
    """The text with every marked table computed from the result files."""

    def fill(found: re.Match[str]) -> str:
        paper = found["paper"]
        if paper not in PAPERS:
            raise ValueError(f"a table of {paper!r} is marked and there is no such paper; there are {', '.join(PAPERS)}")
        recipes = {name: recipe for name, recipe in RECIPES.items() if name.startswith(paper + "/")}
        return found[1] + markdown(table(recipes, results, "_ema" if found["ema"] else "")) + found[4]

    return MARKED.sub(fill, text)


def pages(home: Path) -> list[Path]:
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages(Path()):
        page.write_text(filled(page.read_text(), Path("results")))

"""Write the generated tables into README.md and docs/: `python -m torchcaps.readme` (or `make table`).

A table stands between `<!-- table NAME -->` and `<!-- end -->`; NAME is a paper, or a paper and `ema` for averaged weights, or a
paper and `run` for the rows that have results, or a paper and `only` with the names of rows; `bare` before that leaves out what else
was measured. `<!-- measures PAPER NAME ... -->` has a column for each of those instead, of all rows or of those after `only`.
`<!-- settings PAPER START NAME ... -->` has those columns for the settings whose names begin with START, of which no row is claimed.
`<!-- choices PAPER METRIC only NAME ... -->` is of recipes that make no claim: what was tried on a part that was kept aside.
"""

import re
from pathlib import Path

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.recipe import Recipe, find
from torchcaps.results import choices, markdown, measures, settings, table

MARKED = re.compile(
    r"(<!-- table (?P<paper>\w+)(?P<how> ema| run)?(?P<bare> bare)?(?: only(?P<names>( [\w-]+)+))? -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)
MEASURED = re.compile(
    r"(<!-- measures (?P<paper>\w+)(?P<measures>( (?!only )\w+)+)(?: only(?P<names>( [\w-]+)+))? -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)
CHOSEN = re.compile(r"(<!-- choices (?P<paper>\w+) (?P<metric>\w+) only(?P<names>( [\w-]+)+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
TRIED = re.compile(r"(<!-- settings (?P<paper>\w+) (?P<start>[\w-]+)(?P<measures>( \w+)+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def filled(text: str, results: Path) -> str:
    """The text with every marked table computed from the result files."""

    def fill(found: re.Match[str]) -> str:
        rows = table(recipes_of(found), results, "_ema" if found["how"] == " ema" else "")
        return found[1] + markdown([row for row in rows if row.values or not found["how"]], bool(found["bare"])) + found["end"]

    def measure(found: re.Match[str]) -> str:
        names, rows = found["measures"].split(), table(recipes_of(found), results)
        known = {name.split(".")[1] for row in rows for name in row.recipe.claim.beside}
        if unknown := set(names) - known:
            there = f"there are {', '.join(sorted(known))}"
            raise ValueError(f"no row of {found['paper']} is measured by {', '.join(sorted(unknown))}; {there}")
        return found[1] + measures(rows, names) + found["end"]

    def compare(found: re.Match[str]) -> str:
        tried = {name: recipe for name, recipe in recipes_of(found).items() if name.split("/")[1].startswith(found["start"])}
        if not tried:
            raise ValueError(f"no setting of {found['paper']} begins with {found['start']!r}; `torchcaps ls` lists them all")
        return found[1] + settings(tried, results, found["measures"].split()) + found["end"]

    def choose(found: re.Match[str]) -> str:
        recipes = recipes_of(found)
        if rows := [name for name, recipe in recipes.items() if recipe.claim]:
            raise ValueError(f"{', '.join(rows)} is a row, not a choice: it belongs into a table")
        return found[1] + choices(recipes, results, found["metric"]) + found["end"]

    def recipes_of(found: re.Match[str]) -> dict[str, Recipe]:
        paper, names = found["paper"], found.groupdict().get("names")
        if paper not in PAPERS:
            raise ValueError(f"a table of {paper!r} is marked and there is no such paper; there are {', '.join(PAPERS)}")
        recipes = {name: recipe for name, recipe in RECIPES.items() if name.startswith(paper + "/")}
        return {name: find(name, recipes) for name in (f"{paper}/{row}" for row in names.split())} if names else recipes

    return TRIED.sub(compare, CHOSEN.sub(choose, MEASURED.sub(measure, MARKED.sub(fill, text))))


def pages(home: Path) -> list[Path]:
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages(Path()):
        page.write_text(filled(page.read_text(), Path("results")))

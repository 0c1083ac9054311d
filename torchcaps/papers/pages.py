"""Write the generated tables and numbers into README.md and docs/: `python -m torchcaps.readme` (or `make table`).

A table stands between `<!-- table NAME -->` and `<!-- end -->`; NAME is a paper, or a paper and `ema` for averaged weights, or a
paper and `run` for the rows that have results, or a paper and `only` with the names of rows; `bare` before that leaves out what else
was measured. `<!-- measures PAPER NAME ... -->` has a column for each of those instead, of all rows or of those after `only`.
`<!-- tried PAPER NAME ... only RECIPE ... -->` has those columns for recipes that make no claim: what was tried on a part that was kept
aside; NAME is a metric of the tests or an extra, or `PART.METRIC`, or `seconds` of training. In place of recipes `START-*` is all that
begin so, in the order of the last column; `told` before the names has what each recipe says of itself and its command, not its name.

A number in a sentence has behind it where it is from: `89.95<!-- hauser2019/mnist probe_accuracy -->`, with a name as for what was tried.
It is the mean over the seeds and keeps the decimals that are written; `97.98 ± 0.40` has the sd too. Behind the name `least`, `most` or
`seed 0` is another number than the mean; `100-error_percent` is what is missing to 100.
"""

import re
from pathlib import Path
from statistics import mean, stdev

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.results.store import by_seed, markdown, measures, spread, table, tried
from torchcaps.train.recipe import Recipe, find

ONLY = r"(?: only(?P<names>( [\w-]+\*?)+))"
MARKS = {
    "table": rf"(?P<paper>\w+)(?P<how> ema| run)?(?P<bare> bare)?{ONLY}?",
    "measures": rf"(?P<paper>\w+)(?P<measures>( (?!only )\w+)+){ONLY}?",
    "tried": rf"(?P<paper>\w+)(?P<told> told)?(?P<measures>( (?!only )[\w.]+)+){ONLY}",
}
# no comment inside: a mark without an end shall not take that of the next
MARKED = re.compile(rf"(?P<mark><!-- (?P<kind>{'|'.join(MARKS)}) (?P<words>[^<>]+) -->\n)(?:(?!<!--).)*(?P<end><!-- end -->)", re.DOTALL)
NUMBER = re.compile(
    r"(?P<written>(?<![\d.,])-?\d+(?:\.(?P<decimals>\d+))?(?: ± \d+(?:\.(?P<sd>\d+))?)?|not run yet)"
    r"(?P<mark><!-- (?P<recipe>\w+/[\w-]+) (?P<rest>100-)?(?P<name>[\w./-]+)(?: (?P<which>least|most|seed \d+))? -->)"
)
NAMES = re.compile(r"<!-- names [\w.]+ -->")  # filled by docs/sphinx_parts


def filled(text: str, results: Path) -> str:
    """The text with every marked table and number computed from the result files."""
    left = text
    for understood in (MARKED, NUMBER, NAMES):
        left = understood.sub("", left)
    if odd := re.search(r"\S*<!--.*?(?:-->|$)", left, re.MULTILINE):
        kinds = f"a table begins with {', '.join(MARKS)}, and a number stands right before its mark"
        raise ValueError(f"{odd[0]!r} marks no table and no number: {kinds}; see torchcaps/readme.py")
    text = MARKED.sub(lambda found: found["mark"] + _table(found["kind"], found["words"], results) + found["end"], text)
    return NUMBER.sub(lambda found: _number(found, results) + found["mark"], text)


def _number(found: re.Match[str], results: Path) -> str:
    values = by_seed(find(found["recipe"], RECIPES), results, found["name"])
    if found["rest"]:
        values = {seed: 100 - value for seed, value in values.items()}
    which = found["which"] or ""
    if which.startswith("seed"):
        values = {seed: value for seed, value in values.items() if seed == int(which.split()[1])}
    if not values:
        return "not run yet"
    if which in ("least", "most"):
        values = {0: min(values.values()) if which == "least" else max(values.values())}
    numbers = list(values.values())
    if found["written"] == "not run yet":
        return spread(numbers)
    said = f"{mean(numbers):.{len(found['decimals'] or '')}f}"
    return said + f" ± {stdev(numbers):.{len(found['sd'] or '')}f}" * ("±" in found["written"]) if len(numbers) > 1 else said


def _table(kind: str, words: str, results: Path) -> str:
    asked = re.fullmatch(MARKS[kind], words)
    if not asked:
        raise ValueError(f"`{kind} {words}` marks no table; torchcaps/readme.py tells what stands in a mark")
    recipes = _recipes(asked["paper"], (asked["names"] or "").split())
    if kind == "tried":
        return _tried(asked, recipes, results)
    rows = table(recipes, results, "_ema" if kind == "table" and asked["how"] == " ema" else "")
    if kind == "table":
        return markdown([row for row in rows if row.values or not asked["how"]], bool(asked["bare"]))
    names, known = asked["measures"].split(), {name.split(".")[1] for row in rows for name in row.recipe.claim.beside}
    if unknown := set(names) - known:
        there = f"there are {', '.join(sorted(known))}"
        raise ValueError(f"no row of {asked['paper']} is measured by {', '.join(sorted(unknown))}; {there}")
    return measures(rows, names)


def _tried(asked: re.Match[str], recipes: dict[str, Recipe], results: Path) -> str:
    if rows := [name for name, recipe in recipes.items() if recipe.claim]:
        raise ValueError(f"{', '.join(rows)} is a row, it was not tried: it belongs into a table")
    return tried(recipes, results, asked["measures"].split(), told=bool(asked["told"]), ranked=asked["names"].endswith("*"))


def _recipes(paper: str, names: list[str]) -> dict[str, Recipe]:
    """Of a paper those of these names, in their order; or all, or all that begin as a name with a star does."""
    if paper not in PAPERS:
        raise ValueError(f"a table of {paper!r} is marked and there is no such paper; there are {', '.join(PAPERS)}")
    start = names[0].removesuffix("*") if len(names) == 1 and names[0].endswith("*") else ""
    recipes = {name: recipe for name, recipe in RECIPES.items() if name.startswith(f"{paper}/{start}")}
    if not recipes:
        raise ValueError(f"no recipe of {paper} begins with {start!r}; `torchcaps ls` lists them all")
    return {name: find(name, recipes) for name in (f"{paper}/{row}" for row in names)} if names and not start else recipes


def pages(home: Path) -> list[Path]:
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages(Path()):
        page.write_text(filled(page.read_text(), Path("results")))

"""Fill the generated tables and numbers of README.md and docs/: `python -m torchcaps.papers.pages` (or `make table`).

It also writes the means that the package ships, torchcaps/results/means.json.

A table stands between `<!-- table NAME -->` and `<!-- end -->`. NAME is a paper, optionally followed by
- `ema`: results of averaged weights;
- `run`: only rows that have results;
- `bare`: without further metrics;
- `only ROW ...`: only these rows.
`<!-- measures PAPER NAME ... -->` makes one column per metric NAME, for all rows or for those after `only`.
`<!-- pairs GROUP -->` sets capsules beside baselines (against_cnn.py).
`<!-- routings SET -->` sets routings beside each other (routings/table.py); SET may be `all` or `between`.
`<!-- records SET ... -->` lists times to accuracy (records/table.py).

A number in a sentence carries its source: `89.95<!-- hauser2019/mnist probe_accuracy -->`. The mark names a row, or a
setting of tuning.csv, and a test metric, an extra, `PART.METRIC` or `seconds`. The number is the mean over the seeds
and keeps its decimals; `97.98 ± 0.40` includes the sd. `least`, `most` or `seed 0` after the name replaces the mean;
`by NAME of 10` takes, of the ten lowest seeds, the one that has the least of another number, once there are ten: a
selection, which the page has to call so.
`ms over ROW` and `memory_bytes over ROW` are ratios of training steps in routings/costs.csv.
`100-error_percent` is 100 minus the metric. A dagger behind the mark, `89.95<!-- ... -->†`, is generated: this number
cannot be recomputed. Its note is filled in between `<!-- unchecked -->` and `<!-- end -->`, or added to the page's end.
"""

import re
from pathlib import Path
from statistics import mean, stdev

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.papers.against_cnn import table_of
from torchcaps.papers.records.table import records_table
from torchcaps.papers.routings.costs import read_costs
from torchcaps.papers.routings.table import routings_table
from torchcaps.results import means
from torchcaps.results.claims import Recipe, find
from torchcaps.results.statistics import NOTE, UNCHECKED, by_seed, recomputable, spread
from torchcaps.results.tables import markdown, measures, table
from torchcaps.results.tuning import read_tuning, tuned, tuning_path

ONLY = r"(?: only(?P<names>( [\w-]+)+))"
MARKS = {
    "table": rf"(?P<paper>\w+)(?P<how> ema| run)?(?P<bare> bare)?{ONLY}?",
    "measures": rf"(?P<paper>\w+)(?P<measures>( (?!only )\w+)+){ONLY}?",
    "pairs": r"(?P<group>\w+)",
    "routings": r"(?P<set>\w+)",
    "records": r"(?P<sets>\w+(?: \w+)*)",
}
# no comment inside: a mark without an end must not match the end of the next one
MARKED = re.compile(
    rf"(?P<mark><!-- (?P<kind>{'|'.join(MARKS)}) (?P<words>[^<>]+) -->\n)(?:(?!<!--).)*(?P<end><!-- end -->)", re.DOTALL
)
NUMBER = re.compile(
    r"(?P<written>(?<![\d.,])-?\d+(?:\.(?P<decimals>\d+))?(?: ± \d+(?:\.(?P<sd>\d+))?)?|not run yet)"
    r"(?P<mark><!-- (?P<recipe>\w+/[\w=.,-]+) (?P<rest>100-)?(?P<name>[\w./-]+)"
    rf"(?: (?P<which>least|most|seed \d+|by [\w./-]+ of [1-9]\d*|over [\w-]+))? -->){UNCHECKED}?"
)
NOTED = re.compile(r"<!-- unchecked -->\n(?:(?!<!--).)*<!-- end -->", re.DOTALL)
RATIOS = ("ms", "memory_bytes")
NAMES = re.compile(r"<!-- names [\w.]+(?: first(?: [\w.]+)+)? -->")  # filled by docs/sphinx_parts


def filled(text: str, results: Path) -> str:
    """Fill every marked table and number of a text from the result files."""
    left = text
    for understood in (MARKED, NOTED, NUMBER, NAMES):
        left = understood.sub("", left)
    if odd := re.search(r"\S*<!--.*?(?:-->|$)", left, re.MULTILINE):
        kinds = f"a table begins with {', '.join(MARKS)}, and a number stands right before its mark"
        raise ValueError(f"{odd[0]!r} marks no table and no number: {kinds}; see torchcaps/papers/pages.py")
    text = MARKED.sub(lambda found: found["mark"] + _table(found["kind"], found["words"], results) + found["end"], text)
    text = NUMBER.sub(lambda found: _number(found, results) + found["mark"] + _dagger(found, results), text)
    return _noted(text)


def _dagger(found: re.Match[str], results: Path) -> str:
    """Mark a number of a tuned setting, or one that its result files state without the means to recompute it."""
    if found["recipe"] not in RECIPES:
        return UNCHECKED
    if _is_ratio(found):
        return ""  # the file of costs is the source, as the page says
    return "" if recomputable(RECIPES[found["recipe"]], results, found["name"]) else UNCHECKED


def _noted(text: str) -> str:
    """Explain the dagger once on a page that has one behind a number."""
    marked = any(found[0].endswith(UNCHECKED) for found in NUMBER.finditer(text))
    if marked and not NOTED.search(text):
        text = f"{text.rstrip()}\n\n<!-- unchecked -->\n<!-- end -->\n"
    return NOTED.sub(f"<!-- unchecked -->\n{NOTE if marked else ''}\n<!-- end -->", text)


def _is_ratio(found: re.Match[str]) -> bool:
    return (found["which"] or "").startswith("over")


def _number(found: re.Match[str], results: Path) -> str:
    values = _ratio(found, results) if _is_ratio(found) else _values(found["recipe"], found["name"], results)
    if found["rest"]:
        values = {seed: 100 - value for seed, value in values.items()}
    which = found["which"] or ""
    if which.startswith("seed"):
        values = {seed: value for seed, value in values.items() if seed == int(which.split()[1])}
    if which.startswith("by"):
        _, name, _, count = which.split()
        values = _selected(values, _values(found["recipe"], name, results), int(count))
    if not values:
        return "not run yet"
    if which in ("least", "most"):
        values = {0: min(values.values()) if which == "least" else max(values.values())}
    numbers = list(values.values())
    if found["written"] == "not run yet":
        return spread(numbers)
    said = f"{mean(numbers):.{len(found['decimals'] or '')}f}"
    if len(numbers) == 1 or "±" not in found["written"]:
        return said
    return f"{said} ± {stdev(numbers):.{len(found['sd'] or '')}f}"


def _ratio(found: re.Match[str], results: Path) -> dict[int, float]:
    """Divide the cost of one row's training step by that of another."""
    paper, row = find(found["recipe"], RECIPES).name.split("/")
    other = find(f"{paper}/{found['which'].split()[1]}", RECIPES).name.split("/")[1]
    if paper != "routings" or found["name"] not in RATIOS:
        raise ValueError(
            f"{found['recipe']} {found['name']} is no cost of a training step: costs.csv has {' and '.join(RATIOS)} "
            "of rows of routings"
        )
    costs = read_costs(results)
    if row not in costs or other not in costs:
        return {}
    one, two = costs[row], costs[other]
    if (one.device, one.batch, one.commit) != (two.device, two.batch, two.commit):
        raise ValueError(
            f"{row} and {other} were timed on another device, with another batch or other code; "
            f"time both by `torchcaps bench routings {row} {other}`"
        )
    return {0: getattr(one, found["name"]) / getattr(two, found["name"])}


def _selected(values: dict[int, float], judged: dict[int, float], count: int) -> dict[int, float]:
    """Keep the seed with the least judged number of the `count` lowest seeds that have both; none of fewer seeds."""
    seeds = sorted(values.keys() & judged.keys())[:count]
    if len(seeds) < count:
        return {}
    best = min(seeds, key=judged.__getitem__)
    return {best: values[best]}


def _values(name: str, metric: str, results: Path) -> dict[int, float]:
    """Read a metric by seed, of a row or of a tuned setting."""
    paper, _, run = name.partition("/")
    if name not in RECIPES and any(line.run == run for line in read_tuning(tuning_path(results, paper))):
        return tuned(results, paper, run, metric)
    return by_seed(find(name, RECIPES), results, metric)


def _table(kind: str, words: str, results: Path) -> str:
    asked = re.fullmatch(MARKS[kind], words)
    if not asked:
        raise ValueError(f"`{kind} {words}` marks no table; torchcaps/papers/pages.py tells what stands in a mark")
    if kind == "pairs":
        return table_of(asked["group"], results)
    if kind == "routings":
        return routings_table(asked["set"], results)
    if kind == "records":
        return records_table(asked["sets"].split(), results)
    recipes = _recipes(asked["paper"], (asked["names"] or "").split())
    rows = table(recipes, results, "_ema" if kind == "table" and asked["how"] == " ema" else "")
    if kind == "table":
        return markdown([row for row in rows if row.values or not asked["how"]], bool(asked["bare"]))
    names, known = asked["measures"].split(), {name.split(".")[1] for row in rows for name in row.recipe.claim.beside}
    if unknown := set(names) - known:
        there = f"there are {', '.join(sorted(known))}"
        raise ValueError(f"no row of {asked['paper']} is measured by {', '.join(sorted(unknown))}; {there}")
    return measures(rows, names)


def _recipes(paper: str, names: list[str]) -> dict[str, Recipe]:
    """Select the rows of a paper with these names, in this order, or all rows."""
    if paper not in PAPERS:
        raise ValueError(f"a table of {paper!r} is marked and there is no such paper; there are {', '.join(PAPERS)}")
    recipes = {name: recipe for name, recipe in RECIPES.items() if name.startswith(f"{paper}/")}
    return {name: find(name, recipes) for name in (f"{paper}/{row}" for row in names)} if names else recipes


def all_rows(paper: str, results: Path) -> str:
    """Write the page of a paper's result files: rows with results (all, if none has any) and their commands."""
    title = f"# {paper}: results\n\n"
    page = Path("docs/papers") / f"{paper}.md"
    links = f"Verdicts: [the paper's page](../../{page}). " if page.exists() else ""
    every = table(_recipes(paper, []), results)
    rows = [row for row in every if row.values] or every
    about = "Mean ± sd over the seeds; generated from the files in this folder by `make table`."
    return f"{title}{links}{about}\n\n{markdown(rows, bare=True)}"


def pages(home: Path) -> list[Path]:
    return [home / "README.md", *sorted((home / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages(Path()):
        page.write_text(filled(page.read_text(), Path("results")))
    for paper in sorted(path.name for path in Path("results").iterdir() if path.is_dir()):
        (Path("results") / paper / "README.md").write_text(all_rows(paper, Path("results")))
    means.PATH.write_text(means.means_text(RECIPES, Path("results")))

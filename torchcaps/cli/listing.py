"""`torchcaps ls` and `torchcaps table`: recipes, printed numbers and ours."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer

from torchcaps import __version__
from torchcaps.cli.columns import AsJson, cut, tell, tell_facts, tell_json
from torchcaps.cli.options import console
from torchcaps.cli.routings import list_routings
from torchcaps.papers import PAPERS, RECIPES
from torchcaps.results import means
from torchcaps.results.claims import Recipe, find
from torchcaps.results.statistics import NOTE, label
from torchcaps.results.tables import Row, markdown, table
from torchcaps.runtime.environment import device_in_words

Folder = Annotated[
    Path | None,
    typer.Option("--results", help="folder of result files; default: results, then the means shipped with torchcaps"),
]


def list_recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="a paper, parts of names that must all match, or one whole name"),
    ] = None,
    printed: Annotated[bool, typer.Option("--printed", help="only rows whose number the paper printed")] = False,
    run: Annotated[bool, typer.Option("--run", help="only rows that we ran")] = False,
    every: Annotated[bool, typer.Option("--all", help="every recipe, not the papers alone")] = False,
    routings: Annotated[bool, typer.Option("--routings", help="the routings of capsule layers instead")] = False,
    results: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List recipes with the paper's number and ours; without a word, the papers.

    `torchcaps ls sabour2017 --printed` filters; `torchcaps ls sabour2017/mnist-r3-recon` shows one recipe in full.
    """
    words = words or []
    if routings:
        if words or printed or run or every or results:
            raise ValueError("--routings lists routings, not recipes; give it alone, or with --json")
        list_routings(as_json)
        return
    alone = RECIPES.get(words[0]) if len(words) == 1 else None
    found = {alone.name: alone} if alone else {name: RECIPES[name] for name in _matching(words)}
    rows = {row.recipe.name: row for row in _rows(found, results)}
    found = {
        name: recipe
        for name, recipe in found.items()
        if (not printed or (recipe.claim and recipe.claim.printed is not None))
        and (not run or (name in rows and rows[name].values))
    }
    if as_json:
        tell_json([_recipe_json(recipe, rows.get(name)) for name, recipe in found.items()])
    elif alone:
        _tell_one(alone, rows.get(alone.name))
    elif not (words or printed or run or every):
        _tell_papers(rows)
    else:
        _tell_recipes(found, rows)


def print_table(
    paper: Annotated[str | None, typer.Argument(help="a paper such as sabour2017; left out: the papers")] = None,
    results: Folder = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    as_json: AsJson = False,
    ema: Annotated[bool, typer.Option(help="show results of the averaged (EMA) weights")] = False,
) -> None:
    """Print a paper's numbers beside ours: mean, standard deviation and number of seeds."""
    if paper is None:
        if as_markdown or ema:
            raise ValueError(f"--markdown and --ema need a paper; there are {', '.join(PAPERS)}")
        _tell_tables(results, as_json)
        return
    if paper not in PAPERS:
        raise ValueError(f"no paper {paper!r}; there are {', '.join(PAPERS)}")
    rows = _rows(recipes_of_paper(paper), results, "_ema" if ema else "")
    if as_json:
        tell_json([_row_json(row) for row in rows])
    elif as_markdown:
        print(markdown(rows), end="")
    else:
        tell_rows(paper, rows)


def recipes_of_paper(paper: str) -> dict[str, Recipe]:
    """Select the recipes of a paper."""
    return {name: recipe for name, recipe in RECIPES.items() if name.startswith(paper + "/")}


def tell_table(paper: str, results: Path) -> None:
    """Print the rows of a paper that have result files in this folder, and say how many have none."""
    rows = table(recipes_of_paper(paper), results)
    done = [row for row in rows if row.values or row.stale]
    tell_rows(paper, done)
    if left := len(rows) - len(done):
        console.print(f"{left} of {len(rows)} rows: not run yet", highlight=False)


def tell_rows(paper: str, rows: list[Row]) -> None:
    """Print rows by table and metric, one line each; remarks on single rows follow."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.recipe.claim.table, row.metric), []).append(row)
    console.print(cut(title_of(paper), console.width), style="bold", highlight=False)
    for (place, metric), group in groups.items():
        console.print()
        cells = [
            (short(row.recipe), printed_of(row.recipe, sd=True), ours_of(row, sd=True), row.recipe.claim.row)
            for row in group
        ]
        if place.replace(".", "").isdigit():
            place = f"section {place}" if "." in place else f"table {place}"
        tell(("row", "printed", "ours", "what it is"), cells, f"{place}, {metric}")
    _tell_remarks(rows)


def _tell_remarks(rows: list[Row]) -> None:
    marked = [row for row in rows if row.values and row.behind_n()]
    shipped = [row for row in rows if row.shipped]
    if marked or shipped:
        console.print()
    for row in marked:
        console.print(f"* {short(row.recipe)}: {row.behind_n().removeprefix(', ')}", highlight=False)
    if shipped:
        some = "" if len(shipped) == sum(bool(row.values) for row in rows) else f"{len(shipped)} rows of "
        console.print(f"{some}ours: mean (number of seeds), as shipped with torchcaps {__version__}", highlight=False)


def _tell_tables(results: Path | None, as_json: bool) -> None:
    """Print one line per paper: its rows, and how many of them were run."""
    counts = {}
    for paper in PAPERS:
        rows = _rows(recipes_of_paper(paper), results)
        counts[paper] = (len(rows), sum(bool(row.values) for row in rows))
    if as_json:
        tell_json(
            [{"paper": name, "rows": n, "run": n_run, "title": title_of(name)} for name, (n, n_run) in counts.items()]
        )
        return
    cells = [(name, *map(str, numbers), title_of(name)) for name, numbers in counts.items()]
    tell(("paper", "rows", "run", "what it is"), cells)
    console.print("\ntorchcaps table PAPER   its numbers beside ours", highlight=False, soft_wrap=True)


def _tell_papers(rows: Mapping[str, Row]) -> None:
    """Print one line per paper."""
    cells = []
    for paper in PAPERS:
        recipes = recipes_of_paper(paper)
        n_printed = sum(bool(recipe.claim) and recipe.claim.printed is not None for recipe in recipes.values())
        n_run = sum(name in rows and bool(rows[name].values) for name in recipes)
        cells.append((paper, str(len(recipes)), str(n_printed), str(n_run), title_of(paper)))
    tell(("paper", "recipes", "printed", "run", "what it is"), cells)
    console.print(
        "\ntorchcaps ls PAPER        its recipes, with the paper's number and ours\n"
        "torchcaps ls PAPER/NAME   one recipe in full\n"
        "torchcaps ls --all        every recipe; --printed, --run and words filter",
        highlight=False,
        soft_wrap=True,
    )


def _tell_recipes(found: Mapping[str, Recipe], rows: Mapping[str, Row]) -> None:
    """Print one line per recipe under the name of its paper."""
    papers = dict.fromkeys(name.partition("/")[0] for name in found)
    for number, paper in enumerate(papers):
        if number:
            console.print()
        cells = [
            (short(recipe), printed_of(recipe), ours_of(rows[name]) if name in rows else "", said_of(recipe))
            for name, recipe in found.items()
            if name.startswith(paper + "/")
        ]
        tell((f"{paper}/", "printed", "ours", "what it is"), cells, title_of(paper))
    if not found:
        console.print("none; `torchcaps ls` counts how many are printed and run")
    _tell_remarks([rows[name] for name in found if name in rows])


def _tell_one(recipe: Recipe, row: Row | None) -> None:
    """Print all that is known of a recipe without training it."""
    claim, facts = recipe.claim, [("recipe", recipe.name), ("about", " ".join(recipe.about.split()))]
    if claim:
        facts += [("table", f"{claim.table}: {claim.row}"), ("metric", claim.metric)]
    if row:
        facts += [("printed", row.printed()), ("ours", row.ours(bare=True))]
    if row and row.values:
        facts += [("device", device_in_words(row.device)), ("minutes", f"{row.minutes:.2g} a seed")]
        facts += [("from", f"torchcaps {__version__}, as shipped" if row.shipped else "result files")]
    run = recipe.make()
    facts.append(("data", str(run.data)))
    if run.needs:
        facts.append(("needs", ", ".join(run.needs)))
    facts += [("run it", row.command() if row else f"torchcaps train {recipe.name}")]
    facts += [("settings", f"torchcaps show {recipe.name}")]
    tell_facts(facts)
    if row and row.beside:
        console.print()
        cells = [(label(name), spread_of(values) + row.mark(name), "") for name, values in row.beside]
        tell(("also measured", "mean ± sd", ""), cells)
        if any(row.mark(name) for name, _ in row.beside):
            console.print(f"\n{NOTE}", highlight=False)


def _matching(words: list[str]) -> list[str]:
    """Select the names that contain every word; the name of a paper stands for its recipes."""
    parts = [f"{word}/" if word in PAPERS else word for word in words]
    names = [
        name for name in RECIPES if all(name.startswith(part) if part.endswith("/") else part in name for part in parts)
    ]
    if words and not names:
        find(words[0] if len(words) == 1 else " ".join(words), RECIPES)  # raises, with near names
    return names


def _rows(recipes: Mapping[str, Recipe], results: Path | None, extra: str = "") -> list[Row]:
    """Build rows from a named folder alone, or from `results` and the shipped means."""
    if results is not None:
        return table(recipes, results, extra)
    return means.with_shipped(recipes, Path("results"), extra)


def _row_json(row: Row) -> dict[str, Any]:
    return _claim_json(row.recipe) | means.plain(row) | {"shipped": row.shipped, "command": row.command()}


def _recipe_json(recipe: Recipe, row: Row | None) -> dict[str, Any]:
    about = {"about": " ".join(recipe.about.split()), "data": str(recipe.make().data)}
    return _row_json(row) | about if row else _claim_json(recipe) | about


def _claim_json(recipe: Recipe) -> dict[str, Any]:
    claim = recipe.claim
    printed = {name: getattr(claim, name, None) for name in ("table", "row", "printed", "printed_sd", "selected")}
    return {"recipe": recipe.name, **printed}


def title_of(paper: str) -> str:
    """Return the title of a paper: the first sentence of its docstring."""
    return (import_module(f"torchcaps.papers.{paper}").__doc__ or paper).splitlines()[0].rstrip(".")


def short(recipe: Recipe) -> str:
    """Return the name of a recipe within its paper."""
    return recipe.name.partition("/")[2]


def said_of(recipe: Recipe) -> str:
    """Describe a recipe in a few words: the paper's row, or the first line of its docstring."""
    return recipe.claim.row if recipe.claim else recipe.about.splitlines()[0]


def printed_of(recipe: Recipe, sd: bool = False) -> str:
    """Format the printed number without the conditions of its choice."""
    claim = recipe.claim
    if claim is None or claim.printed is None:
        return "-"
    return f"{claim.printed:g}" + (f" ± {claim.printed_sd:g}" if sd and claim.printed_sd is not None else "")


def ours_of(row: Row, sd: bool = False) -> str:
    """Format mean and number of seeds; an asterisk points to a remark."""
    if not row.values:
        return "stale" if row.stale else "not run yet"
    values = tuple(row.values.values())
    n = f"of {len(row.together)}" if row.together else str(len(values))  # an ensemble is one number
    return f"{spread_of(values) if sd else f'{mean(values):.3f}'} ({n}){'*' if row.behind_n() else ''}"


def spread_of(values: tuple[float, ...]) -> str:
    """Format the mean, and ± sd of several values, to three decimals."""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")

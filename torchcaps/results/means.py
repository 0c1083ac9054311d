"""Means that the package ships, so that tables show our numbers where the result files are not.

`make table` writes means.json from `results/`; its row by row form keeps differences between versions readable.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.results.claims import Recipe
from torchcaps.results.statistics import todays
from torchcaps.results.tables import Row, row_of, table

PATH = Path(__file__).with_name("means.json")
EXTRAS = ("", "_ema")  # weights of the last step, averaged weights
REMARKS = ("stale", "dirty", "together", "short", "unmet")


def plain(row: Row) -> dict[str, Any]:
    """Convert the numbers of a row to JSON data; remarks only where there are any."""
    values = list(row.values.values())
    numbers = {
        "metric": row.metric,
        "mean": mean(values) if values else None,
        "sd": stdev(values) if len(values) > 1 else None,
        "n": len(row.together) or len(values),
        "by_seed": {str(seed): value for seed, value in row.values.items()},
        "device": row.device,
        "minutes": row.minutes,
    }
    remarks = {name: getattr(row, name) for name in REMARKS if getattr(row, name)}
    beside = {"beside": {name: list(found) for name, found in row.beside}} if row.beside else {}
    return json.loads(json.dumps(numbers | remarks | beside))


def from_plain(recipe: Recipe, stored: Mapping[str, Any]) -> Row:
    """Rebuild a row from the numbers that `plain` wrote."""
    return Row(
        recipe=recipe,
        metric=stored["metric"],
        values={int(seed): value for seed, value in stored["by_seed"].items()},
        stale=stored.get("stale", 0),
        dirty=stored.get("dirty", 0),
        together=tuple(stored.get("together", ())),
        short=tuple((steps, planned) for steps, planned in stored.get("short", ())),
        unmet=stored.get("unmet", 0),
        beside=tuple((name, tuple(found)) for name, found in stored.get("beside", {}).items()),
        device=stored["device"],
        minutes=stored["minutes"],
        shipped=True,
    )


def means_text(recipes: Mapping[str, Recipe], folder: Path) -> str:
    """Write the content of means.json: a line for each row and kind of weights that has results."""
    lines = []
    for recipe in recipes.values():
        if recipe.claim is None:
            continue
        results = todays(recipe, folder)
        rows = [row for extra in EXTRAS if (row := row_of(recipe, results, extra)).values]
        if rows:
            lines.append(f"{json.dumps(recipe.name)}: {json.dumps([plain(row) for row in rows])}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@cache
def shipped() -> dict[str, list[dict[str, Any]]]:
    """Read the means that came with the package, by recipe."""
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def with_shipped(recipes: Mapping[str, Recipe], folder: Path, extra: str = "") -> list[Row]:
    """Build the table of a paper from result files, and from the shipped means where a row has no result file."""
    return [row if row.values or row.stale else _shipped(row) for row in table(recipes, folder, extra)]


def _shipped(row: Row) -> Row:
    """Return the shipped row of the same recipe and metric, or the row unchanged."""
    found = [each for each in shipped().get(row.recipe.name, []) if each["metric"] == row.metric]
    return from_plain(row.recipe, found[0]) if found else row

"""Tables of printed and measured results, computed from result files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.results.claims import Recipe
from torchcaps.results.statistics import (
    BEST,
    LEAST_MEMBERS,
    NOTE,
    UNCHECKED,
    ensemble_error_percent,
    label,
    least_of_curve,
    spread,
    todays,
)
from torchcaps.results.store import DEFAULT_SEEDS


@dataclass(frozen=True)
class Row:
    """One row of a table: printed and measured result.

    Example:

        from torchcaps.papers import RECIPES
        row = row_of(RECIPES["sabour2017/mnist-r3-recon"], results=([], 0))  # no result file, none of them stale
        row.printed(), row.ours()  # ('0.25 ± 0.005, mean of 3', 'not run yet')
    """

    recipe: Recipe
    metric: str  # "test.error_percent", or "test_ema.error_percent" for averaged weights
    values: dict[int, float]  # by seed
    stale: int  # number of results left out because the recipe has changed
    dirty: int  # number of counted results made by uncommitted code
    together: tuple[int, ...] = ()  # seeds of the members of an ensemble
    short: tuple[tuple[int, int], ...] = ()  # steps and planned steps of unfinished runs
    unmet: int = 0  # number of results that never met their stopping rule
    beside: tuple[tuple[str, tuple[float, ...]], ...] = ()  # further metrics: name, and values by seed
    device: str = ""  # device of the counted results
    minutes: float | None = None  # mean minutes of a counted result
    shipped: bool = False  # whether the numbers come with the package (means.py), not from result files

    def ours(self, bare: bool = False) -> str:
        """Format mean ± sd and n, with further metrics unless `bare`; "not run yet" without results."""
        if not self.values:
            return f"not run yet ({self.stale} stale)" if self.stale else "not run yet"
        values = list(self.values.values())
        sd = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
        n = f"{len(self.together)} together" if self.together else f"n={len(values)}"
        shown = [] if bare else [(name, f"{mean(found):.3f}{self.mark(name)}") for name, found in self.beside]
        # a name that is a sentence ends in a colon
        names = {name: name if label(name) == name else f"{label(name)}:" for name, _ in shown}
        beside = "".join(f"; {names[name]} {number}" for name, number in shown)
        return f"{mean(values):.3f}{sd} ({n}{self.behind_n()}){beside}"

    @property
    def unchecked(self) -> frozenset[str]:
        """Names of further metrics that no stored predictions give again."""
        named = [name.split(".") for name in self.recipe.claim.beside]
        return frozenset(what for part, what in named if part in ("extras", "curve"))

    def mark(self, name: str) -> str:
        """Return the mark of a further metric that cannot be recomputed, or nothing."""
        return UNCHECKED if name in self.unchecked else ""

    def behind_n(self) -> str:
        """Format remarks on unfinished, unmet, stale and uncommitted runs."""
        cut = "".join(f", one at {steps:,} of {planned:,} steps" for steps, planned in self.short)
        rule = f", {self.unmet} that never met the rule" if self.unmet else ""
        late = f", {self.stale} stale left out" if self.stale else ""
        loose = f", {self.dirty} of uncommitted code" if self.dirty else ""
        return cut + rule + late + loose

    def command(self) -> str:
        """Return the command that reproduces this row."""
        seeds = ",".join(map(str, sorted(self.together or self.values)))
        return f"torchcaps reproduce {self.recipe.name}" + (
            f" --seeds {seeds}" if seeds not in ("", DEFAULT_SEEDS) else ""
        )

    def printed(self) -> str:
        """Format the printed number and how the paper selected it."""
        claim = self.recipe.claim
        if claim is None or claim.printed is None:
            return "-"
        sd = f" ± {claim.printed_sd:g}" if claim.printed_sd is not None else ""
        return f"{claim.printed:g}{sd}" + (f", {claim.selected}" if claim.selected else "")


def table(recipes: Mapping[str, Recipe], folder: Path, extra: str = "") -> list[Row]:
    """Build a row for every claim of a paper. `extra="_ema"` takes the results of averaged weights."""
    return [row_of(recipe, todays(recipe, folder), extra) for recipe in recipes.values() if recipe.claim is not None]


def row_of(recipe: Recipe, results: tuple[Sequence[Mapping[str, Any]], int], extra: str = "") -> Row:
    """Build the row of a recipe with a claim from its current results and the number of stale ones."""
    split, metric = recipe.claim.metric.split(".")
    fresh, stale = results
    counted = [result for result in fresh if metric in result["metrics"].get(split + extra, {})]
    values, together = {result["seed"]: result["metrics"][split + extra][metric] for result in counted}, ()
    if recipe.make().together:
        whole = len(counted) >= LEAST_MEMBERS and not extra
        together = tuple(values) if whole else ()
        values = {0: ensemble_error_percent(counted, split)} if whole else {}
    return Row(
        recipe=recipe,
        metric=f"{split}{extra}.{metric}",
        values=values,
        stale=stale,
        dirty=sum(result.get("dirty", True) for result in counted),
        together=together,
        short=_short(counted),
        unmet=_unmet(counted),
        beside=_beside(recipe.claim.beside, counted, metric),
        device=", ".join(dict.fromkeys(result["device"] for result in counted if "device" in result)),
        minutes=mean(result["seconds"] for result in counted) / 60 if counted else None,
    )


def _beside(
    names: Sequence[str], results: Sequence[Mapping[str, Any]], metric: str
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Collect further numbers, such as `test.half_credit_error_percent` or `extras.segmentation_iou`.

    `curve.best_watched_test_error_percent` is the least of a curve of all test images; tables call it the best
    checkpoint, selected on test.

    The name of the part is kept for other parts than `test` and `extras`, and for the row's own metric.
    """
    found = []
    for name in names:
        part, what = name.split(".")
        values = tuple(_one(numbers[what]) for result in results if what in (numbers := _part(result, part)))
        alone = part in ("test", "extras", "curve") and what != metric
        found += [(what if alone else f"{part} {what}", values)] if values else []
    return tuple(found)


def _part(result: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Return the metrics of a part, the extras, or the best of the curve."""
    if part == "curve":
        return {f"{BEST}{name}": value for name, value in least_of_curve(result).items()}
    return result.get(part) or result["metrics"].get(part, {})


def _one(value: float | Sequence[float]) -> float:
    """Return a number, or the mean of a list with one number per capsule."""
    return mean(value) if isinstance(value, list) else value


def _short(results: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Return steps and planned steps of runs that ended before their last step without a stopping rule."""
    cut = [
        result
        for result in results
        if result["steps"] < result.get("planned_steps", 0) and not result.get("stopping_rule_met")
    ]
    return tuple((result["steps"], result["planned_steps"]) for result in cut)


def _unmet(results: Sequence[Mapping[str, Any]]) -> int:
    """Count the complete runs that never met their stopping rule."""
    whole = [result for result in results if result["steps"] >= result.get("planned_steps", 0)]
    return sum(result.get("stopping_rule_met") is False for result in whole)


def markdown(rows: list[Row], bare: bool = False) -> str:
    """Format rows as a Markdown table for README and docs; `bare` leaves out further metrics."""
    lines = ["| table | row | metric | printed | ours | command |", "|---|---|---|---|---|---|"]
    for row in rows:
        claim = row.recipe.claim
        lines.append(
            f"| {claim.table} | {claim.row} | {row.metric} | {row.printed()} | {row.ours(bare)} | `{row.command()}` |"
        )
    marked = not bare and any(row.mark(name) for row in rows for name, _ in row.beside)
    return "\n".join([*lines, *(["", NOTE] if marked else [])]) + "\n"


def measures(rows: list[Row], names: Sequence[str]) -> str:
    """Format a Markdown table with a column (mean ± sd over seeds) for each of these metrics."""
    unchecked = frozenset(name for row in rows for name in row.unchecked)
    titles = [label(name) + (UNCHECKED if name in unchecked else "") for name in names]
    lines = [f"| row | n | {' | '.join(titles)} |", "|---|---|" + "---|" * len(names)]
    for row in rows:
        found = dict(row.beside)
        cells = [spread(found[name]) if name in found else "-" for name in names]
        if any(name in found for name in names):
            lines.append(
                f"| {row.recipe.claim.row} (`{row.recipe.name.split('/')[1]}`) | {len(row.values)} | "
                f"{' | '.join(cells)} |"
            )
    return "\n".join([*lines, *(["", NOTE] if unchecked & set(names) else [])]) + "\n"

"""A paper's table beside ours, computed from result files. Nobody types a result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.probes.kinds import Ensemble
from torchcaps.results.claims import Recipe
from torchcaps.results.statistics import LEAST_MEMBERS, ensemble_error_percent, spread, todays
from torchcaps.results.store import DEFAULT_SEEDS


@dataclass(frozen=True)
class Row:
    """One row of a paper's table beside ours."""

    recipe: Recipe
    metric: str  # "test.error_percent", or "test_ema.error_percent" for averaged weights
    values: dict[int, float]  # by seed
    stale: int  # results left out because today's recipe is another run
    dirty: int  # results that count, though made by code that was not committed
    together: tuple[int, ...] = ()  # seeds of the runs that answer together, in an ensemble
    short: tuple[tuple[int, int], ...] = ()  # steps and planned steps of results of runs that were not finished
    unmet: int = 0  # results whose stopping rule was not met before the last step
    beside: tuple[tuple[str, tuple[float, ...]], ...] = ()  # what else was measured: names, and a value for each seed that has it

    def ours(self, bare: bool = False) -> str:
        """Mean ± sd and n, and unless `bare` what else was measured; or that nobody ran it."""
        if not self.values:
            return f"not run yet ({self.stale} stale)" if self.stale else "not run yet"
        values = list(self.values.values())
        sd = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
        n = f"{len(self.together)} together" if self.together else f"n={len(values)}"
        beside = "" if bare else "".join(f"; {name} {mean(found):.3f}" for name, found in self.beside)
        return f"{mean(values):.3f}{sd} ({n}{self.behind_n()}){beside}"

    def behind_n(self) -> str:
        """Remarks on the runs that n counts, and on those that it does not."""
        cut = "".join(f", one at {steps:,} of {planned:,} steps" for steps, planned in self.short)
        rule = f", {self.unmet} that never met the rule" if self.unmet else ""
        late = f", {self.stale} stale left out" if self.stale else ""
        loose = f", {self.dirty} of uncommitted code" if self.dirty else ""
        return cut + rule + late + loose

    def command(self) -> str:
        """The command that reproduces this row."""
        seeds = ",".join(map(str, sorted(self.together or self.values)))
        return f"torchcaps reproduce {self.recipe.name}" + (f" --seeds {seeds}" if seeds not in ("", DEFAULT_SEEDS) else "")

    def printed(self) -> str:
        claim = self.recipe.claim
        if claim is None or claim.printed is None:
            return "-"
        sd = f" ± {claim.printed_sd:g}" if claim.printed_sd is not None else ""
        return f"{claim.printed:g}{sd}" + (f", {claim.selected}" if claim.selected else "")


def table(recipes: Mapping[str, Recipe], folder: Path, extra: str = "") -> list[Row]:
    """The claims of a paper with what the result files say. `extra="_ema"` reads the averaged weights' numbers instead."""
    return [_row(recipe, folder, extra) for recipe in recipes.values() if recipe.claim is not None]


def _row(recipe: Recipe, folder: Path, extra: str) -> Row:
    split, metric = recipe.claim.metric.split(".")
    fresh, stale = todays(recipe, folder)
    counted = [result for result in fresh if metric in result["metrics"].get(split + extra, {})]
    values, together = {result["seed"]: result["metrics"][split + extra][metric] for result in counted}, ()
    if isinstance(recipe.make(), Ensemble):
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
    )


def _beside(names: Sequence[str], results: Sequence[Mapping[str, Any]], metric: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Further numbers: `test.half_credit_error_percent` is a metric, `extras.segmentation_iou` one of the extras.

    A number of another part than the test part, or the row's own metric on another part, stands with the name of that part.
    """
    found = []
    for name in names:
        part, what = name.split(".")
        values = tuple(
            _one(numbers[what]) for result in results if what in (numbers := result.get(part) or result["metrics"].get(part, {}))
        )
        alone = part in ("test", "extras") and what != metric
        found += [(what if alone else f"{part} {what}", values)] if values else []
    return tuple(found)


def _one(value: float | Sequence[float]) -> float:
    """A number; the mean of several, one for each capsule."""
    return mean(value) if isinstance(value, list) else value


def _short(results: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Steps and planned steps of those that were evaluated before their last step, and not by a rule."""
    cut = [result for result in results if result["steps"] < result.get("planned_steps", 0) and not result.get("stopping_rule_met")]
    return tuple((result["steps"], result["planned_steps"]) for result in cut)


def _unmet(results: Sequence[Mapping[str, Any]]) -> int:
    whole = [result for result in results if result["steps"] >= result.get("planned_steps", 0)]
    return sum(result.get("stopping_rule_met") is False for result in whole)


def markdown(rows: list[Row], bare: bool = False) -> str:
    """The table for README and docs; `bare` without what stands beside the numbers."""
    lines = ["| table | row | metric | printed | ours | command |", "|---|---|---|---|---|---|"]
    for row in rows:
        claim = row.recipe.claim
        lines.append(f"| {claim.table} | {claim.row} | {row.metric} | {row.printed()} | {row.ours(bare)} | `{row.command()}` |")
    return "\n".join(lines) + "\n"


def measures(rows: list[Row], names: Sequence[str]) -> str:
    """A table with a column for each of these names: mean ± sd over the seeds of every row that was measured by one of them."""
    lines = [f"| row | n | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for row in rows:
        found = dict(row.beside)
        cells = [spread(found[name]) if name in found else "-" for name in names]
        if any(name in found for name in names):
            lines.append(f"| {row.recipe.claim.row} (`{row.recipe.name.split('/')[1]}`) | {len(row.values)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"

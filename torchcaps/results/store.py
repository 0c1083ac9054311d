"""One JSON per finished run in, tables out. Nobody types a result."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.metrics import error_percent
from torchcaps.runtime.files import write_whole
from torchcaps.train import Trained
from torchcaps.train.checkpoint import tensors_sha256
from torchcaps.train.recipe import Recipe, Run, to_plain, unlike

REPLAYED = 200  # steps whose losses are kept in full, for `torchcaps verify --replay`
CURVE_POINTS = 100
DEFAULT_SEEDS = "0,1,2"
LEAST_MEMBERS = 3  # of an ensemble


def make_result(name: str, seed: int, run: Run, trained: Trained) -> dict[str, Any]:
    """Everything needed to check the number, as plain JSON."""
    return {
        "recipe": name,
        "seed": seed,
        "metrics": {split: part.metrics for split, part in trained.evaluations.items()},
        "steps": trained.steps,
        "planned_steps": trained.planned,
        **({} if trained.met is None else {"stopping_rule_met": trained.met}),
        "seconds": round(trained.seconds, 2),
        "peak_memory_bytes": trained.peak_memory_bytes,
        "routing": trained.routing,
        "diagnostics": rounded(trained.diagnostics),
        "extras": rounded(trained.extras),
        **trained.made_by[-1],
        "dirty": any(maker["dirty"] for maker in [*trained.made_by, trained.evaluated_by]),
        "evaluated_by": trained.evaluated_by,
        "begun_by": trained.made_by[:-1],  # where a run was resumed elsewhere, or by other code
        "run": to_plain(run),
        "data": {"name": str(run.data), **trained.data},
        "curve": thin(trained.curve),
        "weights_sha256": trained.weights if trained.model is None else tensors_sha256(trained.model.state_dict()),
        "predictions": {split: pack(part.predictions) for split, part in trained.evaluations.items()},
        **({"ensemble": _for_an_ensemble(trained)} if run.keep_scores else {}),
    }


def _for_an_ensemble(trained: Trained) -> dict[str, Any]:
    """Scores in float16, and the labels: what others of its kind need to answer together with this one."""
    return {
        split: {"scores": pack(part.scores.half().view(torch.uint8)), "labels": pack(trained.labels[split])}
        for split, part in trained.evaluations.items()
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """A result file is whole or not there."""
    write_whole(path, (json.dumps(result, indent=1) + "\n").encode())


def read_result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a readable result file ({error}); `torchcaps train` and `reproduce` write them") from error
    missing = [key for key in ("recipe", "seed", "metrics", "run", "predictions", "data", "curve") if key not in result]
    if missing:
        raise ValueError(f"{path} is not a result file: it has no {', '.join(missing)}")
    return result


def result_path(folder: Path, name: str, seed: int) -> Path:
    return folder / name / f"{seed}.json"


def pack(predictions: Tensor) -> dict[str, Any]:
    """Bytes, squeezed, as text."""
    array = predictions.to(torch.uint8).cpu().numpy()
    return {"shape": list(array.shape), "zlib_base64": base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()}


def unpack(packed: Mapping[str, Any]) -> Tensor:
    content = zlib.decompress(base64.b64decode(packed["zlib_base64"]))
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(packed["shape"]).copy())


def thin(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first steps and every validation in full, then evenly spaced points; numbers to six digits."""
    later = [line for line in curve if line["step"] > REPLAYED and "loss" in line]
    kept = later[:: max(1, -(-len(later) // CURVE_POINTS))] + later[-1:]
    keep = {id(line) for line in kept} | {id(line) for line in curve if line["step"] <= REPLAYED or "loss" not in line}
    return [rounded(line) for line in curve if id(line) in keep]


def rounded(value: Any) -> Any:
    """Plain data, its numbers to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
        spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
        n = f"{len(self.together)} together" if self.together else f"n={len(values)}"
        beside = "" if bare else "".join(f"; {name} {mean(found):.3f}" for name, found in self.beside)
        return f"{mean(values):.3f}{spread} ({n}{self.behind_n()}){beside}"

    def behind_n(self) -> str:
        """What is to be known of the runs that n counts, and of those that it does not."""
        cut = "".join(f", one at {steps:,} of {planned:,} steps" for steps, planned in self.short)
        rule = f", {self.unmet} that never met the rule" if self.unmet else ""
        late = f", {self.stale} stale left out" if self.stale else ""
        loose = f", {self.dirty} of uncommitted code" if self.dirty else ""
        return cut + rule + late + loose

    def command(self) -> str:
        """What makes this row anew."""
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
    rows = []
    for name, recipe in recipes.items():
        if recipe.claim is None:
            continue
        split, metric = recipe.claim.metric.split(".")
        home = f"{name.split('/')[0]}/{recipe.claim.members}" if recipe.claim.members else name
        fresh, stale = todays(recipe, folder / home)
        counted = [result for result in fresh if metric in result["metrics"].get(split + extra, {})]
        values = {result["seed"]: result["metrics"][split + extra][metric] for result in counted}
        dirty, together = _dirty(counted), ()
        if recipe.claim.members:
            together = tuple(values)
            values = {0: ensemble_error_percent(counted, split)} if len(counted) >= LEAST_MEMBERS and not extra else {}
        about = together if values else (), _short(counted), _unmet(counted), _beside(recipe.claim.beside, counted, metric)
        rows.append(Row(recipe, f"{split}{extra}.{metric}", values, stale, dirty, *about))
    return rows


def todays(recipe: Recipe, folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Results of today's recipe, and how many there are of another run by the same name."""
    run, results = recipe.make(), [read_result(path) for path in sorted(folder.glob("*.json"))]
    fresh = [result for result in results if not unlike(result["run"], run)]
    return fresh, len(results) - len(fresh)


def measured(result: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name: of the tests and the extras that alone, of another part as `test_unmixed.error_percent`; `seconds` of training."""
    parts = {f"{part}.{what}": value for part, metrics in result["metrics"].items() for what, value in metrics.items()}
    named = {"seconds": result.get("seconds", [])} | result.get("extras", {})
    named |= {name.removeprefix("test."): value for name, value in parts.items()}
    numbers = {what: value if isinstance(value, list) else [value] for what, value in named.items()}
    return {what: mean(found) for what, found in numbers.items() if found and all(isinstance(one, (int, float)) for one in found)}


def by_seed(recipe: Recipe, folder: Path, name: str) -> dict[int, float]:
    """One number of all results of today's recipe; of an ensemble, which has no files of its own and so no seed, its row's."""
    if recipe.claim is not None and recipe.claim.members:
        (row,) = table({recipe.name: recipe}, folder)
        if name != (known := row.metric.removeprefix("test.")):
            raise ValueError(f"{recipe.name} is not measured by {name}; an ensemble has {known} alone")
        return row.values
    found = {result["seed"]: measured(result) for result in todays(recipe, folder / recipe.name)[0]}
    for numbers in found.values():
        if name not in numbers:
            raise ValueError(f"{recipe.name} is not measured by {name}; it has {', '.join(sorted(numbers))}")
    return {seed: numbers[name] for seed, numbers in found.items()}


def _beside(names: Sequence[str], results: Sequence[Mapping[str, Any]], metric: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """`test.half_credit_error_percent` is a metric, `extras.segmentation_iou` one of the extras.

    What is of another part than the tests, or is the row's own metric on another part, stands with the name of that part.
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
    """A number; of several, one for each capsule, their mean."""
    return mean(value) if isinstance(value, list) else value


def _short(results: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Of those that were evaluated before their last step, and not by a rule."""
    cut = [result for result in results if result["steps"] < result.get("planned_steps", 0) and not result.get("stopping_rule_met")]
    return tuple((result["steps"], result["planned_steps"]) for result in cut)


def _dirty(results: Sequence[Mapping[str, Any]]) -> int:
    return sum(result.get("dirty", True) for result in results)


def _unmet(results: Sequence[Mapping[str, Any]]) -> int:
    whole = [result for result in results if result["steps"] >= result.get("planned_steps", 0)]
    return sum(result.get("stopping_rule_met") is False for result in whole)


def ensemble_error_percent(results: Sequence[Mapping[str, Any]], split: str) -> float:
    """Of runs that answer together: each one's scores are added up."""
    parts = [result["ensemble"][split] for result in results]
    labels = unpack(parts[0]["labels"]).long()
    if any(not torch.equal(unpack(part["labels"]).long(), labels) for part in parts[1:]):
        raise ValueError(f"the runs of an ensemble must have the same {split} images; those of {results[0]['recipe']} have other labels")
    scores = sum(unpack(part["scores"]).view(torch.float16).double() for part in parts)
    return error_percent(scores.argmax(-1), labels)


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


def tried(recipes: Mapping[str, Recipe], folder: Path, names: Sequence[str], *, told: bool = False, ranked: bool = False) -> str:
    """What was tried and no claim is tied to, with a column for each of these names: mean ± sd over the seeds.

    `told`: each in its own words and with its command, not by its name. `ranked`: in the order of the last column.
    """
    rows, known = [], set()
    for name, recipe in recipes.items():
        fresh, stale = todays(recipe, folder / name)
        numbers = {result["seed"]: measured(result) for result in fresh}
        known.update(*numbers.values())
        beside = {what: tuple(found[what] for found in numbers.values() if what in found) for what in names}
        values = dict.fromkeys(numbers, float("nan"))  # no one number is what the run is for
        rows.append(Row(recipe, "", values, stale, _dirty(fresh), (), _short(fresh), _unmet(fresh), tuple(beside.items())))
    if known and (unknown := set(names) - known):
        raise ValueError(f"none of {', '.join(recipes)} is measured by {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if ranked:
        rows.sort(key=lambda row: mean(row.beside[-1][1] or [float("inf")]))
    head = ["tried" if told else "setting", "n", *names, *["command"] * told]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [(spread(found) if found else "-") if row.values else "not run yet" for _, found in row.beside]
        first, last = (row.recipe.about, [f"`{row.command()}`"]) if told else (f"`{row.recipe.name.split('/')[1]}`", [])
        lines.append(f"| {' | '.join([first, f'{len(row.values)}{row.behind_n()}', *cells, *last])} |")
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float]) -> str:
    """Mean to four digits, and ± sd to two if there are several."""
    return f"{mean(values):.4g}" + (f" ± {float(f'{stdev(values):.2g}'):g}" if len(values) > 1 else "")

"""Statistics over seeds, from the result files of current recipes."""

import re
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from torchcaps.analysis.metrics import error_percent
from torchcaps.results.claims import Recipe
from torchcaps.results.store import read_result, unpack
from torchcaps.train.plain import unlike

LEAST_MEMBERS = 3  # smallest ensemble
BEST = "best_"  # before the name of a watched error: its least value, a selection on that part
UNCHECKED = "†"  # behind a number that no file holds the means to recompute
NOTE = f"{UNCHECKED} Not recomputable: the run stored this number alone, so `torchcaps verify` cannot check it."


def todays(recipe: Recipe, folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Read the results of the current recipe (for an ensemble, of its members) and count the stale ones."""
    run, name = recipe.make(), recipe.name
    if run.together:
        run, name = run.network, run.of
    results = [read_result(path) for path in sorted((folder / name).glob("*.json"))]
    fresh = [result for result in results if not unlike(result["run"], run)]
    return fresh, len(results) - len(fresh)


def measured(result: Mapping[str, Any]) -> dict[str, float]:
    """Collect the numbers of a result by name.

    Test metrics and extras have plain names; other parts have theirs as a prefix, `test_unmixed.error_percent`.
    """
    parts = {f"{part}.{what}": value for part, metrics in result["metrics"].items() for what, value in metrics.items()}
    named = {"seconds": result.get("seconds", [])} | result.get("extras", {})
    named |= {name.removeprefix("test."): value for name, value in parts.items()}
    named |= {f"{BEST}{name}": value for name, value in least_of_curve(result).items()}
    numbers = {what: value if isinstance(value, list) else [value] for what, value in named.items()}
    return {
        what: mean(found)
        for what, found in numbers.items()
        if found and all(isinstance(one, (int, float)) for one in found)
    }


def least_of_curve(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the least error of each part that was watched as a whole: the best checkpoint, selected on that part."""
    found: dict[str, float] = {}
    for name in (f"watched_{part}_error_percent" for part in _watched_wholly(result)):
        errors = [line[name] for line in result["curve"] if name in line]
        found |= {name: min(errors)} if errors else {}
    return found


def _watched_wholly(result: Mapping[str, Any]) -> list[str]:
    """List the parts whose curve is of every image: the least error of a sample is not that of the part."""
    least: dict[str, int] = {}
    for rule in filter(None, (stage.get("watch") for stage in result["run"].get("stages", ()))):
        least[rule["part"]] = min(rule["n_images"], least.get(rule["part"], rule["n_images"]))
    sizes = {part: packed["shape"][0] for part, packed in result["predictions"].items()}
    return [part for part, n in least.items() if part in sizes and n >= sizes[part]]


def label(name: str) -> str:
    """Return the name that tables show for a metric: the best of a curve is called a selection."""
    part = re.fullmatch(rf"{BEST}watched_(\w+)_error_percent", name)
    return f"best checkpoint, selected on {part[1]}" if part else name


def recomputable(recipe: Recipe, folder: Path, name: str) -> bool:
    """Whether `torchcaps verify` recomputes this number of a row from stored predictions."""
    if name.startswith(BEST):
        return False
    return not any(name == "seconds" or name in result.get("extras", {}) for result in todays(recipe, folder)[0])


def by_seed(recipe: Recipe, folder: Path, name: str) -> dict[int, float]:
    """Read one number of every result of the current recipe, by seed; an ensemble has one number, under seed 0."""
    fresh = todays(recipe, folder)[0]
    if recipe.make().together:
        split, metric = recipe.claim.metric.split(".")
        if name != metric:
            raise ValueError(f"{recipe.name} is not measured by {name}; an ensemble has {metric} alone")
        return {0: ensemble_error_percent(fresh, split)} if len(fresh) >= LEAST_MEMBERS else {}
    found = {result["seed"]: measured(result) for result in fresh}
    for numbers in found.values():
        if name not in numbers:
            raise ValueError(f"{recipe.name} is not measured by {name}; it has {', '.join(sorted(numbers))}")
    return {seed: numbers[name] for seed, numbers in found.items()}


def ensemble_error_percent(results: Sequence[Mapping[str, Any]], split: str) -> float:
    """Compute the error of an ensemble that sums the scores of its runs."""
    parts = [result["ensemble"][split] for result in results]
    labels = unpack(parts[0]["labels"]).long()
    if any(not torch.equal(unpack(part["labels"]).long(), labels) for part in parts[1:]):
        raise ValueError(
            f"the runs of an ensemble must have the same {split} images; "
            f"those of {results[0]['recipe']} have other labels"
        )
    scores = sum(unpack(part["scores"]).view(torch.float16).double() for part in parts)
    return error_percent(scores.argmax(-1), labels)


def p_below(values: Sequence[float], bar: float, overlap: float = 0.0) -> float:
    """Return the p-value of a one-sided t-test: how likely so low a mean is if the true mean were the bar.

    `overlap`: test images per training image, where every seed draws both anew from the same images. Errors then
    depend on each other, and the variance of their mean is larger (Nadeau and Bengio 2003). 1 if all values are equal:
    they do not tell their spread.
    """
    if len(values) < 2:
        raise ValueError(f"a t-test needs at least two seeds, got {len(values)}; give more of them")
    sd = stdev(values)
    if not sd:
        return 1.0
    from scipy.stats import t  # comes with scikit-learn

    return float(t.cdf((mean(values) - bar) / (sd * sqrt(1 / len(values) + overlap)), len(values) - 1))


def spread(values: Sequence[float]) -> str:
    """Format the mean to four digits, and ± sd to two digits for several values."""
    return f"{mean(values):.4g}" + (f" ± {float(f'{stdev(values):.2g}'):g}" if len(values) > 1 else "")

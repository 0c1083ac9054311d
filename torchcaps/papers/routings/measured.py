"""Errors and costs of the compared routings, from result files and costs.csv."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from torchcaps.papers.routings.costs import read_costs
from torchcaps.papers.routings.rows import ABOUT, CIFAR, DIGITS, FASHION, LIKE, METRICS, NAMES, SMALLNORB
from torchcaps.results.claims import Recipe
from torchcaps.results.statistics import todays

ROWS = SMALLNORB | LIKE | FASHION | CIFAR | DIGITS


@dataclass(frozen=True)
class Measured:
    """One row: errors in % by seed, and its costs; no errors: not run yet."""

    name: str
    errors: tuple[float, ...]
    parameters: int
    ms_per_step: float | None  # None: not measured yet
    memory_bytes: int | None
    commit: str = ""  # that was timed

    @property
    def about(self) -> str:
        """Words for the routing or baseline."""
        return ABOUT.get(self.name, self.name)


def measured(which: str, results: Path) -> list[Measured]:
    """Read all rows of a set, one of `SETS`, from the results of their current recipes."""
    part, metric = METRICS[which].split(".")
    costs, found = read_costs(results), []
    for name in NAMES[which]:
        row = f"{which}-{name}"
        results_of = todays(Recipe(f"routings/{row}", ROWS[row], None), results)[0]
        errors = tuple(result["metrics"][part][metric] for result in results_of)
        cost = (costs[row].ms, costs[row].memory_bytes, costs[row].commit) if row in costs else (None, None)
        found.append(Measured(name, errors, parameters(which, name), *cost))
    return found


@cache
def parameters(which: str, name: str) -> int:
    """Count the parameters of a row's network."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ROWS[f"{which}-{name}"]().build().parameters())

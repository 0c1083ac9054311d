"""Costs and errors of the compared routings, read from result files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from torchcaps.papers.routings.rows import ABOUT, COMPARED, DIGITS, LIKE, METRICS, SMALLNORB, WITHOUT_CAPSULES
from torchcaps.results.claims import Recipe
from torchcaps.results.statistics import todays

NAMES = (*COMPARED, *WITHOUT_CAPSULES)
ROWS = SMALLNORB | LIKE | DIGITS


@dataclass(frozen=True)
class Measured:
    """One row: errors in % by seed, and means of its costs; no errors: not run yet."""

    name: str
    errors: tuple[float, ...]
    parameters: int
    ms_per_step: float | None  # without compiling
    memory_bytes: float | None  # peak in training

    @property
    def about(self) -> str:
        """Words for the routing or baseline."""
        return ABOUT.get(self.name, self.name)


def measured(which: str, results: Path) -> list[Measured]:
    """Read all rows of a set, one of `SETS`, from the results of their current recipes."""
    part, metric = METRICS[which].split(".")
    found = []
    for name in NAMES:
        results_of = todays(Recipe(f"routings/{which}-{name}", ROWS[f"{which}-{name}"], None), results)[0]
        paces = [pace for result in results_of if (pace := ms_per_step(result)) is not None]
        peaks = [result["peak_memory_bytes"] for result in results_of if result.get("peak_memory_bytes")]
        errors = tuple(result["metrics"][part][metric] for result in results_of)
        found.append(
            Measured(
                name, errors, parameters(which, name), mean(paces) if paces else None, mean(peaks) if peaks else None
            )
        )
    return found


@cache
def parameters(which: str, name: str) -> int:
    """Count the parameters of a row's network."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ROWS[f"{which}-{name}"]().build().parameters())


def ms_per_step(result: Mapping[str, Any]) -> float | None:
    """Compute the milliseconds of a training step from the learning curve; the steps before its first line compile."""
    lines = [line for line in result["curve"] if "loss" in line]
    if len(lines) < 2:
        return None
    first, last = lines[0], lines[-1]
    return 1000 * (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])

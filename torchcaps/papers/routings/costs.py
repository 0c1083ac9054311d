"""Time and memory of a training step of every compared row, each measured alone: results/routings/costs.csv.

Not taken from the training runs, which may share a device with others.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from torchcaps.results.claims import Recipe
from torchcaps.runtime.environment import commit, device_in_words, device_name
from torchcaps.runtime.files import write_whole

NOTE = "# Medians of training steps on random images, each row alone: `torchcaps bench routings`.\n"


class Cost(NamedTuple):
    """Time and memory of a training step of a row."""

    row: str
    ms: float
    memory_bytes: int  # peak in training; on a CPU of the whole process
    batch: int
    device: str
    commit: str


def costs_path(results: Path) -> Path:
    return results / "routings" / "costs.csv"


def read_costs(results: Path) -> dict[str, Cost]:
    """Read the stored costs by row; none if there is no file."""
    path = costs_path(results)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")] if path.exists() else []
    return {
        line["row"]: Cost(
            line["row"],
            float(line["ms"]),
            int(line["memory_bytes"]),
            int(line["batch"]),
            line["device"],
            line["commit"],
        )
        for line in csv.DictReader(lines)
    }


def write_costs(results: Path, costs: Mapping[str, Cost]) -> Path:
    """Write all costs; the file is whole at any time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Cost._fields)
    writer.writerows(cost._replace(ms=f"{cost.ms:.4g}") for cost in costs.values())
    write_whole(costs_path(results), (NOTE + text.getvalue()).encode())
    return costs_path(results)


def bench_routings(
    recipes: Sequence[Recipe],
    device: torch.device,
    steps: int,
    results: Path,
    say: Callable[[str], object] = lambda text: None,
) -> Path:
    """Measure rows one after another; each replaces its line of the file at once."""
    from torchcaps.bench.train import trained  # the tables read costs and need no benchmark

    for recipe in recipes:
        run = recipe.make()
        with trained(run, device, steps) as (_, found):
            cost = Cost(
                recipe.name.split("/")[1],
                found.ms,
                found.peak_bytes,
                run.stages[0].batch,
                device_in_words(device_name(device)),
                _code(),
            )
        write_costs(results, read_costs(results) | {cost.row: cost})
        say(f"{cost.row}: {cost.ms:.3f} ms, {cost.memory_bytes / 2**20:,.0f} MiB, {found.routing}")
    return costs_path(results)


def _code() -> str:
    """Name the commit that was measured, and whether it had been changed."""
    made_by = commit()
    return str(made_by["commit"])[:12] + (" with changes" if made_by["dirty"] else "")

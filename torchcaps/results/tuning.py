"""Hyperparameters tried on held-out data: lines of results/<paper>/tuning.csv, written by `torchcaps tune`."""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from torchcaps.runtime.files import write_whole

NOTE = (
    "# Settings tried on held-out data; `test` is the held-out part of folds, toys or dev, no official test part. "
    "Not covered by `torchcaps verify`.\n"
)
FIELDS = "run", "row", "changes", "metric", "by_seed", "mean", "commit", "run_sha256"


@dataclass(frozen=True)
class Line:
    """One metric of one setting, by seed.

    Example:

        line = Line("slow", "mine/capsnet", "learning_rate=1e-4", "validation.error_percent", {0: 1.5, 1: 2.5}, "", "")
        add_tuning(Path("tuning.csv"), [line])
        read_tuning(Path("tuning.csv"))[0].by_seed  # {0: 1.5, 1: 2.5}
    """

    run: str  # name of the setting
    row: str  # row that the setting varies
    changes: str  # "learning_rate=0.002 hold_out=5000"
    metric: str  # "validation.error_percent"
    by_seed: Mapping[int, float]
    commit: str
    run_sha256: str

    def cells(self) -> list[str]:
        """Format the line as cells of a CSV row."""
        seeds = " ".join(f"{seed}:{value:.6g}" for seed, value in sorted(self.by_seed.items()))
        average = f"{mean(self.by_seed.values()):.6g}"
        return [self.run, self.row, self.changes, self.metric, seeds, average, self.commit, self.run_sha256]


def tuning_path(results: Path, paper: str) -> Path:
    return results / paper / "tuning.csv"


def read_tuning(path: Path) -> list[Line]:
    """Read all lines of a tuning file; none if there is no file."""
    if not path.exists():
        return []
    rows = csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#"))
    return [
        Line(
            row["run"],
            row["row"],
            row["changes"],
            row["metric"],
            _seeds(row["by_seed"]),
            row["commit"],
            row["run_sha256"],
        )
        for row in rows
    ]


def _seeds(text: str) -> dict[int, float]:
    return {int(seed): float(value) for seed, _, value in (part.partition(":") for part in text.split())}


def add_tuning(path: Path, lines: Iterable[Line]) -> None:
    """Append lines; new seeds of a run that has a line already are added to that."""
    known = {(line.run, line.metric, line.run_sha256): line for line in read_tuning(path)}
    for line in lines:
        key = (line.run, line.metric, line.run_sha256)
        seeds = known[key].by_seed if key in known else {}
        known[key] = replace(line, by_seed={**seeds, **line.by_seed})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows(line.cells() for line in known.values())
    write_whole(path, (NOTE + text.getvalue()).encode())


def tuned(results: Path, paper: str, run: str, metric: str) -> dict[int, float]:
    """Read one metric of a setting by seed, for the docs."""
    lines = [line for line in read_tuning(tuning_path(results, paper)) if line.run == run]
    if not lines:
        raise ValueError(f"{tuning_path(results, paper)} has no setting {run!r}")
    found = [line for line in lines if metric in (line.metric, line.metric.removeprefix("test."))]
    if not found:
        raise ValueError(
            f"{run} of {paper} is not measured by {metric}; it has {', '.join(line.metric for line in lines)}"
        )
    return dict(found[-1].by_seed)  # the latest run of that name


def run_sha256(plain: Mapping[str, Any]) -> str:
    """Hash a plain run to twelve hexadecimal digits."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]

"""Checkpoints and results of the current rows; figures use nothing else."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torchcaps.results.claims import recipes_of
from torchcaps.results.store import read_result
from torchcaps.train.checkpoint import load_checkpoint
from torchcaps.train.plain import unlike
from torchcaps.train.recipe import Run


def runs_of(paper: str, *modules: ModuleType) -> dict[str, Run]:
    """Collect the runs of the current rows, by name."""
    made = [recipe for module in modules for recipe in recipes_of(paper, module).values()]
    return {recipe.name.removeprefix(f"{paper}/"): recipe.make() for recipe in made}


def finished(checkpoint: Path, run: Run) -> bool:
    """Check that a checkpoint exists, belongs to the current run and is the end of its last stage."""
    if not checkpoint.exists():
        return False
    about = load_checkpoint(checkpoint).about
    return about.get("ended", False) and about["stage"] == len(run.stages) - 1 and not unlike(about["run"], run)


def results_of(paper: str, folder: Path, today: Mapping[str, Run]) -> dict[str, list[dict[str, Any]]]:
    """Read every result of the current rows that has metrics, by recipe, in the order of the seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / paper).glob("*/*.json"), key=lambda path: (path.parent.name, int(path.stem))):
        name, result = path.parent.name, read_result(path)
        if name in today and result["metrics"] and not unlike(result["run"], today[name]):
            found.setdefault(name, []).append(result)
    return found

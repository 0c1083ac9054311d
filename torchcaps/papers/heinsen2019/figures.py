"""All figures of the paper and its extensions; figures without results, checkpoints or data are left out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchcaps.data import DataError, Labelled, info, load
from torchcaps.data.augment import Augmentation
from torchcaps.data.sets import smallnorb
from torchcaps.data.sets.smallnorb import FAMILIAR, part_of
from torchcaps.figures.routing_curves import error_by_iterations
from torchcaps.papers.finished import finished, results_of, runs_of
from torchcaps.papers.heinsen2019 import rows, sentences
from torchcaps.papers.heinsen2019.curves import Watched, errors_at, errors_by_view, validation_curves
from torchcaps.papers.heinsen2019.drawing import pose_changes, pose_trajectories, stereo_pairs
from torchcaps.papers.heinsen2019.poses import tracks
from torchcaps.results.store import unpack
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

Drawn = dict[str, tuple[Figure, str]]  # by the name of the file, with captions
Results = Mapping[str, Sequence[Mapping[str, Any]]]  # by row

BY_ITERATIONS = {1: "smallnorb-r1", 2: "smallnorb-r2", 3: "smallnorb", 4: "smallnorb-r4", 5: "smallnorb-r5"}
NETWORKS = {"EM routing": "", "CNN": "-cnn"}  # networks on new viewpoints, by the ending of their rows' names
WATCHED = {  # the columns of figure 8
    "smallnorb": "smallNORB, EM routing",
    "smallnorb-capsnet": "smallNORB, CapsNet",
    "smallnorb-cnn": "smallNORB, CNN",
    "sst5": "SST-5",
    "sst2": "SST-2",
}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> Drawn:
    """Draw all figures that result files in `results` and checkpoints in `runs` allow."""
    today = rows_today()
    found = results_of("heinsen2019", results, today)
    return from_results(found, today, root) | from_checkpoint(runs / "heinsen2019", today, root, device)


def rows_today() -> dict[str, Run]:
    """Collect the runs of all rows by name."""
    return runs_of("heinsen2019", rows, sentences)


def from_results(found: Results, today: Mapping[str, Run], root: Path | None) -> Drawn:
    """Draw figure 8, the error by iterations and the error by view."""
    made: Drawn = {}
    if seen := watched(found, today):
        made["figure-8"] = validation_curves(seen)
    errors = {
        n: [part["metrics"]["test"]["error_percent"] for part in found[row]]
        for n, row in BY_ITERATIONS.items()
        if row in found
    }
    if len(errors) > 1:
        made["error-by-iterations"] = error_by_iterations({"smallNORB": errors})
    if views := by_view(found, root):
        made["error-by-view"] = errors_by_view(views)
    return made


def from_checkpoint(runs: Path, today: Mapping[str, Run], root: Path | None, device: torch.device) -> Drawn:
    """Draw toys and the poses of their class capsules, from the first seed of the row."""
    checkpoint = runs / "smallnorb" / "0" / "checkpoint.safetensors"
    if not finished(checkpoint, today["smallnorb"]):
        return {}
    model, run, about = load_model(checkpoint, device)
    return of_viewpoints(model, load(run.data, "test", root, about["seed"]), root, run.augment)


def of_viewpoints(model: nn.Module, data: Labelled, root: Path | None, augment: Sequence[Augmentation]) -> Drawn:
    """Draw figures 4, 6, 7 and 9; none without the table of viewpoints."""
    try:
        factors = smallnorb.factors("test", root)
    except DataError:
        return {}
    found = {vary: tracks(model, data, factors, vary, augment) for vary in ("elevation", "azimuth")}
    return {
        "figure-4": pose_trajectories(found),
        "figure-6": pose_changes(found["azimuth"], "azimuth", 6),
        "figure-7": pose_changes(found["elevation"], "elevation", 7),
        "figure-9": stereo_pairs(data, factors),
    }


def watched(found: Results, today: Mapping[str, Run]) -> dict[str, Watched]:
    """Collect learning curves of the rows in figure 8, by column."""
    seen = {}
    for row, name in WATCHED.items():
        if row in found:
            rule, about = today[row].stages[0].watch, info(today[row].data)
            n = min(rule.n_images, {"test": about.n_test, "validation": about.n_validation}[rule.part])
            seen[name] = Watched(
                [result["curve"] for result in found[row]], rule.part, f"{n:,} {rule.part} {about.kind}"
            )
    return seen


def by_view(found: Results, root: Path | None) -> dict[str, dict[str, list[dict[int, float]]]]:
    """Compute errors by view for every varied angle, network and run; empty without data and viewpoints."""
    try:
        factors = smallnorb.factors("test", root)
    except DataError:
        return {}
    seen: dict[str, dict[str, list[dict[int, float]]]] = {}
    labels: dict[str, Tensor] = {}  # by data set: reading one takes seconds
    for vary in FAMILIAR:
        views = getattr(factors, vary)
        for name, end in NETWORKS.items():
            for result in found.get(f"{vary}{end}", []):
                errors: dict[int, float] = {}
                for split, part in (("test", "novel"), (f"{result['data']['name']}-familiar", "familiar")):
                    home = result["data"]["name"] if split == "test" else split
                    if home not in labels:
                        labels[home] = load(home, "test", root).labels
                    wrong = unpack(result["predictions"][split]).long() != labels[home]
                    errors |= errors_at(wrong, views[part_of(factors, vary, part)])
                seen.setdefault(vary, {}).setdefault(name, []).append(errors)
    return seen

"""Figures 4, 6, 7 and 9, places that class capsules used, errors and losses by passes, errors by view: each where its runs are there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchcaps.data import DataError, Labelled, load
from torchcaps.data.sets import smallnorb
from torchcaps.data.sets.smallnorb import FAMILIAR, part_of
from torchcaps.figures.numbers import pick_examples, predict
from torchcaps.figures.places import used_places
from torchcaps.figures.routing_curves import error_by_passes, loss_curves
from torchcaps.figures.view_errors import errors_at, errors_by_view
from torchcaps.figures.view_numbers import tracks
from torchcaps.figures.viewpoints import pose_changes, pose_trajectories, stereo_pairs
from torchcaps.papers.heinsen2019 import rows, viewpoints
from torchcaps.papers.made import finished, results_of, runs_of
from torchcaps.results.store import unpack
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

MODEL = "smallnorb"
NETWORKS = {"EM routing": "", "CapsNet": "-capsnet", "CNN": "-cnn"}  # and how their rows' names end
BY_PASSES = {1: "smallnorb-r1", 2: "smallnorb-r2", 3: "smallnorb", 4: "smallnorb-r4", 5: "smallnorb-r5"}
N_EXAMPLES, N_LOOKED = 8, 500  # pictures in the figure of places, of so many


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `results` holds result files, `runs` checkpoints; what is missing is left out."""
    made, today = {}, rows_today()
    checkpoint = runs / "heinsen2019" / MODEL / "0" / "checkpoint.safetensors"
    if finished(checkpoint, today[MODEL]):
        model, run, about = load_model(checkpoint, device)
        data = load(run.data, "test", root, about["seed"])
        made |= of_viewpoints(model, data, root)
        made["places"] = _places(model, data)
    found = results_of("heinsen2019", results, today)
    errors = {n: [part["metrics"]["test"]["error_percent"] for part in found[row]] for n, row in BY_PASSES.items() if row in found}
    if len(errors) > 1:
        made["error-by-passes"] = error_by_passes({"smallNORB": errors})
        shown = {n: found[BY_PASSES[n]][0] for n in errors}
        figure, words = loss_curves({n: result["curve"] for n, result in shown.items()})
        seeds = ", ".join(str(result["seed"]) for result in shown.values())
        made["loss-by-passes"] = figure, f"{words} smallNORB, the loss of mixed pictures; seeds {seeds}."
    if seen := by_view(found, root):
        made["error-by-view"] = errors_by_view(seen)
    return made


def of_viewpoints(model: nn.Module, data: Labelled, root: Path | None) -> dict[str, tuple[Figure, str]]:
    """Figures 4, 6, 7 and 9; none where the viewpoints are not at hand."""
    try:
        factors = smallnorb.factors("test", root)
    except DataError:
        return {}
    found = {vary: tracks(model, data, factors, vary) for vary in ("elevation", "azimuth")}
    return {
        "figure-4": pose_trajectories(found),
        "figure-6": pose_changes(found["azimuth"], "azimuth", 6),
        "figure-7": pose_changes(found["elevation"], "elevation", 7),
        "figure-9": stereo_pairs(data, factors),
    }


def by_view(found: Mapping[str, Sequence[Mapping[str, Any]]], root: Path | None) -> dict[str, dict[str, list[dict[int, float]]]]:
    """By what varies, network and run, the error for every view; from stored predictions, where data and viewpoints are at hand."""
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


def _places(model: nn.Module, data: Labelled) -> tuple[Figure, str]:
    """The first picture of each class that is recognised, and the first that are not, among some spread over the set."""
    some = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))[:N_LOOKED].sort().values
    shown = Labelled(data.images[some], data.labels[some])
    examples = pick_examples(predict(model, shown), shown.labels, model.n_classes)
    which = [*examples.correct, *examples.failures][:N_EXAMPLES]
    names = smallnorb.CATEGORIES if model.n_classes == len(smallnorb.CATEGORIES) else None
    return used_places(model, list(shown.images[which]), shown.labels[which].tolist(), names)


def rows_today() -> dict[str, Run]:
    return runs_of("heinsen2019", rows, viewpoints)

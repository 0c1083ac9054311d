"""Figures 3, 4, 5, A.1, A.2 and the error against routing passes: each where the runs that it shows are there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.figures import all_figures
from torchcaps.figures.routing_curves import error_by_passes, logit_change_curves, loss_curves
from torchcaps.papers.made import finished, results_of, runs_of
from torchcaps.papers.sabour2017 import ablations, rows
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

OF_A_MODEL = {  # recipe: our figures' names and the paper's
    "mnist-r3-recon-64": {"reconstructions": "figure-3", "dimension_sweeps": "figure-4"},
    "multimnist-4-r3": {"overlapping_digits": "figure-5"},
}
BY_PASSES = {
    "MNIST": {1: "mnist-r1-recon", 2: "mnist-r2-recon", 3: "mnist-r3-recon", 4: "mnist-r4-recon", 5: "mnist-r5-recon"},
    "CIFAR-10": {1: "cifar10-r1", 2: "cifar10-r2", 3: "cifar10", 5: "cifar10-r5"},
}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `results` holds result files, `runs` checkpoints; what is missing is left out."""
    made, today = {}, _today()
    for recipe, wanted in OF_A_MODEL.items():
        checkpoint = runs / "sabour2017" / recipe / "0" / "checkpoint.safetensors"
        if finished(checkpoint, today[recipe]):
            model, run, about = load_model(checkpoint, device)
            drawn = all_figures(model, load(run.data, "test", root, about["seed"]), [], device)
            made |= {new: drawn[name] for name, new in wanted.items() if name in drawn}
    found = results_of("sabour2017", results, today)
    if "mnist-r5-recon" in found:
        made["figure-A1"] = logit_change_curves(found["mnist-r5-recon"][0]["curve"])
    if "cifar10-r1" in found and "cifar10" in found:
        figure, words = loss_curves({1: found["cifar10-r1"][0]["curve"], 3: found["cifar10"][0]["curve"]})
        made["figure-A2"] = figure, f"{words} After the paper's figure A.2, which shows CIFAR-10 with batches of 128."
    errors = {
        name: {n: [part["metrics"]["test"]["error_percent"] for part in found[recipe]] for n, recipe in row.items() if recipe in found}
        for name, row in BY_PASSES.items()
    }
    if several := {name: row for name, row in errors.items() if len(row) > 1}:
        figure, words = error_by_passes(several)
        made["error-by-passes"] = figure, f"{words} Appendix A says that more passes fit the training set more closely."
    return made


def _today() -> dict[str, Run]:
    return runs_of("sabour2017", rows, ablations)

"""Figures 3, 4, 5, A.1 and A.2, error by routing iterations, and routing iterations at test time."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.figures import all_figures
from torchcaps.figures.routing_curves import error_by_iterations, loss_curves
from torchcaps.papers.finished import finished, results_of, runs_of
from torchcaps.papers.sabour2017 import ablations, rows
from torchcaps.papers.sabour2017.drawing import iterations_at_test, logit_change_curves
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

Result = dict[str, Any]
OF_A_MODEL = {  # recipe: our figures' names and the paper's
    "mnist-r3-recon-64": {"reconstructions": "figure-3", "dimension_sweeps": "figure-4"},
    "multimnist-4-r3": {"overlapping_digits": "figure-5"},
}
BY_ITERATIONS = {
    "MNIST": {1: "mnist-r1-recon", 2: "mnist-r2-recon", 3: "mnist-r3-recon", 4: "mnist-r4-recon", 5: "mnist-r5-recon"},
    "CIFAR-10": {1: "cifar10-r1", 2: "cifar10-r2", 3: "cifar10", 5: "cifar10-r5"},
}
ROUTED = {  # trained networks, evaluated with other numbers of iterations
    "MNIST, trained with 3": "mnist-r3-recon-64",
    "MultiMNIST, trained with 3": "multimnist-4-r3",
    "smallNORB, trained with 3": "smallnorb-types",
    "CIFAR-10, trained with 3": "cifar10",
    "MultiMNIST, trained with 1": "multimnist-4-r1",
    "CIFAR-10, trained with 1": "cifar10-r1",
}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw what result files in `results` and checkpoints in `runs` allow: by the paper's number, with captions."""
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
    errors = {name: _errors(found, by_n) for name, by_n in BY_ITERATIONS.items()}
    if several := {name: points for name, points in errors.items() if len(points) > 1}:
        figure, words = error_by_iterations(several)
        made["error-by-iterations"] = figure, f"{words} Appendix A says that more iterations tend to overfit."
    routed = {name: _diagnostics(found.get(row, [])) for name, row in ROUTED.items()}
    if all(routed.values()):
        made["iterations-at-test"] = iterations_at_test(routed)
    return made


def _errors(found: Mapping[str, list[Result]], by_n: Mapping[int, str]) -> dict[int, list[float]]:
    """Collect test errors of every seed, by routing iterations, for rows that have results."""
    rows_found = {n: found[row] for n, row in by_n.items() if row in found}
    return {n: [one["metrics"]["test"]["error_percent"] for one in results] for n, results in rows_found.items()}


def _diagnostics(results: list[Result]) -> list[dict[str, Any]]:
    return [one["diagnostics"] for one in results if one.get("diagnostics")]


def _today() -> dict[str, Run]:
    return runs_of("sabour2017", rows, ablations)

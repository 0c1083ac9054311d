"""Figures 1, 2 and 4: each where the checkpoints that it shows are there. Figure 1 is of a CapsNet, so of a row of Sabour 2017."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchcaps.data import load
from torchcaps.figures.ladder import activity_curves, coupled_bars, most_active, most_coupled, pruning_and_ladder
from torchcaps.papers.jeong2019 import rows
from torchcaps.papers.made import finished
from torchcaps.papers.sabour2017 import rows as rows_of_sabour2017
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

DIGIT = 0  # the paper's, in figures 1 and 4
CAPSNET = "sabour2017/mnist-r3"
KEPT = {50: "jeong2019/mnist-k50", 70: "jeong2019/mnist-k70", 100: "jeong2019/mnist-k100"}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `runs` holds checkpoints; what is missing is left out."""
    today, made = _today(), {}
    found = {name: _model(runs, name, run, device) for name, run in today.items()}
    if all(model is None for model in found.values()):
        return {}
    train = load(today[CAPSNET].data, "train", root)
    zeros = train.images[train.labels == DIGIT]
    if found[CAPSNET] is not None:
        made["figure-1"] = coupled_bars(most_coupled(found[CAPSNET], zeros, DIGIT), DIGIT, len(zeros))
    if found[KEPT[70]] is not None:
        test = load(today[KEPT[70]].data, "test", root)
        made["figure-2"] = pruning_and_ladder(found[KEPT[70]], test.images[0], int(test.labels[0]))
    ranked = {n: most_active(found[name], zeros) for n, name in KEPT.items() if found[name] is not None}
    if ranked:
        made["figure-4"] = activity_curves(ranked, DIGIT, len(zeros))
    return made


def _today() -> dict[str, Run]:
    """The runs that are shown, by name."""
    ladders = {50: rows.mnist_k50(), 70: rows.mnist_k70(), 100: rows.mnist_k100()}
    return {CAPSNET: rows_of_sabour2017.mnist_r3()} | {KEPT[n]: run for n, run in ladders.items()}


def _model(runs: Path, name: str, run: Run, device: torch.device) -> nn.Module | None:
    """Seed 0's, if it is of today's run and finished."""
    checkpoint = runs / name / "0" / "checkpoint.safetensors"
    return load_model(checkpoint, device)[0] if finished(checkpoint, run) else None

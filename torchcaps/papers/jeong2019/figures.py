"""Figures 1, 2 and 4; figures without checkpoints are left out. Figure 1 shows a CapsNet, a row of Sabour 2017."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchcaps.data import load
from torchcaps.papers.finished import finished
from torchcaps.papers.jeong2019 import drawing
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

DIGIT = 0  # the paper's, in figures 1 and 4
CAPSNET = "sabour2017/mnist-r3-recon-64"  # its weights are released as capsnet-mnist
SMALL = "digits/ladder"  # trains in minutes on a CPU
KEPT = {50: "jeong2019/mnist-k50", 70: "jeong2019/mnist-k70", 100: "jeong2019/mnist-k100"}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw figures by the paper's number, with captions; figures without a checkpoint in `runs` are left out."""
    today, made = _today(), {}
    found = {name: _model(runs, name, run, device) for name, run in today.items()}
    if found[SMALL] is not None:
        made["figure-2-digits"] = _first_digit(found[SMALL], today[SMALL], root)
    if all(found[name] is None for name in (CAPSNET, *KEPT.values())):
        return made
    train = load(today[CAPSNET].data, "train", root)
    zeros = train.images[train.labels == DIGIT]
    if found[CAPSNET] is not None:
        coupled = drawing.most_coupled(found[CAPSNET], zeros, DIGIT)
        made["figure-1"] = drawing.coupled_bars(coupled, DIGIT, len(zeros))
    if found[KEPT[70]] is not None:
        made["figure-2"] = _first_digit(found[KEPT[70]], today[KEPT[70]], root)
    ranked = {n: drawing.most_active(found[name], zeros) for n, name in KEPT.items() if found[name] is not None}
    if ranked:
        made["figure-4"] = drawing.activity_curves(ranked, DIGIT, len(zeros))
    return made


def _first_digit(model: nn.Module, run: Run, root: Path | None) -> tuple[Figure, str]:
    test = load(run.data, "test", root)
    return drawing.pruning_and_ladder(model, test.images[0], int(test.labels[0]))


def _today() -> dict[str, Run]:
    """Collect the runs shown in the figures, by name."""
    from torchcaps.papers import RECIPES  # which is made of this paper too

    return {name: RECIPES[name].make() for name in (CAPSNET, SMALL, *KEPT.values())}


def _model(runs: Path, name: str, run: Run, device: torch.device) -> nn.Module | None:
    """Load the network of seed 0, if it belongs to the current run and is finished."""
    checkpoint = runs / name / "0" / "checkpoint.safetensors"
    return load_model(checkpoint, device)[0] if finished(checkpoint, run) else None

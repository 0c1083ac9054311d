"""Figure 8 for sentences, and what the classes used of one: each where the runs that it shows are there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.checkpoint import load_model
from torchcaps.data import DataError, encoder_of
from torchcaps.figures.sentence_map import explain, sentence_map
from torchcaps.figures.validation_curves import validation_curves
from torchcaps.papers.heinsen2019 import sentences
from torchcaps.papers.made import finished, results_of
from torchcaps.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

SHOWN = {"sst5": "SST-5/R", "sst2": "SST-2/R"}
SENTENCE = "It 's not without its charms , but the film never finds its feet ."


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `results` holds result files, `runs` checkpoints; what is missing is left out."""
    made = {}
    today = {row: getattr(sentences, row)() for row in SHOWN}
    if curves := {SHOWN[row]: several for row, several in results_of("heinsen2019", results, today).items()}:
        made["figure-8-sentences"] = validation_curves(curves)
    for row, run in today.items():
        checkpoint = runs / "heinsen2019" / row / "0" / "checkpoint.safetensors"
        if finished(checkpoint, run) and _at_hand(run, root):
            model, _, _ = load_model(checkpoint, device)
            made[f"{row}-sentence"] = sentence_map(explain(model, encoder_of(run.data, root).load(device), SENTENCE))
    return made


def _at_hand(run: Run, root: Path | None) -> bool:
    try:
        return encoder_of(run.data, root).folder().exists()
    except DataError:
        return False

"""What the classes used of a sentence, where the run is there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import DataError, encoder_of
from torchcaps.figures.sentence_map import explain, sentence_map
from torchcaps.papers.heinsen2019 import sentences
from torchcaps.papers.made import finished
from torchcaps.train.loading import load_model
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

SHOWN = "sst5", "sst2"
SENTENCE = "It 's not without its charms , but the film never finds its feet ."


def figures(runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the row, with captions. `runs` holds checkpoints; what is missing is left out."""
    made = {}
    for row, run in rows_today().items():
        checkpoint = runs / "heinsen2019" / row / "0" / "checkpoint.safetensors"
        if finished(checkpoint, run) and _at_hand(run, root):
            model, _, _ = load_model(checkpoint, device)
            made[f"{row}-sentence"] = sentence_map(explain(model, encoder_of(run.data, root).load(device), SENTENCE))
    return made


def rows_today() -> dict[str, Run]:
    return {row: getattr(sentences, row)() for row in SHOWN}


def _at_hand(run: Run, root: Path | None) -> bool:
    try:
        return encoder_of(run.data, root).folder().exists()
    except DataError:
        return False

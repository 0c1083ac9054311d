"""All figures of the paper, of images and of sentences: each where the runs that it shows are there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.papers.heinsen2019 import image_figures, sentence_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions."""
    return image_figures.figures(results, runs, root, device) | sentence_figures.figures(results, runs, root, device)

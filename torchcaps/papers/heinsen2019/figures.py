"""All figures of the paper, of images and of sentences: each where the runs that it shows are there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import info
from torchcaps.figures.validation import Watched, validation_curves
from torchcaps.papers.heinsen2019 import image_figures, sentence_figures
from torchcaps.papers.made import results_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

# the columns of figure 8, by row
WATCHED = {
    "smallnorb": "smallNORB, EM routing",
    "smallnorb-capsnet": "smallNORB, CapsNet",
    "smallnorb-cnn": "smallNORB, CNN",
    "sst5": "SST-5/R",
    "sst2": "SST-2/R",
}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `results` holds result files, `runs` checkpoints; what is missing is left out."""
    made = image_figures.figures(results, runs, root, device) | sentence_figures.figures(runs, root, device)
    if seen := watched(results):
        made["figure-8"] = validation_curves(seen)
    return made


def watched(results: Path) -> dict[str, Watched]:
    """The curves of today's rows that have results, by the name of the column."""
    today = {row: run for row, run in (image_figures.rows_today() | sentence_figures.rows_today()).items() if row in WATCHED}
    found = results_of("heinsen2019", results, today)
    seen = {}
    for row, name in WATCHED.items():
        if row in found:
            rule, about = today[row].stages[0].watch, info(today[row].data)
            n = min(rule.n_images, {"test": about.n_test, "validation": about.n_validation}[rule.part])
            seen[name] = Watched([result["curve"] for result in found[row]], rule.part, f"{n:,} {rule.part} {about.kind}")
    return seen

"""Figures 2 to 5 and activity by depth; figures without runs are left out."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.ops.sparse import FREQUENCIES
from torchcaps.papers.rawlinson2018 import ablations, rows
from torchcaps.papers.rawlinson2018.drawing import (
    by_depth,
    latent_sweeps,
    rank_frequencies,
    ranked_support,
    single_capsules,
)
from torchcaps.results.claims import recipes_of
from torchcaps.results.store import read_result
from torchcaps.train.checkpoint import load_checkpoint
from torchcaps.train.loading import load_model
from torchcaps.train.plain import unlike
from torchcaps.train.recipe import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

PAPER = "rawlinson2018"
# networks of each figure, and their rows
FIGURE_3 = {
    "supervised": "mnist-supervised",
    "dense": "mnist-dense",
    "sparse": "mnist-sparse",
    "sparse, our boosts": "mnist-steered",
}
FIGURE_4 = {"28x28, the paper's boosts": "mnist-sparse", "40x40, the paper's boosts": "like-sparse"}
FIGURE_4_OURS = {"28x28, our boosts": "mnist-steered", "40x40, our boosts": "like-steered"}
DEPTH = {
    "sparse, dynamic routing": "stack-sparse",
    "dense, dynamic routing": "stack-dense",
    "sparse, EM routing": "stack-em-sparse",
    "dense, EM routing": "stack-em-dense",
}
WORDS = {"mnist-sparse": "Sparse capsules", "mnist-dense": "Dense capsules, trained without the mask"}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw all that the result files in `results` and the checkpoints in `runs` allow, with captions."""
    made, today = {}, _today()
    for recipe, words in WORDS.items():
        checkpoint = runs / PAPER / recipe / "0" / "checkpoint.safetensors"
        if not (checkpoint.exists() and _finished(checkpoint, today[recipe])):
            continue
        model, run, about = load_model(checkpoint, device)
        data, kind = load(run.data, "test", root, about["seed"]), recipe.removeprefix("mnist-")
        made["figure-2" if kind == "dense" else "figure-2-sparse"] = single_capsules(model, data, words)
        made["figure-5" if kind == "sparse" else "figure-5-dense"] = latent_sweeps(model, data, words)
    drawn = {
        "figure-3": (FIGURE_3, ranked_support),
        "figure-4": (FIGURE_4, partial(rank_frequencies, aim=FREQUENCIES)),
        "figure-4-our-boosts": (FIGURE_4_OURS, partial(rank_frequencies, aim=None)),
        "depth": (DEPTH, by_depth),
    }
    for name, (shown, draw) in drawn.items():
        told = {words: _extras(results, recipe, today[recipe]) for words, recipe in shown.items()}
        if there := {words: numbers for words, numbers in told.items() if numbers}:
            made[name] = draw(there)
    return made


def _today() -> dict[str, Run]:
    """Collect the current runs of the networks, by name."""
    made = recipes_of(PAPER, rows) | recipes_of(PAPER, ablations)
    return {name.removeprefix(f"{PAPER}/"): recipe.make() for name, recipe in made.items()}


def _finished(checkpoint: Path, run: Run) -> bool:
    """Check that a checkpoint belongs to the current run and is the end of its last stage."""
    about = load_checkpoint(checkpoint).about
    return about.get("ended", False) and about["stage"] == len(run.stages) - 1 and not unlike(about["run"], run)


def _extras(results: Path, recipe: str, run: Run) -> dict[str, Any] | None:
    """Read the extras of the row's first seed, if its result belongs to the current run."""
    for path in sorted((results / PAPER / recipe).glob("*.json"), key=lambda path: int(path.stem)):
        result = read_result(path)
        if not unlike(result["run"], run):
            return result["extras"]
    return None

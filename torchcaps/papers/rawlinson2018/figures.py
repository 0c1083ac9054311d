"""Figures 2, 3, 4, 5, 5 for the dense network, and activity by depth: each where the runs that it shows are there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.figures.latents import by_depth, latent_sweeps, rank_frequencies, ranked_support, single_capsules
from torchcaps.ops.sparse import FREQUENCIES
from torchcaps.papers.rawlinson2018 import depth, ideas, rows
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
BY_SUPPORT = {"supervised": "mnist-supervised", "dense": "mnist-dense", "sparse": "mnist-sparse", "sparse, steered": "mnist-steered-5"}
BY_DEPTH = {"sparse": "stack-sparse", "dense": "stack-dense", "sparse, EM": "stack-em-sparse", "dense, EM": "stack-em-dense"}
WORDS = {"mnist-sparse": "Sparse capsules", "mnist-dense": "Dense capsules, trained without the mask"}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `results` holds result files, `runs` checkpoints; what is missing is left out."""
    made, today = {}, _today()
    for recipe, words in WORDS.items():
        checkpoint = runs / PAPER / recipe / "0" / "checkpoint.safetensors"
        if not (checkpoint.exists() and _finished(checkpoint, today[recipe])):
            continue
        model, run, about = load_model(checkpoint, device)
        data, kind = load(run.data, "test", root, about["seed"]), recipe.removeprefix("mnist-")
        made["figure-2" if kind == "dense" else "figure-2-sparse"] = single_capsules(model, data, words)
        made["figure-5" if kind == "sparse" else "figure-5-dense"] = latent_sweeps(model, data, words)
    kinds = {name: _extras(results, recipe, today[recipe]) for name, recipe in BY_SUPPORT.items()}
    if several := {name: numbers for name, numbers in kinds.items() if numbers}:
        made["figure-3"] = ranked_support(several)
    if kinds["sparse"]:
        made["figure-4"] = rank_frequencies(kinds["sparse"], WORDS["mnist-sparse"], FREQUENCIES)
    if kinds["sparse, steered"]:
        made["figure-4-steered"] = rank_frequencies(
            kinds["sparse, steered"], "Sparse capsules whose boosts follow every batch, five passes", None
        )
    told = {name: _extras(results, recipe, today[recipe]) for name, recipe in BY_DEPTH.items()}
    if deep := {name: numbers for name, numbers in told.items() if numbers}:
        made["depth"] = by_depth(deep)
    return made


def _today() -> dict[str, Run]:
    """The runs of today's networks, by name."""
    made = {**recipes_of(PAPER, rows), **recipes_of(PAPER, ideas), **recipes_of(PAPER, depth)}
    return {name.removeprefix(f"{PAPER}/"): recipe.make() for name, recipe in made.items()}


def _finished(checkpoint: Path, run: Run) -> bool:
    """Whether it is of today's run, and of its last stage's end."""
    about = load_checkpoint(checkpoint).about
    return about.get("ended", False) and about["stage"] == len(run.stages) - 1 and not unlike(about["run"], run)


def _extras(results: Path, recipe: str, run: Run) -> dict[str, Any] | None:
    """What the first seed of the row tells besides its metrics."""
    for path in sorted((results / PAPER / recipe).glob("*.json"), key=lambda path: int(path.stem)):
        result = read_result(path)
        if not unlike(result["run"], run):
            return result["extras"]
    return None

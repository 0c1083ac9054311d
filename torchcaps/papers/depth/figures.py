"""Accuracy against depth, from the result files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.figures.canvas import canvas
from torchcaps.papers.depth import rows
from torchcaps.results.claims import recipes_of
from torchcaps.results.statistics import by_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

SETS = {
    "mnist": "MNIST, 10 classes",
    "places": "digits at five places, 50 classes",
    "colour": "64x64 RGB, 10 classes, one layer more",
}
DEPTHS = range(1, 6)
CAPTION = (
    "Test accuracy after ten epochs against the number of routed layers; every seed is a dot, lines join the means. "
    "Deeper networks learn as well as one layer. Frozen as they started, five layers lose two to six points: "
    "the capsules earn their accuracy, not the stem alone."
)


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw accuracy against depth for the sets that have results."""
    recipes = recipes_of("depth", rows)
    accuracy = {
        name.split("/")[1]: [100 - error for error in by_seed(recipe, results, "error_percent").values()]
        for name, recipe in recipes.items()
    }
    if not any(accuracy.values()):
        return {}
    with canvas(6.4, 3.6) as figure:
        axes = figure.subplots()
        for set_name, words in SETS.items():
            found = {depth: accuracy[f"{set_name}-{depth}"] for depth in DEPTHS if accuracy.get(f"{set_name}-{depth}")}
            means = [sum(values) / len(values) for values in found.values()]
            (line,) = axes.plot(list(found), means, label=words)
            for depth, values in found.items():
                axes.plot([depth] * len(values), values, "o", markersize=4, color=line.get_color())
        frozen = accuracy["mnist-5-frozen"]
        axes.plot([5] * len(frozen), frozen, "x", color="0.3", label="MNIST, five layers frozen as they started")
        axes.set(xlabel="routed layers", ylabel="test accuracy, %", xticks=list(DEPTHS))
        axes.legend(loc="lower left", fontsize=8)
    return {"depth": (figure, CAPTION)}

"""Test error against depth, from the result files."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.figures.canvas import BLUE, GREEN, INK, MUTED, ORANGE, canvas
from torchcaps.papers.depth import rows
from torchcaps.results.claims import recipes_of
from torchcaps.results.statistics import by_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

SETS = {
    "mnist": ("MNIST, 10 classes", BLUE),
    "places": ("digits at five places, 50 classes", GREEN),
    "colour": ("64x64 RGB, behind a convolutional capsule layer", ORANGE),
}
DEPTHS = range(1, 6)
CAPTION = (
    "Test error after ten epochs against the number of routed layers; small dots are single seeds, lines join the "
    "means. Deeper networks learn as well as one layer. Frozen as they started, five layers have five to twelve times "
    "the error: the capsules earn their accuracy, not the stem alone."
)


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw the error against depth for the sets that have results."""
    errors = {
        name.split("/")[1]: list(by_seed(recipe, results, "error_percent").values())
        for name, recipe in recipes_of("depth", rows).items()
    }
    if not any(errors.values()):
        return {}
    with canvas(6.4, 3.8) as figure:
        axes = figure.subplots()
        for set_name, (words, colour) in SETS.items():
            found = {depth: errors[f"{set_name}-{depth}"] for depth in DEPTHS if errors.get(f"{set_name}-{depth}")}
            axes.plot(list(found), [mean(values) for values in found.values()], color=colour, label=words)
            for depth, values in found.items():
                axes.plot([depth] * len(values), values, "o", markersize=3.5, color=colour)
        frozen = errors["mnist-5-frozen"]
        axes.plot([5] * len(frozen), frozen, "x", color=INK, label="MNIST, five layers frozen as they started")
        axes.plot([], [], "o", markersize=3.5, color=MUTED, label="small dots: one seed")
        axes.set(xlabel="routed layers", ylabel="test error, %", xticks=list(DEPTHS), ylim=(0, None))
        axes.grid(axis="y")
        axes.legend(loc="upper left")
    return {"depth": (figure, CAPTION)}

"""Figure 8 of Heinsen 2019, images and sentences alike: loss and accuracy after each epoch, from journals of runs with a `Stage.watch`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.figures.canvas import BLUE, GREEN, SKY, canvas
from torchcaps.figures.numbers import series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

Journal = list[dict[str, Any]]
FEW = 10  # epochs: between so few a line alone would look like more than was measured


class Watched(NamedTuple):
    """The journals of a network's runs, and what they looked at."""

    journals: Sequence[Journal]
    part: str  # as the lines of the journals name it
    which: str  # in words: 2,500 test images


class Band(NamedTuple):
    """By epoch, the mean over runs, and how far batches of one run spread."""

    epochs: list[int]
    means: Float[Tensor, " t"]
    spread: Float[Tensor, " t"]
    each: Float[Tensor, "runs t"]


def validation_curves(found: Mapping[str, Watched]) -> tuple[Figure, str]:
    """By name, a column each, the loss above the accuracy. With a caption."""
    losses = {name: band(seen.journals, f"watched_{seen.part}_loss") for name, seen in found.items()}
    errors = {name: band(seen.journals, f"watched_{seen.part}_error_percent") for name, seen in found.items()}
    with canvas(max(4.2, 3.0 * len(found)), 4.6) as figure:
        grid = figure.subplots(2, len(found), squeeze=False, sharex="col")
        for (above, below), name in zip(grid.T, found, strict=True):
            _draw(above, losses[name], BLUE)
            wrong = errors[name]
            right = wrong._replace(means=100 - wrong.means, each=100 - wrong.each)
            _draw(below, right, GREEN)
            above.set_ylim(bottom=0)
            below.set_ylim(top=min(100.5, below.get_ylim()[1]))
            above.set_title(name)
            below.set_xlabel("epoch")
            below.xaxis.get_major_locator().set_params(integer=True)
        grid[0, 0].set_ylabel("loss")
        grid[1, 0].set_ylabel("accuracy, %")
    return figure, _words(found, errors)


def _words(found: Mapping[str, Watched], errors: Mapping[str, Band]) -> str:
    names: dict[str, list[str]] = {}  # by what they looked at
    for name, seen in found.items():
        names.setdefault(seen.which, []).append(name)
    looked = "; ".join(f"of {which} ({', '.join(those)})" for which, those in names.items())
    ends = "; ".join(f"{name} {100 - errors[name].means[-1]:.2f} % after {errors[name].epochs[-1]} epochs" for name in found)
    n_runs = ", ".join(f"{len(seen.journals)} of {name}" for name, seen in found.items())
    of_tests = any(seen.part == "test" for seen in found.values())
    return (
        f"Loss and accuracy after each epoch, {looked}; no run was stopped and no step chosen by them. The line is the mean over "
        f"runs ({n_runs}), thin lines are the runs; shaded is the standard deviation over batches as large as those of training, the mean "
        f"over runs. At the end: {ends}. After figure 8 of Heinsen (2019)"
        f"{', whose validation images for smallNORB are crops of test images as well' * of_tests}."
    )


def band(journals: Sequence[Journal], name: str) -> Band:
    """Of the epochs that every run has."""
    found = []
    for journal in journals:
        lines = [line for line in journal if "epoch" in line and name in line]
        found.append({line["epoch"]: (line[name], line.get(f"{name}_sd", 0.0)) for line in lines})
    epochs = sorted(set.intersection(*(set(run) for run in found))) if found else []
    if not epochs:
        steps = [len(series(journal, name)[0]) for journal in journals]
        raise ValueError(f"validation_curves needs journal lines with 'epoch' and {name!r}, got {steps} of them; give the stage a Watch")
    values = torch.tensor([[run[epoch] for epoch in epochs] for run in found], dtype=torch.float64)  # [runs t 2]
    return Band(epochs, values[..., 0].mean(0), values[..., 1].mean(0), values[..., 0])


def _draw(axes: Axes, found: Band, colour: str) -> None:
    low, high = (found.means - found.spread).numpy(), (found.means + found.spread).numpy()
    axes.fill_between(found.epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    for run in found.each if len(found.each) > 1 else ():
        axes.plot(found.epochs, run.numpy(), color=SKY if colour == BLUE else colour, linewidth=0.6, alpha=0.6)
    axes.plot(found.epochs, found.means.numpy(), color=colour, marker="o" if len(found.epochs) <= FEW else None, markersize=4)
    axes.grid(axis="y")

"""Figure 8, loss and accuracy after each epoch of runs with a `Stage.watch`; and test error by viewpoint."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data.sets.smallnorb import FAMILIAR
from torchcaps.figures.canvas import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, SKY, canvas
from torchcaps.figures.numbers import series
from torchcaps.papers.heinsen2019.poses import in_degrees

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

Curve = list[dict[str, Any]]
ByView = Mapping[int, float]  # the official number of a view -> percent error
FEW = 10  # epochs: up to this number every point gets a marker
COLOURS = (BLUE, ORANGE, GREEN, SKY, INK)
STEP = {"azimuth": 20, "elevation": 5}  # degrees from one view to the next


class Watched(NamedTuple):
    """Metrics logs of a network's runs, and the data they were evaluated on."""

    journals: Sequence[Curve]
    part: str  # its name in the metrics log
    which: str  # description: 2,500 test images


class Band(NamedTuple):
    """Mean over runs by epoch, and the standard deviation over the batches of a run."""

    epochs: list[int]
    means: Float[Tensor, " t"]
    spread: Float[Tensor, " t"]
    each: Float[Tensor, "runs t"]


def validation_curves(found: Mapping[str, Watched]) -> tuple[Figure, str]:
    """Draw one column per network: the loss above the accuracy."""
    losses = {name: band(seen.journals, f"watched_{seen.part}_loss") for name, seen in found.items()}
    errors = {name: band(seen.journals, f"watched_{seen.part}_error_percent") for name, seen in found.items()}
    with canvas(max(4.2, 3.0 * len(found)), 5.0) as figure:
        grid = figure.subplots(2, len(found), squeeze=False, sharex="col")
        for (above, below), name in zip(grid.T, found, strict=True):
            _draw(above, losses[name], BLUE)
            wrong = errors[name]
            _draw(below, wrong._replace(means=100 - wrong.means, each=100 - wrong.each), GREEN)
            above.set_ylim(bottom=0)
            below.set_ylim(top=min(100.5, below.get_ylim()[1]))
            above.set_title(f"{name}\n{found[name].which}")
            above.set_ylabel("loss")
            below.set(xlabel="epoch", ylabel="accuracy, %")
            below.xaxis.get_major_locator().set_params(integer=True)
        for axes in grid[:, 0]:
            axes.legend(loc="center right")
    return figure, _curve_words(found, errors)


def _curve_words(found: Mapping[str, Watched], errors: Mapping[str, Band]) -> str:
    names: dict[str, list[str]] = {}  # by evaluation data
    for name, seen in found.items():
        names.setdefault(seen.which, []).append(name)
    on = "; ".join(f"{which} ({', '.join(those)})" for which, those in names.items())
    ends = "; ".join(
        f"{name} {100 - errors[name].means[-1]:.2f} % after {errors[name].epochs[-1]} epochs" for name in found
    )
    n_runs = ", ".join(f"{len(seen.journals)} of {name}" for name, seen in found.items())
    words = (
        f"Loss and accuracy after each epoch, on {on}; no run was stopped and no step chosen by them. Runs: {n_runs}. "
        f"At the end: {ends}. After figure 8 of Heinsen (2019)"
    )
    if any(seen.part == "test" for seen in found.values()):
        words += ", whose validation images for smallNORB are crops of test images too"
    return f"{words}."


def band(journals: Sequence[Curve], name: str) -> Band:
    """Collect the epochs that every run has."""
    found = []
    for journal in journals:
        lines = [line for line in journal if "epoch" in line and name in line]
        found.append({line["epoch"]: (line[name], line.get(f"{name}_sd", 0.0)) for line in lines})
    epochs = sorted(set.intersection(*(set(run) for run in found))) if found else []
    if not epochs:
        steps = [len(series(journal, name)[0]) for journal in journals]
        raise ValueError(
            f"validation_curves needs journal lines with 'epoch' and {name!r}, got {steps} of them; "
            "give the stage a Watch"
        )
    values = torch.tensor([[run[epoch] for epoch in epochs] for run in found], dtype=torch.float64)  # [runs t 2]
    return Band(epochs, values[..., 0].mean(0), values[..., 1].mean(0), values[..., 0])


def _draw(axes: Axes, found: Band, colour: str) -> None:
    low, high = (found.means - found.spread).numpy(), (found.means + found.spread).numpy()
    axes.fill_between(found.epochs, low, high, color=colour, alpha=0.15, linewidth=0, label="sd over batches")
    for number, run in enumerate(found.each if len(found.each) > 1 else ()):
        label = "one run" if number == 0 else None
        axes.plot(
            found.epochs, run.numpy(), color=SKY if colour == BLUE else colour, linewidth=0.6, alpha=0.6, label=label
        )
    marker = "o" if len(found.epochs) <= FEW else None
    axes.plot(found.epochs, found.means.numpy(), color=colour, marker=marker, markersize=4, label="mean of runs")
    axes.grid(axis="y")


def errors_at(wrong: Bool[Tensor, " n"], views: Int64[Tensor, " n"]) -> dict[int, float]:
    """Compute the percent error of every view."""
    return {int(view): 100 * wrong[views == view].double().mean().item() for view in views.unique()}


def errors_by_view(found: Mapping[str, Mapping[str, Sequence[ByView]]]) -> tuple[Figure, str]:
    """Draw the error of every run by view: one panel per varied angle, one colour per network."""
    names = dict.fromkeys(name for networks in found.values() for name in networks)
    colours = dict(zip(names, COLOURS, strict=False))  # the same colour in all panels
    with canvas(4.2 * len(found), 3.6) as figure:
        for axes, (vary, networks) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            for number, view in enumerate(FAMILIAR[vary]):
                middle, half = in_degrees(vary, view), STEP[vary] / 2
                label = "training views, other lighting" if number == 0 else None
                axes.axvspan(middle - half, middle + half, color=FAINT, linewidth=0, zorder=0, label=label)
            for name, runs in networks.items():
                _network(axes, vary, name, runs, colours[name])
            axes.set(xlabel=f"{vary}, degrees", ylabel="test error, %", title=f"Error by {vary}")
            axes.set_ylim(bottom=0)
        if any(len(runs) > 1 for networks in found.values() for runs in networks.values()):
            axes.plot([], [], "o", color=MUTED, markersize=3, alpha=0.6, label="small dots: one seed")
        handles, words = axes.get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=len(words))
    n_runs = "; ".join(
        f"{vary}: {', '.join(f'{len(runs)} of {name}' for name, runs in some.items())}" for vary, some in found.items()
    )
    return figure, (
        "Test error by viewpoint. Shaded: training views, tested in other lighting; all other views are new. "
        "Trained on toys of the official test set, and tested on the same toys. "
        f"Lines are means over runs ({n_runs}), points are runs."
    )


def _network(axes: Axes, vary: str, name: str, runs: Sequence[ByView], colour: str) -> None:
    views = sorted(set.intersection(*(set(run) for run in runs)))
    degrees = [in_degrees(vary, view) for view in views]
    several = len(runs) > 1
    for run in runs if several else ():
        axes.plot(degrees, [run[view] for view in views], "o", color=colour, markersize=3, alpha=0.4)
    means = [mean(run[view] for run in runs) for view in views]
    axes.plot(degrees, means, color=colour, marker=None if several else "o", markersize=3, label=name)

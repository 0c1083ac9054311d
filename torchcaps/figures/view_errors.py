"""Errors by viewpoint, where some viewpoints were never trained on."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool, Int64
from torch import Tensor

from torchcaps.data.sets.smallnorb import FAMILIAR
from torchcaps.figures.canvas import BLUE, FAINT, GREEN, INK, ORANGE, SKY, canvas
from torchcaps.figures.view_numbers import in_degrees

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

COLOURS = (BLUE, ORANGE, GREEN, SKY, INK)
ByView = Mapping[int, float]  # the official number of a view -> percent wrong


def errors_at(wrong: Bool[Tensor, " n"], views: Int64[Tensor, " n"]) -> dict[int, float]:
    """Percent of wrong answers for every view that there is."""
    return {int(view): 100 * wrong[views == view].double().mean().item() for view in views.unique()}


def errors_by_view(found: Mapping[str, Mapping[str, Sequence[ByView]]]) -> tuple[Figure, str]:
    """By what varies and by network, the errors of its runs: views that were trained on are shaded. With a caption."""
    names = dict.fromkeys(name for networks in found.values() for name in networks)
    colours = dict(zip(names, COLOURS, strict=False))  # a network keeps its own, whatever else a panel shows
    with canvas(4.2 * len(found), 3.3) as figure:
        for axes, (vary, networks) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            for name, runs in networks.items():
                _network(axes, vary, name, runs, colours[name])
            for view in FAMILIAR[vary]:
                width = 20 if vary == "azimuth" else 5
                axes.axvspan(in_degrees(vary, view) - width / 2, in_degrees(vary, view) + width / 2, color=FAINT, linewidth=0, zorder=0)
            axes.set(xlabel=f"{vary}, degrees", title=f"Test error in % by {vary}")
            axes.set_ylim(bottom=0)
            axes.legend()
    n_runs = "; ".join(f"{vary}: {', '.join(f'{len(runs)} of {name}' for name, runs in some.items())}" for vary, some in found.items())
    return figure, (
        "Wrong answers by viewpoint. Shaded: views that were trained on, tested in another light; all others were never seen. Trained on "
        f"toys of the official test part, and tested on the same toys. Lines are means over runs ({n_runs}), points are runs."
    )


def _network(axes: Axes, vary: str, name: str, runs: Sequence[ByView], colour: str) -> None:
    views = sorted(set.intersection(*(set(run) for run in runs)))
    degrees = [in_degrees(vary, view) for view in views]
    for run in runs if len(runs) > 1 else ():
        axes.plot(degrees, [run[view] for view in views], "o", color=colour, markersize=3, alpha=0.4)
    axes.plot(degrees, [mean(run[view] for run in runs) for view in views], color=colour, marker="o", markersize=3, label=name)

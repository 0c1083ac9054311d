"""Error against the time of a training step, from the result files."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.figures.canvas import BLUE, INK, MUTED, ORANGE, PALE, canvas
from torchcaps.papers.routings.measured import Measured, measured
from torchcaps.papers.routings.rows import SETS, WITHOUT_CAPSULES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

APART = 0.062  # of the height, between two labels
FAR, CLOSE = (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)  # digits at ticks
CAPTION = (
    "Test error against the time of a training step on {set}; the lower left is best. A dot is the mean over seeds, "
    "its bar their range. One stem and one training for all; orange has no capsules."
)


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw error against milliseconds for the sets that have results."""
    made = {}
    for which, words in SETS.items():
        rows = [row for row in measured(which, results) if row.errors and row.ms_per_step is not None]
        if rows:
            made[f"{which}-error-against-time"] = _drawn(rows), CAPTION.format(set=words)
    return made


def _drawn(rows: list[Measured]) -> Figure:
    with canvas(6.4, 4.2) as figure:
        axes = figure.subplots()
        for row in rows:
            colour = ORANGE if row.name in WITHOUT_CAPSULES else BLUE
            axes.plot([row.ms_per_step] * 2, [min(row.errors), max(row.errors)], color=colour, linewidth=1)
            axes.plot(row.ms_per_step, mean(row.errors), "o", color=colour, markersize=5)
        axes.set(xlabel="ms per training step", ylabel="test error, %", xscale="log", yscale="log")
        axes.set_xticks(_ticks([row.ms_per_step for row in rows]))
        axes.set_yticks(_ticks([error for row in rows for error in row.errors]))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(True)
        _label(axes, rows)
    return figure


def _ticks(values: list[float]) -> list[float]:
    """Return round numbers from below the least value to above the largest; 0.001 is the least on a log axis."""
    digits = CLOSE if max(values) < 3 * min(values) else FAR
    steps = [digit * 10.0**power for power in range(-3, 6) for digit in digits]
    low = max((step for step in steps if step <= min(values)), default=steps[0])
    high = min((step for step in steps if step >= max(values)), default=steps[-1])
    return [step for step in steps if low <= step <= high]


def _spread(heights: list[float]) -> list[float]:
    """Move rising heights apart: first up, then down from the top."""
    for n in range(1, len(heights)):
        heights[n] = max(heights[n], heights[n - 1] + APART)
    heights[-1] = min(heights[-1], 1.0)
    for n in reversed(range(len(heights) - 1)):
        heights[n] = min(heights[n], heights[n + 1] - APART)
    return heights


def _label(axes: Axes, rows: list[Measured]) -> None:
    """Name the points in a column at the right, in the order of their errors, with a line to each."""
    ordered = sorted(rows, key=lambda row: mean(row.errors))
    on_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(on_axes.transform((row.ms_per_step, mean(row.errors)))[1]) for row in ordered]
    for row, height in zip(ordered, _spread(wanted), strict=True):
        axes.annotate(
            f"{row.about}, {mean(row.errors):.2f} %",
            xy=(row.ms_per_step, mean(row.errors)),
            xytext=(1.03, height),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            color=INK if row.name not in WITHOUT_CAPSULES else MUTED,
            arrowprops={"arrowstyle": "-", "color": PALE, "linewidth": 0.6, "shrinkB": 3, "relpos": (0, 0.5)},
            annotation_clip=False,
        )

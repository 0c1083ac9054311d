"""Figure of `torchcaps bench scale`."""

import io
from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING, Any

from torchcaps.figures.canvas import BLUE, MUTED, ORANGE, canvas, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

COLOURS = {"reference": ORANGE, "triton": BLUE, "blocked": BLUE}
MARKS = {"reference": "s", "triton": "o", "blocked": "o"}
LABELS = {"n_in": "input capsules", "n_out": "output capsules", "batch": "batch size"}
MIB = 2**20
N_COLOURS = 64
Curve = Sequence[tuple[float, float]]


def scale_png(record: dict[str, Any]) -> bytes:
    """Render the figure as PNG with few colours, a quarter of the size, since it is committed to the repository."""
    figure = png(draw_scale(record))
    from PIL import Image  # comes with matplotlib

    buffer = io.BytesIO()
    Image.open(io.BytesIO(figure)).convert("RGB").quantize(N_COLOURS).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def draw_scale(record: dict[str, Any]) -> Figure:
    """Draw time above and memory below, one column per axis, all logarithmic. A dashed line is linear growth."""
    with canvas(7.5, 5.2) as figure:
        grid = figure.subplots(2, len(record["axes"]), squeeze=False, sharex="col")
        for above, below, axis in zip(*grid, record["axes"], strict=True):
            _draw(above, _curves(axis, "ms", 1.0))
            _draw(below, _curves(axis, "bytes_beyond", MIB))
            _write_exponents(above, axis["exponents"])
            above.set_title(axis["words"].replace(", weights", "\nweights"))
            below.set_xlabel(LABELS[axis["name"]])
        grid[0][0].set_ylabel("forward and backward, ms")
        grid[1][0].set_ylabel("peak beyond inputs, outputs\nand gradients, MiB")
        handles, names = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=len(names))
        figure.supxlabel(_caption(record), fontsize=7.5, color=MUTED, x=0.01, ha="left")
        return figure


def _curves(axis: dict[str, Any], what: str, unit: float) -> dict[str, Curve]:
    """Return the curve of each backend, without missing values and zeros, which a logarithmic axis cannot show."""
    curves: dict[str, list[tuple[float, float]]] = {backend: [] for backend in axis["exponents"]}
    for point in axis["points"]:
        if point[what]:
            curves[point["backend"]].append((point["value"], point[what] / unit))
    return curves


def _draw(axes: Axes, curves: dict[str, Curve]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set(xscale="log", yscale="log")
    axes.grid(axis="y")
    for backend, curve in curves.items():
        if curve:
            style = {"color": COLOURS[backend], "marker": MARKS[backend], "markersize": 4}
            axes.plot(*zip(*curve, strict=True), **style, label=backend)
    if fast := list(curves.values())[-1]:
        (first, _), (last, height) = fast[0], fast[-1]
        line = [first, last], [height * first / last, height]
        axes.plot(*line, "--", color=MUTED, linewidth=1, zorder=1, label="linear growth")
    sizes = sorted({size for curve in curves.values() for size, _ in curve})
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if _decades(axes) > 1.5 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _decades(axes: Axes) -> float:
    bottom, top = axes.get_ylim()
    return log10(top / bottom)


def _write_exponents(axes: Axes, exponents: dict[str, float | None]) -> None:
    """Write the exponents into the lower right corner, below the rising curves."""
    known = [(backend, exponent) for backend, exponent in exponents.items() if exponent is not None]
    for line, (backend, exponent) in enumerate(known):
        words = f"$n^{{{exponent:.2f}}}$"
        where = {"xy": (1.0, 0.03 + 0.11 * line), "xycoords": "axes fraction", "ha": "right"}
        axes.annotate(words, **where, color=COLOURS[backend], fontsize=9)


def _short(size: float) -> str:
    """Shorten a size: 4096 -> 4k, 1000 -> 1k, 1152 unchanged."""
    thousand = next((n for n in (1024, 1000) if size >= n and size % n == 0), None)
    return f"{size / thousand:g}k" if thousand else f"{size:g}"


def _caption(record: dict[str, Any]) -> str:
    changed = " with changes" if record["dirty"] else ""
    code = "" if record["commit"] == "unknown" else f", commit {record['commit'][:12]}{changed}"
    dtype = record["dtype"].removeprefix("torch.")
    left_out = any(point["reason"].startswith("left out") for axis in record["axes"] for point in axis["points"])
    ends = " The reference ends where its votes would need too much memory." if left_out else ""
    sizes = f"{record['d_in']} -> {record['d_out']} dimensions, {record['n_iters']} iterations"
    return (
        f"Dynamic routing, {sizes}, {dtype}.{ends}\nExponents of time, fitted over the upper half of the sizes.\n"
        f"{record['device']}, torch {record['versions']['torch']}{code}."
    )

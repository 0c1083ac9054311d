"""Figure A.1, and what further routing iterations do to a trained network."""

import re
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from torchcaps.figures.canvas import BLUE, GREEN, INK, MUTED, ORANGE, SKY, canvas
from torchcaps.figures.numbers import series
from torchcaps.figures.routing_curves import Curve, log_scale, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

PRINTED = {2: 0.007, 5: 1e-5}  # logit change by iteration, after 500 epochs on MNIST: appendix A
COLOURS = (BLUE, SKY, GREEN, ORANGE, MUTED, INK)
Diagnostics = Mapping[str, Any]  # as a result file holds them


def logit_change_curves(journal: Curve) -> tuple[Figure, str]:
    """Draw figure A.1 from lines that hold `logit_change_2` and so on. With a caption."""
    curves = _by_iteration(journal)
    last = {number: values[-1] for number, (_, values) in curves.items()}
    with canvas(8.0, 3.1) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
        for (number, (steps, values)), colour in zip(curves.items(), COLOURS, strict=False):
            left.plot(steps, values, marker=marker(steps), color=colour, linewidth=1.4, label=f"iteration {number}")
            named = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 8, "color": colour}
            left.annotate(f"iteration {number}", (steps[-1], values[-1]), **named)
        left.set(xlabel="training step", ylabel="mean change of a logit (log scale)", title="During training")
        left.set_xlim(0, 1.28 * max(steps[-1] for steps, _ in curves.values()))  # room for the names
        log_scale(left)
        right.plot(list(last), list(last.values()), "o-", color=BLUE, markersize=5, label="ours")
        _printed_points(right)
        right.set(xlabel="routing iteration", ylabel="mean change of a logit (log scale)", title="After training")
        right.set_yscale("log")
        right.set_xticks(sorted({*last, *PRINTED}))
        right.margins(x=0.2)
        right.legend()
        for axes in (left, right):
            axes.grid(visible=True, axis="y")
    return figure, _change_words(last, max(steps[-1] for steps, _ in curves.values()))


def iterations_at_test(found: Mapping[str, Sequence[Diagnostics]]) -> tuple[Figure, str]:
    """Draw what happens when a trained network routes longer or shorter than in training. With a caption."""
    with canvas(8.6, 3.2) as figure:
        left, right = figure.subplots(1, 2)
        for (name, seeds), colour in zip(found.items(), COLOURS, strict=False):
            passes = [diagnostics["passes"] for diagnostics in seeds]
            iterations = [one["n_iters"] for one in passes[0]]
            right_percent = [mean(one[n]["accuracy_percent"] for one in passes) for n in range(len(iterations))]
            evenness = [mean(one[n]["entropy_share_by_length"] for one in passes) for n in range(len(iterations))]
            trained = seeds[0]["n_iters"]
            gain = [value - right_percent[iterations.index(trained)] for value in right_percent]
            left.plot(iterations, gain, "o-", color=colour, markersize=3, linewidth=1.3, label=name)
            right.plot(iterations, evenness, "o-", color=colour, markersize=3, linewidth=1.3)
        left.set(ylabel="change of accuracy, percentage points", title="Accuracy relative to training's iterations")
        right.set(ylabel="entropy / its maximum", title="Entropy of the couplings (1: uniform)")
        for axes in (left, right):
            axes.set_xlabel("routing iterations at test time")
            axes.set_xticks(iterations)
            axes.grid(visible=True, axis="y")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    seeds = "; ".join(f"{name}: {len(diagnostics)}" for name, diagnostics in found.items())
    images = next(iter(found.values()))[0]["n_images"]
    return figure, f"Trained weights, routed with one to five iterations on {images:,} test images. Seeds: {seeds}."


def _by_iteration(journal: Curve) -> dict[int, tuple[list[int], list[float]]]:
    """Collect steps and logit changes of each iteration in the metrics log."""
    names = {name for line in journal for name in line if re.fullmatch(r"logit_change_\d+", name)}
    numbers = sorted(int(name.rpartition("_")[2]) for name in names)
    curves = {number: series(journal, f"logit_change_{number}") for number in numbers}
    curves = {number: curve for number, curve in curves.items() if curve[0]}
    if not curves:
        came = ", ".join(sorted({name for line in journal for name in line})) or "nothing"
        raise ValueError(
            f"logit_change_curves needs journal lines with logit_change_2 and so on, got {len(journal)} with {came}; "
            "write what torchcaps.analysis.routing.logit_changes returns into the journal"
        )
    return curves


def _printed_points(axes: Axes) -> None:
    hollow = {"color": INK, "fillstyle": "none", "markersize": 6}
    axes.plot(list(PRINTED), list(PRINTED.values()), "D", label="the paper's text", **hollow)
    beside = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 8, "color": MUTED}
    for number, value in PRINTED.items():
        axes.annotate(_short(value), (number, value), **beside)


def _change_words(last: dict[int, float], step: int) -> str:
    ours = ", ".join(f"{_short(value)} at iteration {number}" for number, value in last.items())
    printed = " and ".join(f"{_short(value)} at iteration {number}" for number, value in PRINTED.items())
    return (
        f"Mean absolute change of the routing logits from one iteration to the next. At step {step:,}: {ours}. "
        f"The paper prints {printed}, after 500 epochs on MNIST. After figure A.1 of Sabour, Frosst and Hinton (2017)."
    )


def _short(value: float) -> str:
    """Format a number with two digits, and 1e-5 as the paper writes it."""
    return f"{value:.2g}".replace("e-0", "e-")

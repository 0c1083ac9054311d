"""Routing by passes: loss and error of any routing, and the logits of dynamic routing (figure A.1 of Sabour 2017)."""

import re
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from torchcaps.figures.canvas import BLUE, GREEN, INK, MUTED, ORANGE, SKY, canvas
from torchcaps.figures.numbers import series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

Journal = list[dict[str, Any]]
PRINTED = {2: 0.007, 5: 1e-5}  # by pass, after 500 epochs on MNIST: appendix A
COLOURS = (BLUE, SKY, GREEN, ORANGE)
OF_PASSES = {1: ORANGE, 2: GREEN, 3: BLUE, 4: SKY, 5: MUTED}  # the colour of a curve
WIDE = 10  # times: errors that far apart want a log scale


def logit_change_curves(journal: Journal) -> tuple[Figure, str]:
    """Figure A.1, from lines that hold `logit_change_2` and so on: over training, and at its end against the pass. With a caption."""
    curves = _by_pass(journal)
    last = {number: values[-1] for number, (_, values) in curves.items()}
    with canvas(8.0, 3.1) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
        for n, (number, (steps, values)) in enumerate(curves.items()):
            name, colour = f"pass {number}", COLOURS[n % len(COLOURS)]
            left.plot(steps, values, marker=_marker(steps), color=colour, linewidth=1.4, label=name)
            left.annotate(name, (steps[-1], values[-1]), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8, color=colour)
        left.set(xlabel="training step", title="Mean change of a routing logit, on a log scale")
        left.set_xlim(0, 1.2 * max(steps[-1] for steps, _ in curves.values()))  # room for the names
        _log_scale(left)
        right.plot(list(last), list(last.values()), "o-", color=BLUE, markersize=5, label="ours, at the end")
        _printed_points(right)
        right.set(yscale="log", xlabel="routing pass", title="The same at the end, by pass")
        right.set_xticks(sorted({*last, *PRINTED}))
        right.margins(x=0.2)
        right.legend()
        for axes in (left, right):
            axes.grid(visible=True, axis="y")
    return figure, _change_words(last, max(steps[-1] for steps, _ in curves.values()))


def error_by_passes(errors: Mapping[str, Mapping[int, Sequence[float]]]) -> tuple[Figure, str]:
    """Test error of models trained with so many routing passes, by data set and passes, a number for every seed. With a caption."""
    with canvas(3.4 * len(errors), 3.0) as figure:
        for axes, (name, found) in zip(figure.subplots(1, len(errors), squeeze=False)[0], errors.items(), strict=True):
            for n_iters, values in found.items():
                axes.plot([n_iters] * len(values), values, "o", color=BLUE, alpha=0.5, markersize=4)
            axes.plot(list(found), [mean(values) for values in found.values()], "-", color=INK, linewidth=1.4)
            every = [value for values in found.values() for value in values]
            wide = max(every) > WIDE * min(every) > 0
            axes.set(xlabel="routing passes in training", title=f"{name}, test error in %{', on a log scale' * wide}")
            axes.set_xticks(list(found))
            axes.grid(visible=True, axis="y")
            if wide:
                _log_scale(axes)
            else:
                axes.set_ylim(0, 1.05 * max(every))  # from 0, and no point on the edge
    seeds = "; ".join(f"{name}: {', '.join(f'{len(values)} of {n}' for n, values in found.items())}" for name, found in errors.items())
    return figure, f"Every point is a seed, the line joins the means. Seeds by number of passes: {seeds}."


def loss_curves(journals: Mapping[int, Journal]) -> tuple[Figure, str]:
    """From lines that hold `loss`: training with so many routing passes. With a caption."""
    ends = []
    with canvas(6.0, 3.3) as figure:
        axes = figure.subplots()
        for n_iters, journal in journals.items():
            colour = OF_PASSES.get(n_iters, INK)
            steps, losses = series(journal, "loss")
            if not steps:
                raise ValueError(f"loss_curves needs journal lines with 'step' and 'loss', got {_what_came(journal)}; read metrics.jsonl")
            axes.plot(steps, losses, color=colour, linewidth=0.8, alpha=0.3)
            axes.plot(steps, smooth(losses, len(losses) // 50), marker=_marker(steps), color=colour, label=_passes(n_iters))
            ends.append(f"{_end(steps, losses):.3g} with {_passes(n_iters)}")
        axes.set(xlabel="training step", title="Training loss, on a log scale")
        axes.set_xlim(left=0)
        _log_scale(axes)
        axes.grid(visible=True, axis="y")
        axes.legend()
    return figure, (
        f"Over the last tenth of training the mean loss is {', '.join(ends)}. Faint: as logged; "
        "full: a running mean over about a twenty-fifth of the points."
    )


def smooth(values: list[float], reach: int) -> list[float]:
    """Means over up to `reach` neighbours on either side; fewer near the ends, as many on both sides, so that a slope stays one."""
    n = len(values)
    spans = [min(reach, k, n - 1 - k) for k in range(n)]
    return [sum(values[k - span : k + span + 1]) / (2 * span + 1) for k, span in enumerate(spans)]


def _by_pass(journal: Journal) -> dict[int, tuple[list[int], list[float]]]:
    """Steps and changes of each pass that some line tells of."""
    names = {name for line in journal for name in line if re.fullmatch(r"logit_change_\d+", name)}
    numbers = sorted(int(name.rpartition("_")[2]) for name in names)
    curves = {number: series(journal, f"logit_change_{number}") for number in numbers}
    curves = {number: curve for number, curve in curves.items() if curve[0]}
    if not curves:
        raise ValueError(
            f"logit_change_curves needs journal lines with logit_change_2 and so on, got {_what_came(journal)}; "
            "write what torchcaps.diagnostics.logit_changes returns into the journal"
        )
    return curves


def _log_scale(axes: Axes) -> None:
    """With lines and names at 2, 3 and 5 between the powers of ten: there may be but one of those."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "235" else "")
    axes.yaxis.get_minor_locator().set_params(subs=(2, 3, 5))
    axes.grid(visible=True, axis="y", which="both")


def _printed_points(axes: Axes) -> None:
    axes.plot(list(PRINTED), list(PRINTED.values()), "D", color=INK, fillstyle="none", markersize=6, label="the paper's text")
    for number, value in PRINTED.items():
        axes.annotate(_short(value), (number, value), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8, color=MUTED)


def _change_words(last: dict[int, float], step: int) -> str:
    ours = ", ".join(f"{_short(value)} at pass {number}" for number, value in last.items())
    printed = " and ".join(f"{_short(value)} at pass {number}" for number, value in PRINTED.items())
    return (
        f"Mean absolute change of the routing logits from one pass to the next. At step {step:,}: {ours}. The paper prints {printed}, "
        f"after 500 epochs on MNIST. By its Procedure 1 the change is the agreement of vote and output, which need not vanish as the "
        "routing settles. After figure A.1 of Sabour, Frosst and Hinton (2017)."
    )


def _short(value: float) -> str:
    """Two digits, and 1e-5 as the paper writes it."""
    return f"{value:.2g}".replace("e-0", "e-")


def _passes(n: int) -> str:
    return f"{n} routing pass{'es' * (n > 1)}"


def _end(steps: list[int], losses: list[float]) -> float:
    return mean(loss for step, loss in zip(steps, losses, strict=True) if step > 0.9 * steps[-1])


def _what_came(journal: Journal) -> str:
    return f"{len(journal)} with {', '.join(sorted({name for line in journal for name in line})) or 'nothing'}"


def _marker(steps: list[int]) -> str | None:
    """A line through one point does not show."""
    return "o" if len(steps) == 1 else None

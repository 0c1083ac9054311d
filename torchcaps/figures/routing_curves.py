"""Training loss and test error against the number of routing iterations, for any routing."""

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

Curve = list[dict[str, Any]]
COLOURS = {1: ORANGE, 2: GREEN, 3: BLUE, 4: SKY, 5: MUTED}  # colour of a curve, by routing iterations
WIDE = 10  # ratio of the largest to the smallest error above which the scale is logarithmic


def error_by_iterations(errors: Mapping[str, Mapping[int, Sequence[float]]]) -> tuple[Figure, str]:
    """Draw test errors of every seed by data set and routing iterations in training; return it with a caption."""
    with canvas(3.4 * len(errors), 3.0) as figure:
        for axes, (name, found) in zip(figure.subplots(1, len(errors), squeeze=False)[0], errors.items(), strict=True):
            for n_iters, values in found.items():
                axes.plot([n_iters] * len(values), values, "o", color=BLUE, alpha=0.5, markersize=4)
            means = [mean(values) for values in found.values()]
            axes.plot(list(found), means, "-", color=INK, linewidth=1.4, label="mean")
            axes.lines[0].set_label("one seed")
            axes.legend()
            every = [value for values in found.values() for value in values]
            wide = max(every) > WIDE * min(every) > 0
            axes.set(xlabel="routing iterations in training", title=name)
            axes.set_ylabel("test error, % (log scale)" if wide else "test error, %")
            axes.set_xticks(list(found))
            axes.grid(visible=True, axis="y")
            if wide:
                log_scale(axes)
            else:
                axes.set_ylim(0, 1.05 * max(every))  # starts at 0, with no point on the edge
    counts = {name: ", ".join(f"{len(values)} of {n}" for n, values in found.items()) for name, found in errors.items()}
    seeds = "; ".join(f"{name}: {counted}" for name, counted in counts.items())
    return figure, f"Every point is one seed, the line joins the means. Seeds by number of iterations: {seeds}."


def loss_curves(runs: Mapping[int, Curve]) -> tuple[Figure, str]:
    """Draw the training loss by number of routing iterations, from metrics logs; return it with a caption."""
    ends = []
    with canvas(6.0, 3.3) as figure:
        axes = figure.subplots()
        for n_iters, journal in runs.items():
            colour = COLOURS.get(n_iters, INK)
            steps, losses = series(journal, "loss")
            if not steps:
                came = _what_came(journal)
                raise ValueError(f"loss_curves needs lines with 'step' and 'loss', got {came}; read metrics.jsonl")
            axes.plot(steps, losses, color=colour, linewidth=0.8, alpha=0.3)
            smoothed = smooth(losses, len(losses) // 50)
            axes.plot(steps, smoothed, marker=marker(steps), color=colour, label=_iterations(n_iters))
            ends.append(f"{_end(steps, losses):.3g} with {_iterations(n_iters)}")
        axes.plot([], [], color=MUTED, linewidth=0.8, alpha=0.6, label="thin lines: as logged")
        axes.set(xlabel="training step", ylabel="training loss (log scale)")
        axes.set_xlim(left=0)
        log_scale(axes)
        axes.grid(visible=True, axis="y")
        axes.legend()
    return figure, (
        f"Over the last tenth of training the mean loss is {', '.join(ends)}. Faint lines: as logged. "
        "Strong lines: running mean over 4 % of the points."
    )


def smooth(values: list[float], reach: int) -> list[float]:
    """Compute running means over up to `reach` neighbours per side, symmetric and narrower near the ends."""
    n = len(values)
    spans = [min(reach, k, n - 1 - k) for k in range(n)]
    return [sum(values[k - span : k + span + 1]) / (2 * span + 1) for k, span in enumerate(spans)]


def log_scale(axes: Axes) -> None:
    """Set a log scale that also labels 2, 3 and 5 times each power of ten, since few powers may be in range."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "235" else "")
    axes.yaxis.get_minor_locator().set_params(subs=(2, 3, 5))
    axes.grid(visible=True, axis="y", which="both")


def _iterations(n: int) -> str:
    return "1 routing iteration" if n == 1 else f"{n} routing iterations"


def _end(steps: list[int], losses: list[float]) -> float:
    return mean(loss for step, loss in zip(steps, losses, strict=True) if step > 0.9 * steps[-1])


def _what_came(journal: Curve) -> str:
    return f"{len(journal)} with {', '.join(sorted({name for line in journal for name in line})) or 'nothing'}"


def marker(steps: list[int]) -> str | None:
    """Pick a marker for a curve of one point, since its line is invisible."""
    return "o" if len(steps) == 1 else None

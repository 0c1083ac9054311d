"""Drawing functions. Each returns a matplotlib Figure; `numbers` computes what it shows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from torchcaps.analysis.metrics import confusion
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation
from torchcaps.figures import numbers
from torchcaps.figures.canvas import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PALE,
    SKY,
    bare,
    canvas,
    gains,
    montage,
    place,
    show,
    write,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

MAX_CLASSES = 10  # shown side by side
MAX_ITERATIONS = 4  # routing iterations shown side by side


def learning_curve(curve: list[dict[str, Any]]) -> Figure:
    """Draw the metrics log of a run: the loss with its parts, and the error."""
    losses = {
        "loss": ("loss", BLUE, 2.2),
        "margin": ("margin loss", SKY, 1.4),
        "reconstruction": ("reconstruction loss", GREEN, 1.4),
    }
    with canvas(8.0, 3.1) as figure:
        left, right = figure.subplots(1, 2)
        for name, (words, colour, width) in losses.items():
            steps, values = numbers.series(curve, name)
            if steps:
                left.plot(steps, values, marker=_marker(steps), color=colour, linewidth=width, label=words)
        left.set(yscale="log", xlabel="training step", title="Loss, on a log scale")
        left.yaxis.set_major_formatter("{x:g}")
        left.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "25" else "")
        _error_lines(right, curve)
        for axes in (left, right):
            axes.grid(axis="y")
            axes.set_xlim(left=0)
            if axes.lines:
                axes.legend()
    return figure


def _error_lines(axes: Axes, curve: list[dict[str, Any]]) -> None:
    steps, values = numbers.series(curve, "error_percent")
    if steps:
        axes.plot(steps, values, marker=_marker(steps), color=BLUE, label=f"training, last {values[-1]:.2f} %")
    steps, values = numbers.series(curve, "validation_error_percent")
    if steps:
        axes.plot(steps, values, "o-", color=GREEN, markersize=4, label=f"validation, last {values[-1]:.2f} %")
    # linear up to one percent, so that zero can be shown
    axes.set_yscale("symlog", linthresh=1)
    axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axes.minorticks_off()
    axes.set(ylim=(0, 130), xlabel="training step", title="Error, %")


def _marker(steps: list[int]) -> str | None:
    """Pick a marker for a curve of one point, since its line is invisible."""
    return "o" if len(steps) == 1 else None


def confusion_matrix(predictions: Integer[Tensor, " n"], labels: Int64[Tensor, " n"], n_classes: int) -> Figure:
    """Draw true classes (rows) against predictions (columns): correct in blue, errors in orange, on separate scales."""
    counts = confusion(predictions.long(), labels, n_classes)
    right = torch.eye(n_classes, dtype=torch.bool)
    n_wrong = int(counts[~right].sum())
    with canvas(4.5, 4.3) as figure:
        axes = figure.subplots()
        for shown, colours in ((right, "Blues"), (~right, "Oranges")):
            part = counts.float().masked_fill(~shown | (counts == 0), torch.nan)
            top = float(counts[shown].max()) if shown.any() else 0.0
            # a count of one stays visible, and no shade is too dark for the number on it
            axes.imshow(part.numpy(), cmap=colours, vmin=-0.3 * max(top, 1), vmax=2.2 * max(top, 1))
        if n_classes <= 20:
            for row, column in counts.nonzero().tolist():
                axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", color=INK, fontsize=7.5)
        axes.set_xticks(range(n_classes))
        axes.set_yticks(range(n_classes))
        _cell_borders(axes, n_classes)
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.set_title(f"{len(labels):,} images, {n_wrong:,} errors ({100 * n_wrong / max(len(labels), 1):.2f} %)")
    return figure


def _cell_borders(axes: Axes, n: int) -> None:
    axes.set_xticks([k - 0.5 for k in range(n + 1)], minor=True)
    axes.set_yticks([k - 0.5 for k in range(n + 1)], minor=True)
    axes.grid(which="minor", color=FAINT)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def reconstructions(
    model: nn.Module, data: Labelled, predictions: Integer[Tensor, " n"], augment: Sequence[Augmentation] = ()
) -> Figure:
    """Draw figure 3 of Sabour 2017: inputs above reconstructions, titled (label, prediction, reconstruction target)."""
    examples = numbers.pick_examples(predictions, data.labels, min(model.n_classes, MAX_CLASSES), MAX_CLASSES // 2)
    columns = numbers.picture_examples(model, data, predictions, examples, augment)
    correct, failures = columns[: len(examples.correct)], columns[len(examples.correct) :]
    with canvas(8.0, 4.2 if failures else 2.6, layout="none") as figure:
        _columns(
            figure,
            0.05,
            "Correct: reconstructed from the capsule of the true class"
            if correct
            else "No image is classified correctly.",
            correct,
            data,
        )
        twice = "Misclassified: reconstructed from the true class (blue) and from the predicted class (orange)"
        _columns(
            figure,
            2.2,
            twice if failures else f"No errors: all {len(data.labels):,} images are classified correctly.",
            failures,
            data,
        )
    return figure


def _columns(figure: Figure, top: float, heading: str, columns: list[numbers.Pictured], data: Labelled) -> None:
    """Draw a heading above tiles of input and output; the two columns of one error stand close together."""
    write(figure, 0.05, top, heading)
    for words, down in (("(l, p, r)", 0.37), ("input", 0.85), ("output", 1.56)) if columns else ():
        write(figure, 0.05, top + down, words, color=MUTED, fontsize=8, va="center")
    left = 0.62
    for n, column in enumerate(columns):
        same = n > 0 and columns[n - 1].index == column.index
        left += 0.0 if n == 0 else 0.70 if same else 0.79 if column.label != column.prediction else 0.745
        above, below = place(figure, left, top + 0.52, 0.66, 0.66), place(figure, left, top + 1.23, 0.66, 0.66)
        show(above, data.images[column.index] / 255)
        show(below, column.picture)
        colour = BLUE if column.target == column.label else ORANGE
        title = f"({column.label}, {column.prediction}, {column.target})"
        write(figure, left + 0.33, top + 0.37, title, ha="center", va="center", fontsize=8, color=colour)


def dimension_sweeps(
    model: nn.Module,
    data: Labelled,
    predictions: Integer[Tensor, " n"] | None = None,
    augment: Sequence[Augmentation] = (),
) -> Figure:
    """Draw figure 4 of Sabour 2017: perturb each pose dimension of the predicted capsule from -0.25 to 0.25 and decode.

    Left: every dimension of one image. Right: for each class, the dimension that changes its image most.
    """
    predictions = numbers.predict(model, data, augment) if predictions is None else predictions
    examples = numbers.pick_examples(predictions, data.labels, min(model.n_classes, MAX_CLASSES)).correct
    if not examples:
        raise ValueError(
            "dimension_sweeps needs an image that the model recognises, and it recognises none; train it first"
        )
    labels = [int(data.labels[index]) for index in examples]
    sweeps = [
        numbers.sweep(model, data.images[index], label, augment) for index, label in zip(examples, labels, strict=True)
    ]
    changes = [numbers.pixel_change(pictures) for pictures in sweeps]
    liveliest = max(range(len(sweeps)), key=lambda n: float(changes[n].mean()))
    strongest = [int(change.argmax()) for change in changes]
    n_dims, n_columns = len(changes[0]), len(numbers.OFFSETS)
    # both sheets share 7.35 inches of width and have one height, unless the right one would get too large
    ratio = min(n_dims / len(labels), 1.6)
    tile = 7.35 / (n_columns * (1 + ratio))
    tall = tile * sweeps[0].shape[-2] / sweeps[0].shape[-1]
    height = tall * max(n_dims, ratio * len(labels))
    with canvas(8.6, height + 0.7, layout="none") as figure:
        left = place(figure, 0.28, 0.3, n_columns * tile, n_dims * tall)
        _sheet(left, sweeps[liveliest], [str(d + 1) for d in range(n_dims)])
        left.set_title(f"All {n_dims} dimensions of a {labels[liveliest]}")
        right = place(figure, 1.18 + n_columns * tile, 0.3, ratio * n_columns * tile, ratio * len(labels) * tall)
        chosen = torch.stack([pictures[d] for pictures, d in zip(sweeps, strongest, strict=True)])
        _sheet(right, chosen, [f"class {label}\ndim. {d + 1}" for label, d in zip(labels, strongest, strict=True)])
        right.set_title("The strongest dimension of each class")
    return figure


def _sheet(axes: Axes, pictures: Float[Tensor, "r k c h w"], rows: list[str]) -> None:
    """Draw tiles with their offsets below and the unchanged column framed."""
    from matplotlib.patches import Rectangle

    height, width = pictures.shape[-2] + 1, pictures.shape[-1] + 1
    show(axes, montage(pictures))
    axes.spines[:].set_visible(False)
    marked = [(k, offset) for k, offset in enumerate(numbers.OFFSETS) if k % 5 == 0]  # both ends and the middle
    axes.set_xticks(
        [width * (k + 0.5) - 1 for k, _ in marked], [f"{offset:+.2f}" if offset else "0" for _, offset in marked]
    )
    axes.set_xlabel("added to the pose dimension")
    axes.set_yticks([height * (r + 0.5) - 1 for r in range(len(rows))], rows)
    axes.tick_params(length=0, labelsize=7.5)
    corner = (width * (len(numbers.OFFSETS) // 2) - 1, -1)
    axes.add_patch(
        Rectangle(corner, width, height * len(rows), facecolor="none", edgecolor=ORANGE, linewidth=1.3, clip_on=False)
    )


def couplings_over_iterations(
    model: nn.Module, image: numbers.Picture, label: int, augment: Sequence[Augmentation] = ()
) -> Figure:
    """Draw the routing of one image, one column per iteration.

    Rows: where couplings to the label come from, couplings by class, capsule length by class.
    """
    view = numbers.watch_routing(model, image, label, augment)
    n_iterations = len(view.mass)
    shown = list(range(n_iterations)) if n_iterations <= MAX_ITERATIONS else [0, 1, 2, n_iterations - 1]
    answer = int(view.lengths[-1].argmax())
    with canvas(min(2.6 + 1.8 * len(shown), 8.0), 5.4) as figure:
        grid = figure.subplots(3, 1 + len(shown), squeeze=False, height_ratios=[1.3, 1, 1])
        show(grid[0, 0], numbers.as_input(model, image, augment).cpu())
        grid[0, 0].set_title(f"Input, class {label}")
        _entropy(grid[1, 0], view.entropy)
        _key(grid[2, 0], label, answer)
        colours = [BLUE if j == label else ORANGE if j == answer else PALE for j in range(view.mass.shape[1])]
        _iterations(grid[:, 1:], view, shown, label, colours)
    return figure


def _iterations(grid: Any, view: numbers.RoutingView, shown: list[int], label: int, colours: list[str]) -> None:
    """Draw three rows per iteration. A map sums to what the label's bar gained since the first iteration."""
    n_classes = view.mass.shape[1]
    mass, gain = 100 * view.mass, 100 * (view.places - view.places[0])
    even = float(mass[0].mean())
    reach = max(float(gain.abs().max()), 1e-3)
    number = {"ha": "center", "fontsize": 7.5, "color": BLUE}
    room = 0.3 * max(float((mass - even).abs().max()), 0.05 * even)
    for (top, middle, bottom), t in zip(grid.T, shown, strict=True):
        maps = bare(top).imshow(gain[t].numpy(), cmap=gains(), vmin=-reach, vmax=reach)
        top.spines[:].set(visible=True, color=FAINT)
        top.set_title(f"Iteration {t + 1}")
        middle.bar(range(n_classes), mass[t].numpy() - even, bottom=even, color=colours)
        middle.axhline(even, color=MUTED, linewidth=0.8)
        middle.set_ylim(min(float(mass.min()), even) - room, max(float(mass.max()), even) + room)
        middle.text(label, max(float(mass[t, label]), even) + 0.2 * room, f"{mass[t, label]:.2f}", **number)
        bottom.bar(range(n_classes), view.lengths[t].numpy(), color=colours)
        bottom.text(label, float(view.lengths[t, label]) + 0.02, f"{view.lengths[t, label]:.2f}", **number)
        bottom.set(ylim=(0, 1.1), xlabel="class")
        for axes in (middle, bottom):
            axes.set_xticks(range(n_classes) if n_classes <= 12 else [label])
            axes.set_xlim(-1, n_classes)
            axes.tick_params(axis="x", length=0, labelsize=7.5)
            axes.tick_params(axis="y", labelleft=t == shown[0])
    bar = top.figure.colorbar(maps, ax=list(grid[0]), aspect=16, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label("change since iteration 1,\npoints (orange: less)")
    gained = f"coupling to class {label},\nby position"
    for axes, words in zip(grid[:, 0], (gained, "couplings, %", "capsule length"), strict=True):
        axes.set_ylabel(words)


def _entropy(axes: Axes, entropy: list[float]) -> None:
    iterations = range(1, len(entropy) + 1)
    axes.plot(iterations, entropy, "o-", color=GREEN, markersize=4)
    span = max(1 - min(entropy), 0.002)  # do not magnify rounding errors
    axes.set(
        title="Entropy (1: uniform)",
        xlabel="iteration",
        xlim=(0.6, len(entropy) + 0.4),
        ylim=(1 - 1.15 * span, 1 + 0.15 * span),
    )
    axes.set_xticks(iterations)
    axes.grid(axis="y")
    axes.ticklabel_format(axis="y", useOffset=False)


def _key(axes: Axes, label: int, answer: int) -> None:
    bare(axes)
    said = [(f"class {answer}, predicted", ORANGE)] if answer != label else []
    for n, (words, colour) in enumerate([(f"class {label}, true", BLUE), *said, ("other classes", PALE)]):
        axes.plot([0], [n], "s", color=colour, markersize=6)
        axes.text(0.12, n, words, va="center", fontsize=8, color=MUTED)
    axes.set(xlim=(-0.1, 1.5), ylim=(5, -0.5))

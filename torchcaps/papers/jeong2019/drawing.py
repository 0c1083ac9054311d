"""Figures 1, 2 and 4: active capsules, kept capsules, and poses regressed from a class.

One letter beyond the usual: `k` a kept capsule, or a rank.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data.augment import as_seen
from torchcaps.figures.canvas import BLUE, GREEN, MUTED, ORANGE, PALE, canvas, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

Images = UInt8[Tensor, "n c h w"]
BATCH = 50  # images per batch: the couplings of all of them are held in memory
AFTER = "After figure {} of Jeong, Lee and Kim (2019)"
COLOURS = (BLUE, GREEN, ORANGE)
TITLE = 8.5  # font size where titles have two lines
EQUAL = 0.1  # a coupling before any routing, ten classes


class Coupled(NamedTuple):
    """Most active primary capsules, averaged over images, the most active first."""

    lengths: Float[Tensor, "k"]
    couplings: Float[Tensor, "k"]  # to one class, after the last iteration


class Ranked(NamedTuple):
    """Mean activity of the most active capsules by rank."""

    by_image: Float[Tensor, "k"]  # sorted in every image, so a rank may hold different capsules
    by_capsule: Float[Tensor, "k"]  # mean of each capsule, then sorted


def most_coupled(model: nn.Module, images: Images, label: int, most: int = 100) -> Coupled:
    """Find the `most` longest capsules of a CapsNet, with their mean length and coupling to `label`."""
    lengths, couplings, n = 0.0, 0.0, 0
    for seen in _seen(model, images):
        primary = model.primary_capsules(seen)
        *_, last = model.classes.steps(primary)
        lengths, couplings, n = (
            lengths + primary.activity.sum(0),
            couplings + last.couplings[..., label].sum(0),
            n + len(seen),
        )
    order = lengths.argsort(descending=True, stable=True)[:most]
    return Coupled((lengths[order] / n).cpu(), (couplings[order] / n).cpu())


def most_active(model: nn.Module, images: Images, most: int = 300) -> Ranked:
    """Rank the primary capsules of any network by mean activity."""
    by_image, by_capsule, n = 0.0, 0.0, 0
    for seen in _seen(model, images):
        activity = model.primary_capsules(seen).activity
        by_image, by_capsule = by_image + activity.sort(-1, descending=True).values.sum(0), by_capsule + activity.sum(0)
        n += len(seen)
    return Ranked((by_image[:most] / n).cpu(), (by_capsule.sort(descending=True).values[:most] / n).cpu())


def coupled_bars(found: Coupled, label: int, n_images: int) -> tuple[Figure, str]:
    """Draw figure 1: lengths above, couplings below. With a caption."""
    ranks = range(1, len(found.lengths) + 1)
    with canvas(7.0, 3.6) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.bar(ranks, found.lengths.tolist(), color=BLUE, width=0.8)
        lower.bar(ranks, found.couplings.tolist(), color=ORANGE, width=0.8)
        upper.set(ylabel="mean length", ylim=(0, 1), title=f"Images of the digit {label}")
        lower.set(ylabel=f"mean coupling to {label}", ylim=(0, 1), xlim=(0, len(ranks) + 1))
        lower.set_xlabel("primary capsule, the longest first")
        lower.axhline(EQUAL, color=MUTED, linewidth=0.8, linestyle=":", label="equal couplings to ten classes")
        lower.legend(loc="upper right")
    together = torch.corrcoef(torch.stack(found))[0, 1].item()
    return figure, (
        f"The {len(found.lengths)} longest primary capsules of a CapsNet, means over {n_images:,} training images of "
        f"the digit {label}. Length and coupling correlate by {together:.2f}. {AFTER.format(1)}."
    )


def activity_curves(found: Mapping[int, Ranked], label: int, n_images: int) -> tuple[Figure, str]:
    """Draw figure 4, one curve per number of kept capsules. With a caption."""
    gaps = []
    with canvas(8.0, 3.0) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for (n_kept, ranked), colour in zip(found.items(), COLOURS, strict=False):
            for part, values in zip(axes, ranked, strict=True):
                part.plot(range(1, len(values) + 1), values.tolist(), color=colour, label=f"K = {n_kept}")
                part.axvline(n_kept, color=colour, linewidth=0.8, linestyle=":")
            values = ranked.by_image
            if n_kept < len(values):
                gaps.append(f"{values[:n_kept].mean():.2f} and {values[n_kept:].mean():.2f} with K = {n_kept}")
        titles = "Sorted in each image, then averaged", "Averaged for each capsule, then sorted"
        for part, title in zip(axes, titles, strict=True):
            part.set(xlabel="rank of the primary capsule", title=title, ylim=(0, 1))
            part.grid(axis="y")
        axes[0].set_ylabel("mean activity")
        axes[0].legend(title="dotted: rank K", title_fontsize=8.5)
    said = f" Kept and other capsules have a mean activity of {'; '.join(gaps)}." if gaps else ""
    return figure, (
        f"The most active primary capsules, means over {n_images:,} training images of the digit {label}.{said} "
        f"The paper does not say whether it sorts before or after averaging. {AFTER.format(4)}."
    )


def pruning_and_ladder(model: nn.Module, image: UInt8[Tensor, "c h w"], label: int) -> tuple[Figure, str]:
    """Draw figure 2 of a real image: activities, code, kept poses, and the poses regressed from two classes.

    The classes are the two most active ones. With a caption.
    """
    with evaluating(model):
        seen = as_seen(image.unsqueeze(0)).to(next(model.parameters()).device)
        primary, laddered = model.ladder(seen)
    activity, code, kept = (x[0].cpu() for x in (primary.activity, laddered.kept.code, laddered.kept.poses))
    regressed = None if laddered.regressed is None else laddered.regressed[0].cpu()
    classes, misfits = laddered.capsules.activity[0].cpu(), laddered.misfit[0].cpu()
    first, second = classes.topk(2).indices.tolist()
    with canvas(10.5, 4.8) as figure:
        mosaic = [list("iakrfc"), list("idkrfc")]
        axes = figure.subplot_mosaic(mosaic, width_ratios=(1.1, 1.5, 1, 1, 1, 1.1))
        show(axes["i"], seen[0].cpu())
        axes["i"].set_title(f"1  input: a {label}")
        _maps(figure, axes["a"], axes["d"], activity, code, model.grid)
        shown = _poses(axes["k"], kept, f"4  poses of the\n{len(kept)} kept capsules")
        axes["k"].set_ylabel("kept capsule")
        for name, number, which in (("r", 5, first), ("f", 6, second)):
            if regressed is None:
                axes[name].set_axis_off()
                continue
            words = f"{number}  regressed from\nclass {which}, error {misfits[which]:.2f}"
            shown = _poses(axes[name], regressed[which], words)
            axes[name].tick_params(labelleft=False)
        beside = [axes[name] for name in "krf"]
        bar = figure.colorbar(shown, ax=beside, location="bottom", shrink=0.6, aspect=40, pad=0.03)
        bar.set_label("value of a pose dimension")
        _class_bars(axes["c"], classes, label)
    return figure, (
        f"An image of the digit {label}; {int(code.sum())} of {len(code)} primary capsules are kept. "
        f"Class {first}, the prediction, regresses the kept poses with a mean squared error of {misfits[first]:.3f} "
        f"and an activity of {classes[first]:.2f}; "
        f"class {second}, the second best, with {misfits[second]:.3f} and {classes[second]:.2f}. "
        f"{AFTER.format(2)}, of a real digit."
    )


def _seen(model: nn.Module, images: Images) -> Iterator[Float[Tensor, "b c h w"]]:
    """Yield batches of images, preprocessed as in evaluation, on the model's device."""
    if not len(images):
        raise ValueError("a mean over images needs one at least, and none came; is the class in the data?")
    device = next(model.parameters()).device
    with evaluating(model):
        for part in images.split(BATCH):
            yield as_seen(part.to(device))


def _maps(
    figure: Figure,
    above: Axes,
    below: Axes,
    activity: Float[Tensor, "i"],
    code: Float[Tensor, "i"],
    grid: tuple[int, int],
) -> None:
    """Draw activities by type and position, above the capsules that the code keeps."""
    by_place = {"h": grid[0], "w": grid[1]}
    n_kept = int(code.sum())
    for axes, values, title in (
        (above, activity, f"2  activity of all\n{len(code)} primary capsules"),
        (below, code, f"3  code: the {n_kept}\nmost active are 1"),
    ):
        rows = rearrange(values, "(n h w) -> n (h w)", **by_place)
        shown = axes.imshow(rows.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=TITLE)
        axes.set(ylabel="type of capsule", yticks=[0, len(rows) - 1], yticklabels=[1, len(rows)])
        axes.set(xticks=[0, rows.shape[1] - 1], xticklabels=[1, rows.shape[1]])
    below.set_xlabel("position in the image")
    above.tick_params(labelbottom=False)
    bar = figure.colorbar(shown, ax=[above, below], location="bottom", shrink=0.8, aspect=25, pad=0.03)
    bar.set_label("activity, or code")


def _poses(axes: Axes, values: Float[Tensor, "k d"], title: str) -> Any:
    """Draw poses in rows, blue above zero and red below; return the image for a colour bar."""
    n, d = values.shape
    shown = axes.imshow(values.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_title(title, fontsize=TITLE)
    axes.set(xlabel="pose dimension", xticks=[0, d - 1], xticklabels=[1, d])
    axes.set(yticks=[0, n - 1], yticklabels=[1, n])
    return shown


def _class_bars(axes: Axes, classes: Float[Tensor, "j"], label: int) -> None:
    """Draw the activity of every class, the label's in blue."""
    numbers = range(len(classes))
    axes.barh(numbers, classes.tolist(), color=[BLUE if j == label else PALE for j in numbers])
    for j in numbers:
        axes.text(classes[j].item() + 0.03, j, f"{classes[j]:.2f}", va="center", fontsize=7, color=MUTED)
    axes.set(xlim=(0, 1.3), xticks=(0, 0.5, 1), xlabel="activity", ylabel="class", yticks=numbers)
    axes.set_title("7  activity: exp(-5.12\ntimes the error)", fontsize=TITLE)
    axes.invert_yaxis()

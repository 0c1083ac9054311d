"""Figures 1, 2 and 4 of Jeong 2019: which capsules are active, which are kept, and what a class tells of them.

One letter beyond the usual: `k` a kept capsule, or a rank.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from torchcaps.analysis.routing import watching
from torchcaps.data.augment import as_seen
from torchcaps.figures.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PALE, canvas, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

Images = UInt8[Tensor, "n c h w"]
BATCH = 50  # images: the couplings of all of them lie in memory
AFTER = "After figure {} of Jeong, Lee and Kim (2019)"
COLOURS = (BLUE, GREEN, ORANGE)


class Coupled(NamedTuple):
    """Means over pictures of the most active primary capsules, the most active first."""

    lengths: Float[Tensor, "k"]
    couplings: Float[Tensor, "k"]  # to one class, after the last pass


class Ranked(NamedTuple):
    """How active the most active capsules are, in the mean over pictures."""

    by_picture: Float[Tensor, "k"]  # sorted in every picture, so that another capsule may have the rank in each
    by_capsule: Float[Tensor, "k"]  # each capsule's mean first, then sorted


def most_coupled(model: nn.Module, images: Images, label: int, most: int = 100) -> Coupled:
    """Of a CapsNet: each capsule's mean length and coupling to `label`; the `most` of largest mean length."""
    lengths, couplings, n = 0.0, 0.0, 0
    for seen in _seen(model, images):
        primary = model.primary_capsules(seen)
        *_, last = model.classes.steps(primary)
        lengths, couplings, n = lengths + primary.activity.sum(0), couplings + last.couplings[..., label].sum(0), n + len(seen)
    order = lengths.argsort(descending=True, stable=True)[:most]
    return Coupled((lengths[order] / n).cpu(), (couplings[order] / n).cpu())


def most_active(model: nn.Module, images: Images, most: int = 300) -> Ranked:
    """Of a network with primary capsules, whichever."""
    by_picture, by_capsule, n = 0.0, 0.0, 0
    for seen in _seen(model, images):
        activity = model.primary_capsules(seen).activity
        by_picture, by_capsule = by_picture + activity.sort(-1, descending=True).values.sum(0), by_capsule + activity.sum(0)
        n += len(seen)
    return Ranked((by_picture[:most] / n).cpu(), (by_capsule.sort(descending=True).values[:most] / n).cpu())


def coupled_bars(found: Coupled, label: int, n_images: int) -> tuple[Figure, str]:
    """Figure 1: lengths on the left axis, couplings on the right. With a caption."""
    places = range(1, len(found.lengths) + 1)
    with canvas(7.0, 3.0) as figure:
        left = figure.subplots()
        right = left.twinx()
        left.bar(places, found.lengths.tolist(), color=BLUE, alpha=0.6, width=1.0)
        right.bar(places, found.couplings.tolist(), color=ORANGE, alpha=0.6, width=0.5)
        left.set(xlabel=f"the {len(found.lengths)} most active primary capsules", title=f"Pictures of class {label}")
        left.set_ylabel("length", color=BLUE)
        right.set_ylabel(f"coupling to class {label}", color=ORANGE)
        left.set_ylim(0, 1)
        right.spines["right"].set_visible(True)
    together = torch.corrcoef(torch.stack(found))[0, 1].item()
    return figure, (
        f"A CapsNet's primary capsules of the largest mean length over {n_images:,} training pictures of class {label}, and the mean of "
        f"their couplings to that class after the last pass. The two correlate by {together:.2f}. {AFTER.format(1)}."
    )


def activity_curves(found: Mapping[int, Ranked], label: int, n_images: int) -> tuple[Figure, str]:
    """Figure 4, by the number of kept capsules. With a caption."""
    gaps = []
    with canvas(8.0, 3.0) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for (n_kept, ranked), colour in zip(found.items(), COLOURS, strict=False):
            for part, values in zip(axes, ranked, strict=True):
                part.plot(range(1, len(values) + 1), values.tolist(), color=colour, label=f"K = {n_kept}")
                part.axvline(n_kept, color=colour, linewidth=0.8, linestyle=":")
            values = ranked.by_picture
            if n_kept < len(values):
                gaps.append(f"{values[:n_kept].mean():.2f} and {values[n_kept:].mean():.2f} with K = {n_kept}")
        for part, title in zip(axes, ("Sorted in each picture, then the mean", "Each capsule's mean, then sorted"), strict=True):
            part.set(xlabel="rank of the primary capsule", title=title, ylim=(0, 1))
            part.grid(axis="y")
        axes[0].set_ylabel("activity")
        axes[0].legend()
    said = f" Kept ones and the others shown have a mean activity of {'; '.join(gaps)}." if gaps else ""
    return figure, (
        f"The most active primary capsules over {n_images:,} training pictures of class {label}; dotted: how many are kept.{said} "
        f"The paper shows one curve for each K and does not say in which order the mean is taken. {AFTER.format(4)}."
    )


def pruning_and_ladder(model: nn.Module, image: UInt8[Tensor, "c h w"], label: int) -> tuple[Figure, str]:
    """Figure 2 of a real picture: activities, code, kept rows, and what the two most active classes tell of them. With a caption."""
    with watching(model):
        seen = as_seen(image.unsqueeze(0), getattr(model, "augment", ())).to(next(model.parameters()).device)
        primary, laddered = model.ladder(seen)
    activity, code, rows = (x[0].cpu() for x in (primary.activity, laddered.kept.code, laddered.kept.poses))
    told = None if laddered.regressed is None else laddered.regressed[0].cpu()
    classes, misfits = laddered.capsules.activity[0].cpu(), laddered.misfit[0].cpu()
    first, second = classes.topk(2).indices.tolist()
    height, width = model.grid
    by_place = {"h": height, "w": width}
    with canvas(9.5, 4.6) as figure:
        axes = figure.subplot_mosaic([list("pkrfg"), list("akrfg"), list("dkrfg")], width_ratios=(1.4, 1, 1, 1, 1))
        show(axes["p"], seen[0].cpu())
        axes["p"].set_title(f"a {label}")
        for name, values, title in (("a", activity, "activity of all capsules"), ("d", code, "code: which are kept")):
            _map(axes[name], rearrange(values, "(n h w) -> n (h w)", **by_place), title)
        _rows(axes["k"], rows, f"the {len(rows)} kept\nand their poses")
        axes["k"].set_ylabel("kept capsule")
        for name, which in (("r", first), ("f", second)):
            words = f"class {which} tells\n{misfits[which]:.2f} off, active {classes[which]:.2f}"
            if told is None:
                axes[name].set_axis_off()
                axes[name].set_title(words)
            else:
                _rows(axes[name], told[which], words)
        axes["g"].barh(range(len(classes)), classes.tolist(), color=[BLUE if j == label else PALE for j in range(len(classes))])
        axes["g"].set(xlim=(0, 1), title="activity", yticks=range(len(classes)))
        axes["g"].invert_yaxis()
    return figure, (
        f"A picture of class {label}. {int(code.sum())} of {len(code)} primary capsules are kept, in the order of the row; the code says "
        f"which (a row for each type, a column for each place). Poses have a column for each number, blue above zero and red below, full "
        f"at 1. Class {first}, the answer, tells their poses with a mean squared distance of {misfits[first]:.3f}, which makes it "
        f"{classes[first]:.2f} active; class {second} of {misfits[second]:.3f} and {classes[second]:.2f}. "
        f"{AFTER.format(2)}, of a real digit."
    )


def _seen(model: nn.Module, images: Images) -> Iterator[Float[Tensor, "b c h w"]]:
    """As evaluation shows them, a few at a time, on the model's device."""
    if not len(images):
        raise ValueError("a mean over pictures needs one at least, and none came; is the class in the data?")
    device = next(model.parameters()).device
    with watching(model):
        for part in images.split(BATCH):
            yield as_seen(part.to(device), getattr(model, "augment", ()))


def _map(axes: Axes, values: Float[Tensor, "y x"], title: str) -> None:
    axes.imshow(values.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[], xlabel="place", ylabel="type", title=title)


def _rows(axes: Axes, values: Float[Tensor, "k d"], title: str) -> None:
    axes.imshow(values.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes.set(xticks=[])
    axes.set_title(title, fontsize=8.5, color=INK)
    axes.tick_params(labelcolor=MUTED)

"""Image regions that a class capsule used: D^use (Heinsen 2019) of both routing layers, multiplied.

Letters beyond the usual: `p` part capsules between positions and classes; `n` capsule types per position.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from torchcaps.analysis.routing import evaluating
from torchcaps.data.augment import Augmentation
from torchcaps.figures.canvas import BLUE, INK, MUTED, ORANGE, bare, canvas
from torchcaps.figures.numbers import as_input
from torchcaps.layers import Capsules
from torchcaps.models import EMCapsNet
from torchcaps.models.em_images import KERNEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn


LEAST = 1e-12


class Used(NamedTuple):
    """Data that the class capsules used at each position."""

    places: Float[Tensor, "b j h w"]  # in capsules: at most the number of types
    shares: Float[Tensor, "b j"]  # softmax of the scores


class Window(NamedTuple):
    """Receptive fields of the positions, the same for rows and columns."""

    first: int  # centre of the first position, in pixels
    step: int  # distance between neighbouring centres
    reach: int  # receptive field of one position


def places_used(model: EMCapsNet, images: Float[Tensor, "b c h w"]) -> Used:
    """Compute how much of the capsules at each position every class capsule used, in the last routing iteration.

    Multiplies the fraction of each capsule that a part used by the fraction of the part that a class used.
    Sums over parts and over the capsule types of a position.
    """
    _check(model)
    grid = model.places(*images.shape[2:])
    with evaluating(model):
        *_, parts = model.parts.steps(model.primary_capsules(images))
        *_, classes = model.classes.steps(Capsules.scored(parts.poses, parts.scores))
        used = torch.einsum("bip,bpj->bij", parts.used, classes.used)
    height, width = grid
    places = reduce(used, "b (n h w) j -> b j h w", "sum", h=height, w=width)
    return Used(places.cpu(), classes.scores.softmax(-1).cpu())


def _check(model: object) -> None:
    if not isinstance(model, EMCapsNet):
        raise ValueError(
            f"the used image regions are known for EM routing alone; got a {type(model).__name__}, give an EMCapsNet"
        )


def window(model: EMCapsNet) -> Window:
    """Compute the receptive field of a position from kernels and strides."""
    middle, step, reach = 0, 1, 1
    for stride in model.strides:
        middle, reach = middle + (KERNEL - 1) // 2 * step, reach + (KERNEL - 1) * step
        step *= stride
    return Window(middle, step, reach)


def used_places(
    model: EMCapsNet,
    images: Sequence[Tensor],
    labels: Sequence[int | None],
    names: Sequence[str] | None = None,
    augment: Sequence[Augmentation] = (),
) -> tuple[Figure, str]:
    """Draw which image regions each class capsule used, one row per image and one column per class; with a caption.

    Images are bytes, preprocessed as in evaluation, or floats in 0..1, used unchanged. Sizes may differ.
    A label is the true class, or None if unknown.
    """
    _check(model)
    names = names or [f"class {j}" for j in range(model.n_classes)]
    with canvas(1.35 * (1 + len(names)), 1.62 * len(images) + 0.3) as figure:
        figure.get_layout_engine().set(h_pad=0.06)  # keeps the first titles off the edge
        grid = figure.subplots(len(images), 1 + len(names), squeeze=False)
        for row, image, label in zip(grid, images, labels, strict=True):
            seen = as_input(model, image.unsqueeze(0), augment)
            used, shares = (part[0] for part in places_used(model, seen))
            picture, answer = seen[0, 0].cpu(), int(shares.argmax())
            _picture(row[0], picture)
            row[0].set_title("image" if label is None else names[label], fontsize=8, color=INK)
            for j, axes in enumerate(row[1:]):
                _picture(axes, picture)
                _overlay(axes, used[j] / used[j].max().clamp(min=LEAST), window(model))
                axes.set_xlabel(
                    f"uses {100 * used[j].sum() / used.sum().clamp(min=LEAST):.0f} %", fontsize=7, labelpad=1
                )
                colour = BLUE if j == label else ORANGE if j == answer else MUTED
                axes.set_title(f"{names[j]} {100 * shares[j]:.0f} %", fontsize=8, color=colour)
    looks = window(model)
    known = any(label is not None for label in labels)
    colours = "blue is the true class, orange a wrong prediction" if known else "orange is the prediction"
    return figure, (
        "Image regions that each class capsule used, in the last routing iteration. Darker orange means more; "
        "each map has "
        "its own scale. Below a map: the fraction of all used data that this class used. Above it: the softmax of the "
        f"scores; {colours}. "
        f"A position sees {looks.reach}x{looks.reach} pixels, positions are {looks.step} pixels apart. "
        "The first channel "
        "is shown. Used data is D^use of Heinsen (2019), Eq. 4, followed through the part capsules."
    )


def _picture(axes: Axes, picture: Float[Tensor, "h w"]) -> None:
    bare(axes).imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def _overlay(axes: Axes, heat: Float[Tensor, "h w"], looks: Window) -> None:
    """Overlay a square of one step at the centre of each position, transparent where nothing was used."""
    from matplotlib.colors import to_rgb

    sheet = torch.empty(*heat.shape, 4)
    sheet[..., :3], sheet[..., 3] = torch.tensor(to_rgb(ORANGE)), 0.85 * heat
    low = looks.first - looks.step / 2
    height, width = heat.shape
    limits = axes.get_xlim(), axes.get_ylim()
    axes.imshow(
        sheet.numpy(), extent=(low, low + width * looks.step, low + height * looks.step, low), interpolation="nearest"
    )
    axes.set(xlim=limits[0], ylim=limits[1])

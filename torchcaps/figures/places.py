"""Which places of a picture a class capsule used: the data used (D^use of Heinsen 2019) of both routing layers, followed back.

Letters beyond the usual: `p` parts, the capsules between the places and the classes; `n` types of capsules at a place.
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
    """What the class capsules used of each place."""

    places: Float[Tensor, "b j h w"]  # in capsules: at most as many as there are types
    shares: Float[Tensor, "b j"]  # the softmax of the scores


class Window(NamedTuple):
    """Which pixels the places look at, the same for rows and columns."""

    first: int  # the middle of the first place
    step: int  # from one middle to the next
    reach: int  # pixels that one place sees


def places_used(model: EMCapsNet, images: Float[Tensor, "b c h w"]) -> Used:
    """How much of the capsules at each place ends in each class capsule, in the last pass.

    A part uses a share of every capsule, a class uses a share of every part: both multiplied, summed over the parts and over the
    types of capsules at the place.
    """
    _check(model)
    grid = model.places(*images.shape[2:])
    with evaluating(model):
        *_, parts = model.parts.steps(model.primary_capsules(images))
        *_, classes = model.classes.steps(Capsules(parts.poses, parts.scores))
        used = torch.einsum("bip,bpj->bij", parts.used, classes.used)
    height, width = grid
    places = reduce(used, "b (n h w) j -> b j h w", "sum", h=height, w=width)
    return Used(places.cpu(), classes.scores.softmax(-1).cpu())


def _check(model: object) -> None:
    if not isinstance(model, EMCapsNet):
        raise ValueError(f"which places were used is told by EM routing; got a {type(model).__name__}, give an EMCapsNet")


def window(model: EMCapsNet) -> Window:
    """From kernels and strides: a place sees `reach` pixels about its middle."""
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
    """A row for each picture, a column for each class: where its capsule took its data from. With a caption.

    Pictures are bytes, shown as in evaluation, or numbers in 0..1 as they are; each may have its own size. A label is the truth,
    or None where nobody knows it.
    """
    _check(model)
    names = names or [f"class {j}" for j in range(model.n_classes)]
    with canvas(1.35 * (1 + len(names)), 1.62 * len(images) + 0.3) as figure:
        figure.get_layout_engine().set(h_pad=0.06)  # or the first titles touch the edge
        grid = figure.subplots(len(images), 1 + len(names), squeeze=False)
        for row, image, label in zip(grid, images, labels, strict=True):
            seen = as_input(model, image.unsqueeze(0), augment)
            used, shares = (part[0] for part in places_used(model, seen))
            picture, answer = seen[0, 0].cpu(), int(shares.argmax())
            _picture(row[0], picture)
            row[0].set_title("picture" if label is None else names[label], fontsize=8, color=INK)
            for j, axes in enumerate(row[1:]):
                _picture(axes, picture)
                _overlay(axes, used[j] / used[j].max().clamp(min=LEAST), window(model))
                axes.set_xlabel(f"uses {100 * used[j].sum() / used.sum().clamp(min=LEAST):.0f} %", fontsize=7, labelpad=1)
                colour = BLUE if j == label else ORANGE if j == answer else MUTED
                axes.set_title(f"{names[j]} {100 * shares[j]:.0f} %", fontsize=8, color=colour)
    looks = window(model)
    return figure, (
        "Where each class capsule took its data from (the share used of the capsules at a place, through the parts between them, in the "
        "last pass): the more orange, the more, each map on its own scale; below it its share of all that the classes use. "
        "Above it the softmax of the scores; blue is the truth, orange another answer. "
        f"A place sees {looks.reach}x{looks.reach} pixels, places are {looks.step} pixels apart. Shown is the first channel. "
        "The data used is D^use of Heinsen (2019), Eq. 4."
    )


def _picture(axes: Axes, picture: Float[Tensor, "h w"]) -> None:
    bare(axes).imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def _overlay(axes: Axes, heat: Float[Tensor, "h w"], looks: Window) -> None:
    """Squares of one step about the middle of each place; nothing where nothing was used."""
    from matplotlib.colors import to_rgb

    sheet = torch.empty(*heat.shape, 4)
    sheet[..., :3], sheet[..., 3] = torch.tensor(to_rgb(ORANGE)), 0.85 * heat
    low = looks.first - looks.step / 2
    height, width = heat.shape
    limits = axes.get_xlim(), axes.get_ylim()
    axes.imshow(sheet.numpy(), extent=(low, low + width * looks.step, low + height * looks.step, low), interpolation="nearest")
    axes.set(xlim=limits[0], ylim=limits[1])

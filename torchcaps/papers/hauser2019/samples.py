"""Sheets of samples, the path of one image through the network, and the growth of the weights."""

from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.analysis.sample_quality import inverted, sampled_pictures
from torchcaps.data import Labelled
from torchcaps.data.augment import as_seen
from torchcaps.figures.canvas import BLUE, GREEN, MUTED, ORANGE, canvas, montage, place, show, write
from torchcaps.figures.numbers import series
from torchcaps.ops import length

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

ROWS = 4
AFTER = "After figure {} of Hauser (2019)."
TITLES = {
    "complete": "Complete domain",
    "negated": "The same noise, negated",
    "restricted": "Restricted domain, the half of the sphere visited in training",
}


def sample_sheets(
    model: nn.Module, data: Labelled, device: torch.device, *, row: str, seed: int = 0
) -> tuple[Figure, str]:
    """Draw figure 2: one column per capsule, four samples each, one seed, no selection.

    Three sheets: the complete domain, the same noise negated, and the same noise turned to the half of the sphere that
    training visits. `row`: text of the trained row.
    """
    pictures = sampled_pictures(model.to(device), ROWS, seed, device)
    mean_image = as_seen(data.images).mean(0).to(device)
    n = pictures["complete"].shape[1]
    tile = 8.0 / n
    sheet = ROWS * tile + 0.35
    with canvas(8.2, 3 * sheet + 0.3, layout="none") as figure:
        for number, (domain, name) in enumerate(TITLES.items()):
            share = 100 * inverted(pictures[domain], mean_image).double().mean().item()
            top = number * sheet
            write(figure, 0.1, top + 0.08, f"{name}: {share:.0f} % of these {n * ROWS} are negatives")
            show(place(figure, 0.1, top + 0.3, n * tile, ROWS * tile), montage(pictures[domain].cpu()))
        how = {"fontsize": 8.5, "color": MUTED}
        write(figure, 0.1, 3 * sheet + 0.06, f"one column per capsule (1 to {n}), one row per random sample", **how)
    swapped = inverted(pictures["complete"], mean_image) != inverted(pictures["negated"], mean_image)
    words = (
        f"{row}. Each column is one of {n} capsules, each row a sample: Gaussian noise in its "
        f"{model.encoders[-1].d_out} pose dimensions, all other capsules silent; one seed, no selection. "
        f"Negating the noise turns {int(swapped.sum())} of {swapped.numel()} images from negative to positive or back"
    )
    return figure, f"{words}. {AFTER.format('2')}"


def architecture(
    model: nn.Module, image: Float[Tensor, "c h w"], device: torch.device, *, row: str
) -> tuple[Figure, str]:
    """Draw figure 1 from the model: one image on its way up to the experts and down again."""
    model.to(device)
    images = image.unsqueeze(0).to(device)
    with evaluating(model):
        primary = model.primary_capsules(images)
        experts = model(images)
        decoded = model.decode(experts.poses)
        drawn, plain = model.reconstruct(experts.poses), model.autoencoder(images).sigmoid()
    n_out, d_out = experts.poses.shape[1:]
    n_in, d_in = primary.poses.shape[1:]
    size, top = 1.35, 0.5  # inches: every panel is a square of one height
    lefts = [0.1, 1.8, 3.75, 5.6, 7.3, 9.0]
    titles = [
        "Test image",
        f"Up: lengths of\n{n_in} capsules of {d_in}",
        f"Up: poses of\n{n_out} experts of {d_out}",
        "Down: lengths of\nthe decoded capsules",
        "Down: reconstruction\nfrom the experts",
        "For comparison:\nautoencoder alone",
    ]
    with canvas(10.5, 2.6, layout="none") as figure:
        panels = [place(figure, left, top, size, size) for left in lefts]
        for left, words in zip(lefts, titles, strict=True):
            write(figure, left, 0.42, words, va="bottom", fontsize=9)
        for panel, picture in zip((panels[0], panels[4], panels[5]), (images, drawn, plain), strict=True):
            show(panel, picture[0].cpu())
        _lengths(panels[1], model, primary.poses)
        _lengths(panels[3], model, decoded)
        poses = panels[2].imshow(experts.poses[0].cpu().numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        panels[2].set(xlabel="pose dimension", ylabel="expert", xticks=[0, d_out - 1], yticks=[0, n_out - 1])
        panels[2].set(xticklabels=[1, d_out], yticklabels=[1, n_out])
        panels[2].xaxis.set_label_coords(0.5, -0.06)
        panels[2].yaxis.set_label_coords(-0.06, 0.5)
        for left, panel in ((lefts[1], panels[1]), (lefts[3], panels[3])):
            _scale(figure, panel.images[0], left, top + size + 0.12, size, "length of a capsule")
        _scale(figure, poses, lefts[2], top + size + 0.33, size, "value")
    words = (
        f"{row}. A test image, the lengths of its {n_in} lowest capsules (a small map for each of "
        f"{model.n_types} types), the poses of the {n_out} experts, the capsules that the decoder U makes of "
        "them, and their image; last, the reconstruction by the autoencoder alone"
    )
    return figure, f"{words}. {AFTER.format('1')}"


def _lengths(axes: Axes, model: nn.Module, poses: Float[Tensor, "1 i d"]) -> None:
    """Show one map of lengths per type, in a grid of maps."""
    maps = rearrange(length(poses)[0], "(n h w) -> n 1 h w", h=model.grid[0], w=model.grid[1]).cpu()
    side = int(len(maps) ** 0.5)
    while len(maps) % side:
        side -= 1
    sheet = montage(rearrange(maps, "(r k) c h w -> r k c h w", r=side))
    show(axes, sheet[:, :-1, :-1])  # no gap behind the last map


def _scale(figure: Figure, picture: Any, left: float, top: float, width: float, words: str) -> None:
    """Put a colour bar under a panel."""
    bar = figure.colorbar(picture, cax=place(figure, left, top, width, 0.09), orientation="horizontal")
    bar.outline.set_visible(False)
    low, high = picture.get_clim()
    bar.set_ticks([low, high])
    bar.ax.tick_params(length=0, labelsize=7.5)
    bar.set_label(words, fontsize=8, labelpad=-8)


def growth_curve(
    journal: list[dict[str, Any]], every: int, title: str = "The paper's initialisation N(0, 0.01)"
) -> tuple[Figure, str]:
    """Draw how the experts wake, by the probes of the stage that trains them.

    `every`: steps between probes, and before the first one; a thinned journal need not hold the stage's first step.
    """
    lines = [line for line in journal if "probed_dreamt_on" in line]
    if not lines:
        raise ValueError(
            "growth_curve needs the journal of a run whose experts were probed; give their stage probe_every, "
            "and run it again"
        )
    before = lines[0]["step"] - every
    with canvas(7.0, 3.1) as figure:
        axes = figure.subplots(1, 1)
        for name, words, colour in (
            ("probed_on", "probability of an expert being on, given an image", BLUE),
            ("probed_dreamt_on", "the same after one sweep down and up", ORANGE),
            ("probed_missed", "fraction of the capsules not reconstructed", GREEN),
        ):
            steps, values = series(lines, name)
            shown = [max(value, 1e-38) for value in values]
            axes.plot([step - before for step in steps], shown, color=colour, label=words)
        axes.set(xscale="log", yscale="log", title=title, ylabel="mean over experts or images")
        axes.set_xlabel("training step of the experts")
        axes.grid(axis="y")
        axes.legend()
    woke = next((line["step"] - before for line in lines if line["probed_dreamt_on"] > 0.01), None)
    said = "the chain never wakes"
    if woke is not None:
        said = f"the chain wakes, one capsule in a hundred on, about {woke:,} steps in"
    return figure, f"Until then the update is its first term alone, Hebbian growth; {said}."

"""What expert capsules draw (Hauser 2019): sheets of samples, the network as it stands, and how its weights grow."""

from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.analysis.sample_quality import inverted, sampled_pictures
from torchcaps.data import Labelled
from torchcaps.data.augment import as_seen
from torchcaps.figures.canvas import BLUE, GREEN, ORANGE, bare, canvas, montage, place, show, write
from torchcaps.figures.numbers import series
from torchcaps.ops import length

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

ROWS = 4
AFTER = "After figure {} of Hauser (2019)."


def sample_sheets(model: nn.Module, data: Labelled, device: torch.device, *, row: str, seed: int = 0) -> tuple[Figure, str]:
    """Figure 2: a column for each capsule, four samples each, drawn once with one seed: nothing is chosen.

    Three sheets: the complete domain, the same numbers negated, the same numbers turned to the half that training visits. `row`:
    what was trained, in the words of the table, which say how it departs from the paper.
    """
    pictures = sampled_pictures(model.to(device), ROWS, seed, device)
    mean_image = as_seen(data.images).mean(0).to(device)
    n = pictures["complete"].shape[1]
    tile = 8.0 / n
    with canvas(8.2, 3 * (ROWS * tile + 0.35), layout="none") as figure:
        for number, (domain, name) in enumerate(TITLES.items()):
            share = 100 * inverted(pictures[domain], mean_image).double().mean().item()
            top = number * (ROWS * tile + 0.35)
            write(figure, 0.1, top + 0.08, f"{name}: {share:.0f} % of these {n * ROWS} are negatives")
            show(place(figure, 0.1, top + 0.3, n * tile, ROWS * tile), montage(pictures[domain].cpu()))
    swapped = inverted(pictures["complete"], mean_image) != inverted(pictures["negated"], mean_image)
    words = (
        f"{row}. Each column is one of {n} capsules, each row a sample: {model.encoders[-1].d_out} normal numbers in it, all others "
        f"silent; one seed, nothing chosen. Negating the numbers turns {int(swapped.sum())} of {swapped.numel()} into the other kind"
    )
    return figure, f"{words}. {AFTER.format('2')}"


TITLES = {"complete": "Complete domain", "negated": "The same numbers negated", "restricted": "Restricted to the half that training visits"}


def architecture(model: nn.Module, image: Float[Tensor, "c h w"], device: torch.device, *, row: str) -> tuple[Figure, str]:
    """Figure 1, drawn from the model: one image on its way up and down, every stage as the numbers that are there."""
    model.to(device)
    images = image.unsqueeze(0).to(device)
    with evaluating(model):
        primary = model.primary_capsules(images)
        capsules = model(images)
        decoded = model.decode(capsules.poses)
        drawn, plain = model.reconstruct(capsules.poses), model.autoencoder(images).sigmoid()
    n_out, d_out = capsules.poses.shape[1:]
    n_in, d_in = primary.poses.shape[1:]
    with canvas(8.2, 2.9) as figure:
        axes = figure.subplots(1, 6, width_ratios=[1, 1.15, 0.9, 1.15, 1, 1])
        show(axes[0], images[0].cpu()), axes[0].set_title("image")
        _lengths(axes[1], model, primary.poses, f"{n_in} capsules of {d_in}")
        _lengths(axes[3], model, decoded, f"decoded by U: {n_in} of {d_in}")
        bare(axes[2]).imshow(capsules.poses[0].cpu().numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axes[2].set_title(f"{n_out} experts of {d_out}")
        show(axes[4], drawn[0].cpu()), axes[4].set_title("drawn from them")
        show(axes[5], plain[0].cpu()), axes[5].set_title("autoencoder alone")
    words = (
        f"{row}. A test image, the lengths of its {n_in} lowest capsules (a map for every type), the numbers of the {n_out} experts "
        "(blue above 0), the lengths that the decoder U makes of them, and the picture of those; last, the picture without any "
        "capsules between"
    )
    return figure, f"{words}. {AFTER.format('1')}"


def _lengths(axes: Any, model: nn.Module, poses: Float[Tensor, "1 i d"], title: str) -> None:
    """A map for each type, in a square of maps."""
    maps = rearrange(length(poses)[0], "(n h w) -> n 1 h w", h=model.grid[0], w=model.grid[1]).cpu()
    side = int(len(maps) ** 0.5)
    while len(maps) % side:
        side -= 1
    show(axes, montage(rearrange(maps, "(r k) c h w -> r k c h w", r=side)))
    axes.set_title(title)


def growth_curve(journal: list[dict[str, Any]], every: int, title: str = "from N(0, 0.01)") -> tuple[Figure, str]:
    """How the experts wake, by the probes of the stage that trains them: how often they are on, in the data and in the chain's dream.

    `every`: steps from one probe to the next, and to the first one, which tells where the stage began: what is kept of a journal need not
    hold the last step of the stage before.
    """
    lines = [line for line in journal if "probed_dreamt_on" in line]
    if not lines:
        raise ValueError(
            "growth_curve needs the journal of a run whose experts were probed; give their stage probe_every, and run it again"
        )
    before = lines[0]["step"] - every
    with canvas(7.0, 2.9) as figure:
        axes = figure.subplots(1, 1)
        for name, words, colour in (
            ("probed_on", "on, given the data", BLUE),
            ("probed_dreamt_on", "on, after one sweep", ORANGE),
            ("probed_missed", "missed share", GREEN),
        ):
            steps, values = series(lines, name)
            axes.plot([step - before for step in steps], [max(value, 1e-38) for value in values], color=colour, label=words)
        axes.set(xscale="log", yscale="log", xlabel="training step of the experts", title=f"Growth {title}, on log scales")
        axes.grid(axis="y")
        axes.legend()
    woke = next((line["step"] - before for line in lines if line["probed_dreamt_on"] > 0.01), None)
    said = f"the chain wakes, one capsule in a hundred on, about {woke:,} steps in" if woke is not None else "the chain never wakes"
    return figure, f"Until then the update is its first term alone, Hebbian growth; {said}."

"""Figures 2 to 5 of Rawlinson 2018: what single latent capsules draw, how support falls by rank, who wins, and what numbers mean."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.figures.canvas import BLUE, GREEN, INK, MUTED, ORANGE, bare, canvas, gains, montage, place, write
from torchcaps.figures.numbers import as_input, pixel_change, sweep_poses

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

OFFSETS = tuple(0.2 * k for k in range(-5, 6))  # figure 5: -1 to 1
COLOURS = {"sparse": BLUE, "dense": ORANGE, "supervised": GREEN, "sparse, steered": INK}
N_SWEPT = 6  # pictures in figure 5, each the first of its class


def apart(model: nn.Module, image: Tensor) -> tuple[Float[Tensor, "k c h w"], Float[Tensor, "k c h w"]]:
    """What the decoder draws from all capsules and from each alone; from all, and from all but one."""
    with evaluating(model):
        poses = model(as_input(model, image.unsqueeze(0))).poses[0]
        alone = torch.eye(len(poses), device=poses.device)
        keep = torch.cat([torch.ones_like(alone[:1]), alone]), torch.cat([torch.ones_like(alone[:1]), 1 - alone])
        return tuple(model.reconstruct(poses * part.unsqueeze(-1)).cpu() for part in keep)


def single_capsules(model: nn.Module, data: Labelled, words: str) -> tuple[Figure, str]:
    """Figure 2: (a) the picture, from all capsules, from each alone; (b) leaving each out; (c) what that changes."""
    image = data.images[0]
    alone, without = apart(model, image)
    changes = without[1:] - without[:1]
    shown = as_input(model, image).cpu()
    first = torch.cat([shown.unsqueeze(0), alone])
    n = len(first)
    tile, left = 0.42, 0.1
    with canvas(left + n * tile + 0.1, 3 * (tile + 0.32) + 0.1, layout="none") as figure:
        rows = [("(a) the picture, then from all capsules, then from each alone", first, 0), ("(b) from all but one", without[1:], 2)]
        for number, (heading, pictures, start) in enumerate(rows):
            top = number * (tile + 0.32) + 0.05
            write(figure, left, top, heading, fontsize=8.5)
            axes = bare(place(figure, left + start * tile, top + 0.24, len(pictures) * tile, tile))
            axes.imshow(montage(pictures[None])[0].numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        top = 2 * (tile + 0.32) + 0.05
        write(figure, left, top, "(c) what leaving it out changes: blue is more ink, orange less", fontsize=8.5)
        axes = bare(place(figure, left + 2 * tile, top + 0.24, len(changes) * tile, tile))
        most = max(float(changes.abs().max()), 1e-6)
        axes.imshow(montage(changes[None])[0].numpy(), cmap=gains(), vmin=-most, vmax=most, interpolation="nearest", aspect="auto")
    spread = changes.abs().sum((1, 2, 3))
    share = float(spread.max() / spread.sum().clamp(min=1e-12))
    return figure, (
        f"{words}. The first test picture; of what leaving single capsules out changes, the strongest one makes {100 * share:.0f} %. "
        "After figure 2 of Rawlinson, Ahmed and Kowadlo (2018)."
    )


def ranked_support(extras: Mapping[str, Mapping[str, Any]]) -> tuple[Figure, str]:
    """Figure 3: the support of each rank as a share of the first, by kind of network; from the numbers of their results."""
    with canvas(5.2, 3.2) as figure:
        axes = figure.subplots()
        for name, told in extras.items():
            shares = _in_order(told["relative_support"])
            axes.plot(range(len(shares)), shares, "o-", markersize=3.5, color=COLOURS.get(name, MUTED), label=name)
        axes.set(xlabel="rank of a capsule in a picture, before any boost", ylim=(0, 1.05), title="Support, as a share of the first")
        axes.grid(axis="y")
        axes.legend()
    middle = ", ".join(f"{name} {told['relative_support_8']:.3f}" for name, told in extras.items() if "relative_support_8" in told)
    n = next(iter(extras.values()))["n_images"]
    return figure, f"Mean over {n:,} test pictures. Rank 8: {middle}. After figure 3 of Rawlinson, Ahmed and Kowadlo (2018)."


def rank_frequencies(told: Mapping[str, Any], words: str, frequencies: tuple[float, float] | None) -> tuple[Figure, str]:
    """Figure 4: how often each capsule has each rank; from the numbers of a result. `frequencies`: the range that boosts aim at, if any."""
    rows = [_in_order(row) for row in _in_order(told["rank_frequency"])]
    with canvas(5.2, 3.2) as figure:
        axes = figure.subplots()
        for row in rows:
            axes.plot(range(len(row)), row, color=BLUE, linewidth=1, alpha=0.55)
        if frequencies:
            axes.axhspan(*frequencies, xmax=0.04, color=ORANGE, alpha=0.35, linewidth=0)
        axes.set(xlabel="rank, boosts included", ylim=(0, None), title=f"How often each of {len(rows)} capsules has it")
        axes.set_xlim(left=0)
        axes.grid(axis="y")
    wins = [row[0] for row in rows]
    goal = "; boosts aim at {:g} to {:g} (orange)".format(*frequencies) if frequencies else f"; an even share is {1 / len(rows):g}"
    return figure, (
        f"{words}. Each line is a capsule; {told['n_images']:,} test pictures, boosts frozen. Rank 0 is had with frequencies from "
        f"{min(wins):.3f} to {max(wins):.3f}{goal}. After figure 4 of Rawlinson, Ahmed and Kowadlo (2018)."
    )


def sweeps_of(model: nn.Module, image: Tensor) -> tuple[Float[Tensor, "e k c h w"], int]:
    """Each number of the capsule with the most support moved from -1 to 1, drawn; and which capsule it is."""
    with evaluating(model):
        seen = as_input(model, image.unsqueeze(0))
        latent, poses = model.latent(seen), model(seen).poses[0]
        support = latent.support[0]
        winner = int(support.argmax() if model.mask is None else model.mask.ranks(support).argmin())
        copies = sweep_poses(poses, winner, OFFSETS)
        pictures = model.reconstruct(rearrange(copies, "d k j e -> (d k) j e"))
    return rearrange(pictures.cpu(), "(d k) c h w -> d k c h w", k=len(OFFSETS)), winner


def latent_sweeps(model: nn.Module, data: Labelled, words: str) -> tuple[Figure, str]:
    """Figure 5: for a picture of each of some classes the number of its winning capsule that alters it most, and the next."""
    first = {int(label): index for index, label in reversed(list(enumerate(data.labels.tolist())))}
    chosen = [first[label] for label in sorted(first)][:N_SWEPT]
    rows, names, moved = [], [], []
    for index in chosen:
        pictures, winner = sweeps_of(model, data.images[index])
        change = pixel_change(pictures)
        moved.append(float(change.max()))
        for number in change.argsort(descending=True)[:2].tolist():
            rows.append(pictures[number])
            names.append(f"{int(data.labels[index])}: capsule {winner + 1}, {number + 1}")
    sheet, tile = montage(torch.stack(rows))[0], 0.36
    with canvas(1.6 + len(OFFSETS) * tile, 0.35 + len(rows) * tile, layout="none") as figure:
        axes = bare(place(figure, 1.5, 0.3, len(OFFSETS) * tile, len(rows) * tile))
        axes.imshow(sheet.numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        for number, name in enumerate(names):
            write(figure, 1.42, 0.3 + (number + 0.5) * tile, name, ha="right", va="center", fontsize=7.5, color=MUTED)
        for number, offset in enumerate(OFFSETS):
            write(figure, 1.5 + (number + 0.5) * tile, 0.12, f"{offset:+.1f}", ha="center", va="center", fontsize=7, color=INK)
    return figure, (
        f"{words}. The first test picture of each of {len(chosen)} classes; the two numbers of its winning capsule that alter the drawing "
        f"most, each moved from -1 to 1. Mean change of a pixel along the strongest: {sum(moved) / len(moved):.4f}. "
        "After figure 5 of Rawlinson, Ahmed and Kowadlo (2018)."
    )


def by_depth(extras: Mapping[str, Mapping[str, Any]]) -> tuple[Figure, str]:
    """Support and activity by rank in every layer of stacked networks: flat lines are layers in which all capsules do alike."""
    with canvas(9.4, 3.2) as figure:
        halves = figure.subplots(1, 2)
        for axes, (kind, title) in zip(
            halves, (("relative_support", "Support by rank"), ("relative_activity", "Activity by rank")), strict=True
        ):
            for (name, told), colour in zip(extras.items(), (BLUE, ORANGE, GREEN, MUTED), strict=False):
                for number, layer in told["layers"].items():
                    shares = _in_order(layer[kind])
                    style = ("-", "--", ":")[(int(number) - 1) % 3]
                    axes.plot(range(len(shares)), shares, style, color=colour, linewidth=1.4, label=f"{name}, layer {number}")
            axes.set(xlabel="rank", xticks=range(0, len(shares), 2), ylim=(0, 1.05), title=title)
            axes.grid(axis="y")
        figure.legend(*halves[0].get_legend_handles_labels(), loc="outside right center", fontsize=6.5)
    last = {name: list(told["layers"].values())[-1]["relative_activity"] for name, told in extras.items()}
    middle = ", ".join(f"{name} {_in_order(shares)[len(shares) // 2]:.3f}" for name, shares in last.items())
    return figure, f"As a share of the first rank. Activity of the middle rank in the last layer: {middle}."


def _in_order(numbered: Mapping[str, Any]) -> list[Any]:
    return [numbered[key] for key in sorted(numbered, key=int)]

"""Figures 2 to 5: single capsules, support by rank, winning capsules, pose dimensions; and activity by depth."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.figures.canvas import (
    BLUE,
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
    write,
)
from torchcaps.figures.numbers import as_input, pixel_change, sweep_poses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

OFFSETS = tuple(0.2 * k for k in range(-5, 6))  # figure 5: -1 to 1
COLOURS = {"sparse": BLUE, "dense": ORANGE, "supervised": GREEN, "sparse, our boosts": INK}
N_SWEPT = 6  # images in figure 5, each the first of its class
AFTER = "After figure {} of Rawlinson, Ahmed and Kowadlo (2018)."


def apart(model: nn.Module, image: Tensor) -> tuple[Float[Tensor, "k c h w"], Float[Tensor, "k c h w"]]:
    """Decode all capsules and each alone; all, and all but one."""
    with evaluating(model):
        poses = model(as_input(model, image.unsqueeze(0))).poses[0]
        alone = torch.eye(len(poses), device=poses.device)
        keep = torch.cat([torch.ones_like(alone[:1]), alone]), torch.cat([torch.ones_like(alone[:1]), 1 - alone])
        return tuple(model.reconstruct(poses * part.unsqueeze(-1)).cpu() for part in keep)


def single_capsules(model: nn.Module, data: Labelled, words: str) -> tuple[Figure, str]:
    """Draw figure 2: (a) input, decoded from all capsules and from each alone; (b) all but one; (c) the difference."""
    image = data.images[0]
    alone, without = apart(model, image)
    changes = without[1:] - without[:1]
    shown = as_input(model, image).cpu()
    first = torch.cat([shown.unsqueeze(0), alone])
    tile, left, head, pitch = 0.42, 0.1, 0.3, 0.72  # inches; a title is nearer to its own row than to the one above
    with canvas(left + len(first) * tile + 0.1, head + 3 * pitch + 0.1, layout="none") as figure:
        write(figure, left, 0.1, "capsule", fontsize=7.5, color=MUTED)
        for number in range(len(changes)):
            middle = left + (number + 2.5) * tile
            write(figure, middle, 0.1, f"{number + 1}", ha="center", fontsize=7.5, color=MUTED)
        most = max(float(changes.abs().max()), 1e-6)
        grey, tinted = {"cmap": "gray_r", "vmin": 0, "vmax": 1}, {"cmap": gains(), "vmin": -most, "vmax": most}
        rows = [
            ("(a) input, reconstruction from all capsules, then from each capsule alone", first, 0, grey),
            ("(b) reconstruction without one capsule", without[1:], 2, grey),
            ("(c) change when it is left out: blue is more ink, orange is less", changes, 2, tinted),
        ]
        for number, (heading, pictures, start, colours) in enumerate(rows):
            top = head + number * pitch
            write(figure, left, top, heading, fontsize=8.5)
            axes = bare(place(figure, left + start * tile, top + 0.15, len(pictures) * tile, tile))
            sheet = _sheet(axes, pictures[None], **colours)
        bar = figure.colorbar(
            sheet, cax=place(figure, left + 0.1, top + 0.32, 1.4 * tile, 0.07), orientation="horizontal"
        )
        bar.set_ticks([-most, 0, most], labels=[f"{-most:.2f}", "0", f"{most:.2f}"], fontsize=6)
        bar.outline.set_visible(False)
    spread = changes.abs().sum((1, 2, 3))
    share = float(spread.max() / spread.sum().clamp(min=1e-12))
    said = f"{words}, first test image. The strongest capsule makes {100 * share:.0f} % of all changes in (c)."
    return figure, f"{said} {AFTER.format(2)}"


def ranked_support(extras: Mapping[str, Mapping[str, Any]]) -> tuple[Figure, str]:
    """Draw figure 3: support of each rank relative to the first, one line per network."""
    with canvas(5.6, 3.2) as figure:
        axes = figure.subplots()
        for name, told in extras.items():
            shares = _in_order(told["relative_support"])
            axes.plot(range(len(shares)), shares, "o-", markersize=3.5, color=COLOURS.get(name, MUTED), label=name)
        axes.set(xlabel="rank of a capsule in an image (0: most support)", ylabel="support / support of rank 0")
        axes.set_xticks(range(0, len(shares), max(len(shares) // 5, 1)))
        axes.set(ylim=(0, 1.05), title="Routing support by rank")
        axes.grid(axis="y")
        axes.legend(loc="lower left")
    middles = {name: told["relative_support_8"] for name, told in extras.items() if "relative_support_8" in told}
    middle = ", ".join(f"{name} {share:.3f}" for name, share in middles.items())
    n = next(iter(extras.values()))["n_images"]
    return figure, f"Mean over {n:,} test images, before any boost. Rank 8: {middle}. {AFTER.format(3)}"


def rank_frequencies(panels: Mapping[str, Mapping[str, Any]], aim: tuple[float, float] | None) -> tuple[Figure, str]:
    """Draw figure 4: how often each capsule has each rank, one panel per network. `aim`: target range of the boosts."""
    with canvas(4.5 * len(panels), 3.6) as figure:
        wins = {}
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, told) in zip(grid, panels.items(), strict=True):
            rows = sorted((_in_order(row) for row in _in_order(told["rank_frequency"])), key=lambda row: row[0])
            wins[title] = rows[0][0], rows[-1][0]
            _ranks(axes, rows, aim)
            axes.set_title(title)
        grid[0].set(ylabel="fraction of test images", ylim=(0, None))
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    n = next(iter(panels.values()))["n_images"]
    said = "; ".join(f"{title}: {least:.3f} to {most:.3f}" for title, (least, most) in wins.items())
    return (
        figure,
        f"One line per capsule, {n:,} test images, boosts frozen. Fraction of images won: {said}. {AFTER.format(4)}",
    )


def _ranks(axes: Axes, rows: list[list[float]], aim: tuple[float, float] | None) -> None:
    """Draw one line per capsule, from the fewest wins to the most."""
    few, *others, most = rows
    for number, row in enumerate(others):
        label = f"the other {len(others)} capsules" if number == 0 else None
        axes.plot(range(len(row)), row, color=PALE, linewidth=1.1, label=label)
    for row, colour, label in ((few, INK, "capsule with the fewest wins"), (most, BLUE, "capsule with the most wins")):
        axes.plot(range(len(row)), row, "o-", markersize=2.5, color=colour, linewidth=1.4, label=label)
    axes.axhline(1 / len(rows), color=GREEN, linewidth=1, linestyle=":", label=f"uniform, 1/{len(rows)}")
    if aim:
        low, high = aim
        label = f"target of boosts, {low:g} to {high:g}"
        axes.fill_between((-0.4, 0.4), low, high, color=ORANGE, alpha=0.5, linewidth=0, label=label)
    axes.set(xlabel="rank of boosted support (0: wins)", xlim=(-0.5, len(few) - 0.5))
    axes.set_xticks(range(0, len(few), max(len(few) // 5, 1)))
    axes.grid(axis="y")


def sweeps_of(model: nn.Module, image: Tensor) -> tuple[Float[Tensor, "e k c h w"], int]:
    """Perturb each pose dimension of the winning capsule from -1 to 1 and decode; also return the capsule's index."""
    with evaluating(model):
        seen = as_input(model, image.unsqueeze(0))
        latent, poses = model.latent(seen), model(seen).poses[0]
        support = latent.support[0]
        winner = int(support.argmax() if model.mask is None else model.mask.ranks(support).argmin())
        copies = sweep_poses(poses, winner, OFFSETS)
        pictures = model.reconstruct(rearrange(copies, "d k j e -> (d k) j e"))
    return rearrange(pictures.cpu(), "(d k) c h w -> d k c h w", k=len(OFFSETS)), winner


def latent_sweeps(model: nn.Module, data: Labelled, words: str) -> tuple[Figure, str]:
    """Draw figure 5: the two pose dimensions of the winning capsule that change an image most, one image per class."""
    first = {int(label): index for index, label in reversed(list(enumerate(data.labels.tolist())))}
    chosen = [first[label] for label in sorted(first)][:N_SWEPT]
    rows, names, moved = [], [], []
    for index in chosen:
        pictures, winner = sweeps_of(model, data.images[index])
        change = pixel_change(pictures)
        moved.append(float(change.max()))
        for number in change.argsort(descending=True)[:2].tolist():
            rows.append(pictures[number])
            names.append(f"digit {int(data.labels[index])}, capsule {winner + 1}, dimension {number + 1}")
    tile, left, top = 0.36, 2.2, 0.5
    middle = left + len(OFFSETS) * tile / 2
    with canvas(left + 0.1 + len(OFFSETS) * tile, top + 0.05 + len(rows) * tile, layout="none") as figure:
        axes = bare(place(figure, left, top, len(OFFSETS) * tile, len(rows) * tile))
        _sheet(axes, torch.stack(rows), cmap="gray_r", vmin=0, vmax=1)
        write(figure, middle, 0.12, "added to one pose dimension", ha="center", va="center", fontsize=8, color=MUTED)
        for number, name in enumerate(names):
            where = {"ha": "right", "va": "center", "fontsize": 7.5, "color": MUTED}
            write(figure, left - 0.08, top + (number + 0.5) * tile, name, **where)
        for number, offset in enumerate(OFFSETS):
            where = {"ha": "center", "va": "center", "fontsize": 7, "color": INK}
            write(figure, left + (number + 0.5) * tile, 0.34, f"{offset:+.1f}", **where)
    return figure, (
        f"{words}. First test image of each of {len(chosen)} classes; the two pose dimensions of its winning capsule "
        f"that change it most. Mean change of a pixel along the strongest: {sum(moved) / len(moved):.4f}. "
        f"{AFTER.format(5)}"
    )


def by_depth(extras: Mapping[str, Mapping[str, Any]]) -> tuple[Figure, str]:
    """Draw support and activity by rank, one column per network; a flat line is a layer without winners."""
    kinds = {"relative_support": "support / that of rank 0", "relative_activity": "activity / that of rank 0"}
    styles = (SKY, "-"), (BLUE, "-"), (INK, "--")  # dashed, since it coincides with the second
    with canvas(2.4 * len(extras) + 0.6, 4.8) as figure:
        grid = figure.subplots(2, len(extras), sharex=True, sharey=True, squeeze=False)
        for column, (name, told) in zip(grid.T, extras.items(), strict=True):
            column[0].set(title=name)
            column[1].set(xlabel="rank in a layer")
            for axes, kind in zip(column, kinds, strict=True):
                for (number, layer), (colour, line) in zip(told["layers"].items(), styles, strict=True):
                    shares = _in_order(layer[kind])
                    axes.plot(range(len(shares)), shares, line, color=colour, linewidth=1.6, label=f"layer {number}")
                axes.set(ylim=(0, 1.05), xticks=range(0, len(shares), max(len(shares) // 3, 1)))
                axes.grid(axis="y")
        for axes, words in zip(grid[:, 0], kinds.values(), strict=True):
            axes.set_ylabel(words)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    last = {name: list(told["layers"].values())[-1]["relative_activity"] for name, told in extras.items()}
    middle = ", ".join(f"{name} {_in_order(shares)[len(shares) // 2]:.3f}" for name, shares in last.items())
    return figure, f"Three latent layers. Activity of the middle rank in the last layer: {middle}."


def _sheet(axes: Axes, images: Float[Tensor, "r k c h w"], **colours: Any) -> Any:
    return axes.imshow(montage(images)[0].numpy(), interpolation="nearest", aspect="auto", **colours)


def _in_order(numbered: Mapping[str, Any]) -> list[Any]:
    return [numbered[key] for key in sorted(numbered, key=int)]

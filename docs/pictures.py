"""Draw the figures of how-routing-works, other-routings, deep-networks and which-routing, and README's GIF.

Run `python docs/pictures.py`.

Needs `torchcaps[experiments]`. The hand-sized examples are those of the page, whose code is run for them; the trained
networks come with the package, errors against depth or time from the result files. Nothing is downloaded or trained.
The GIF needs the MNIST files (`torchcaps data get mnist`) and is left as it is without them.
"""

import contextlib
import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

import torchcaps
from torchcaps import CapsNet, dynamic_routing_steps, em_routing_steps
from torchcaps.data import load
from torchcaps.data.sources.mirrors import DataError
from torchcaps.figures.canvas import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, PALE, bare, canvas, png
from torchcaps.figures.draw import couplings_over_iterations
from torchcaps.figures.moving import frames, gif, scenes
from torchcaps.figures.overlap import overlapping_digits
from torchcaps.ops import ladder_activity, rank_mask
from torchcaps.papers import depth as depth_rows
from torchcaps.papers import routings as routing_rows
from torchcaps.play.networks import load_network

HERE = Path(__file__).parent
PAGE = HERE / "how-routing-works.md"


def example(n: int) -> dict[str, Any]:
    """The names of the page's first n blocks of code."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[:n]:
            exec(block, names)
    return names


def agreement() -> Any:
    """Draw votes as arrows, scaled by coupling, and the squashed sum, for two wholes in three iterations."""
    names = example(1)
    steps = list(dynamic_routing_steps(names["poses"], names["weight"], n_iters=3))
    with canvas(7.6, 4.3) as figure:
        grid = figure.subplots(2, len(steps))
        for t, step in enumerate(steps):
            for j, (axes, whole, colour) in enumerate(zip(grid[:, t], ("face", "house"), (BLUE, ORANGE), strict=True)):
                bare(axes).set(xlim=(-0.75, 1.05), ylim=(-0.9, 0.9), aspect="equal")
                axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
                axes.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
                counted = step.couplings[:, j, None] * names["votes"][:, j]
                # votes that are the same would hide each other
                for lift, (x, y) in zip((0.1, 0.0, -0.1) if j == 0 else (0, 0, 0), counted.tolist(), strict=True):
                    axes.annotate(
                        "", (x, y + lift), (0, lift), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.2}
                    )
                x, y = step.poses[j].tolist()
                long = step.poses[j].norm().item()
                if long > 0.05:
                    axes.annotate(
                        "", (x, y - 0.3), (0, -0.3), arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 3}
                    )
                clear = {"facecolor": "white", "linewidth": 0, "pad": 1}
                said = f"coupling {step.couplings[0, j]:.2f}, length {long:.2f}"
                axes.text(-0.7, -0.8, said, fontsize=8, color=MUTED, bbox=clear)
                axes.set_title(f"Iteration {t + 1}" if j == 0 else "")
                axes.set_xlabel("pose dimension 1" if j == 1 else "")
                if t == 0:
                    axes.set_ylabel(f"{whole}\npose dimension 2")
        legend = {"votes, scaled by their coupling": (MUTED, 1.2), "sum of the votes, squashed": (INK, 3)}
        figure.legend(
            [Line2D([], [], color=colour, linewidth=width) for colour, width in legend.values()],
            list(legend),
            loc="outside lower center",
            ncols=2,
        )
    return figure


def em() -> Any:
    """Draw votes for two wholes as dots, darker the more they are used, under Gaussians, at three iterations."""
    names = example(3)
    votes, steps = names["votes"], list(em_routing_steps(*names["arguments"], n_iters=5))
    line = torch.linspace(-10, 10, 2001)
    with canvas(7.6, 4.1) as figure:
        grid = figure.subplots(2, 3, sharex=True)
        for column, t in enumerate((0, 2, 4)):
            for j, (axes, whole, colour) in enumerate(zip(grid[:, column], "AB", (BLUE, ORANGE), strict=True)):
                mean, variance = steps[t].poses[j].item(), steps[t].variances[j].item()
                height = torch.exp(-(line - mean).square() / (2 * variance))
                axes.fill_between(line.numpy(), height.numpy(), color=colour, alpha=0.25, linewidth=0)
                axes.plot(line.numpy(), height.numpy(), color=colour, linewidth=1)
                # one below the other: three of the votes for A are nearly the same
                at, size = (votes[:, j].numpy(), [-0.14, -0.29, -0.44, -0.59]), 30
                axes.scatter(
                    *at, s=size, c=colour, alpha=(0.06 + 0.94 * steps[t].used[:, j]).numpy(), edgecolors="none"
                )
                axes.scatter(*at, s=size, facecolors="none", edgecolors=PALE, linewidths=0.8)
                axes.text(
                    0.98,
                    0.86,
                    f"score {steps[t].scores[j]:.2f}",
                    transform=axes.transAxes,
                    ha="right",
                    fontsize=8,
                    color=MUTED,
                )
                axes.set(
                    ylim=(-0.7, 1.25),
                    yticks=[],
                    title=f"Iteration {t + 1}" if j == 0 else "",
                    xlabel="vote" if j == 1 else "",
                )
                axes.spines["left"].set_visible(False)
                if column == 0:
                    axes.set_ylabel(f"whole {whole}")
        uses = {"a vote that is not used": 0.06, "used by half": 0.53, "used entirely": 1.0}
        dots = [
            Line2D([], [], color="none", marker="o", markerfacecolor=(*to_rgb(MUTED), use), markeredgecolor=PALE)
            for use in uses.values()
        ]
        curve = Line2D([], [], color=MUTED)
        figure.legend([curve, *dots], ["density of the whole's Gaussian", *uses], loc="outside lower center", ncols=4)
    return figure


def masks() -> Any:
    """Draw the mask by rank, and the activity of a ladder capsule by its regression error."""
    factors, misfit = rank_mask(torch.arange(16)), torch.linspace(0, 1, 101)
    with canvas(7.6, 2.6) as figure:
        left, right = figure.subplots(1, 2)
        left.bar(range(16), factors.numpy(), color=BLUE)
        left.set(title="Sparse mask of 16 capsules", xlabel="rank by support (0: most)", ylabel="factor")
        left.set_xticks(range(0, 16, 3))
        right.plot(misfit.numpy(), ladder_activity(misfit).numpy(), color=GREEN)
        right.set(
            title="Activity of a ladder capsule",
            xlabel="mean squared error of the regressed parts",
            ylabel="activity",
            xlim=(0, 1),
            ylim=(0, 1.05),
        )
        for axes in (left, right):
            axes.grid(axis="y")
    return figure


def bundled(name: str) -> tuple[CapsNet, Any]:
    """A network of scikit-learn's digits, and the test part of its data."""
    network = load_network(name)
    return network.model, load(network.run.data, "test", seed=0)  # the seed that they were trained with


def couplings() -> Any:
    """A digit that the small network was not trained on."""
    model, data = bundled("capsnet-digits")
    index = int((data.labels == 5).nonzero()[0])
    return couplings_over_iterations(model, data.images[index], 5)


def overlap() -> Any:
    model, pairs = bundled("capsnet-digits-pairs")
    return overlapping_digits(model, pairs, most=200)[0]


def of_results(paper: ModuleType, name: str) -> Any:
    """Draw a figure of an experiment of ours from its result files."""
    return paper.figures(HERE.parent / "results", HERE, None, torch.device("cpu"))[name][0]


DRAWN = (agreement, em, masks, couplings, overlap)
OF_RESULTS = {"depth": (depth_rows, "depth")} | {
    f"routings-{which}": (routing_rows, f"{which}-error-against-time")
    for which in ("cifar", "fashion", "smallnorb", "like", "digits")
}
PICTURES: dict[str, Callable[[], Any]] = {draw.__name__: draw for draw in DRAWN} | {
    name: partial(of_results, *given) for name, given in OF_RESULTS.items()
}


def small(picture: bytes) -> bytes:
    """The same with 256 colours, in a third of the bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def main(folder: Path = HERE / "pictures") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in PICTURES]
    for path, draw in zip(paths, PICTURES.values(), strict=True):
        path.write_bytes(small(png(draw())))
    return paths


def moving(path: Path = HERE / "moving.gif") -> Path:
    """Draw README's picture: the first pairs of MultiMNIST's test set that its network recognises in every frame."""
    path.write_bytes(gif(frames(scenes(torchcaps.load("capsnet-multimnist"), load("multimnist-4", "test")))))
    return path


if __name__ == "__main__":
    for path in main():
        print(path)
    try:
        print(moving())
    except DataError as error:
        print(f"moving.gif is left as it is: {error}")

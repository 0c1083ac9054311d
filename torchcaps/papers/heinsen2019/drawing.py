"""Figures 4, 6, 7 and 9: toys under changing viewpoints, and how the pose of their class capsule moves."""

from typing import TYPE_CHECKING, Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from torchcaps.data import Labelled
from torchcaps.data.sets.smallnorb import CATEGORIES, Factors
from torchcaps.figures.canvas import BLUE, FAINT, INK, MUTED, ORANGE, SKY, bare, canvas
from torchcaps.papers.heinsen2019.poses import FIXED, Changes, Tracks, changes, in_degrees, scaled, sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

ROWS = {  # rows of figures 6 and 7: label, and the value of a vector that does not move
    "distance": ("distance to the\nfirst view / norm", 0),
    "norm": ("norm / norm in\nthe first view", 1),
    "cosine": ("cosine with\nthe first view", 1),
}


def pose_changes(found: Tracks, vary: str, number: int) -> tuple[Figure, str]:
    """Draw figure 6 (azimuth) or 7 (elevation): one column per pose vector, one line per toy, and the mean."""
    moved = changes(found.poses)
    n_vectors = found.poses.shape[2]
    with canvas(2.1 * n_vectors, 5.5) as figure:
        grid = figure.subplots(len(ROWS), n_vectors, squeeze=False, sharex=True, sharey="row")
        for (name, (words, still)), row in zip(ROWS.items(), grid, strict=True):
            for vector, axes in enumerate(row):
                _lines(axes, found, getattr(moved, name)[..., vector], still)
            row[0].set_ylabel(words)
            if name != "cosine":  # a toy with a tiny first vector must not flatten all the others
                row[0].set_ylim(bottom=0, top=max(1.2, 1.2 * getattr(moved, name).flatten().quantile(0.98).item()))
        for vector in range(n_vectors):
            grid[0, vector].set_title(f"Pose vector {vector + 1}")
            grid[-1, vector].set_xlabel(f"{vary}, degrees")
        _legend(figure, found)
    return figure, _change_words(found, moved, vary, number)


def _lines(axes: Axes, found: Tracks, values: Float[Tensor, "k v"], still: float) -> None:
    for track, right in zip(values, found.right, strict=True):
        axes.plot(found.degrees, track.numpy(), color=SKY if right.all() else ORANGE, linewidth=0.6, alpha=0.55)
    axes.axhline(still, color=MUTED, linewidth=0.6, linestyle=":")
    axes.plot(found.degrees, values.mean(0).numpy(), color=BLUE, linewidth=2.2)
    axes.set_xticks(found.degrees[:: max(1, len(found.degrees) // 4)])


def _legend(figure: Figure, found: Tracks) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=BLUE, linewidth=2.2, label="mean of all toys")]
    lines.append(Line2D([], [], color=SKY, linewidth=1, label="a toy that is always classified correctly"))
    if not found.right.all():
        lines.append(Line2D([], [], color=ORANGE, linewidth=1, label="a toy that is ever misclassified"))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines))


def _change_words(found: Tracks, moved: Changes, vary: str, number: int) -> str:
    mean = [part.mean((0, 2)) for part in moved]  # [v]
    far = int(mean[0].argmax())
    n, sure = found.right.numel(), int(found.right.sum())
    told = sorted({far, len(found.degrees) - 1})  # the view farthest from the first, and the last one
    at = ", ".join(
        f"{name} {' and '.join(f'{part[view]:.2f} at {found.degrees[view]}' for view in told)} degrees"
        for name, part in zip(Changes._fields, mean, strict=True)
    )
    return (
        f"{len(found.toys)} toys of the test set, {len(found.degrees)} views each, {_kept(vary)}. Poses are those of "
        f"the capsule of the toy's own class, which is predicted for {sure} of {n} images; a toy that is ever "
        f"misclassified is orange. Dark blue is the mean over toys; over toys and vectors: {at}. "
        f"Curves beyond the frame are cut. After figure {number} of Heinsen (2019)."
    )


def _kept(vary: str) -> str:
    """Name the settings that stay fixed."""
    said = {
        name: f"{name} {in_degrees(name, value)} degrees" for name, value in FIXED[vary].items() if name != "lighting"
    }
    return f"{' and '.join(said.values())} and light {FIXED[vary]['lighting']}"


def pose_trajectories(found: dict[str, Tracks]) -> tuple[Figure, str]:
    """Draw figure 4: pose vectors of the first toy of each category under every view, scaled to the plane."""
    first = {vary: _first_toys(part) for vary, part in found.items()}
    n_columns = max(map(len, first.values()))
    lost = []
    with canvas(2.0 * n_columns + 0.6, 2.2 * len(found) + 0.5) as figure:
        grid = figure.subplots(len(found), n_columns, squeeze=False)
        for (vary, part), row in zip(found.items(), grid, strict=True):
            for axes, at in zip(row, first[vary], strict=True):
                lost.append(_trajectory(axes, part.poses[at]))
                category, instance = part.toys[at]
                axes.set_title(f"{CATEGORIES[category]} {instance}", color=INK if part.right[at].all() else ORANGE)
            _colour_key(figure, row, part.degrees, vary)
        _circle_key(figure)
    return figure, (
        "Each polygon is one image: its corners are the pose vectors of the capsule of the toy's class, joined in "
        "order, in two dimensions that keep the distances between all vectors of a panel as well as they can "
        f"(multidimensional scaling; stress {min(lost):.2f} to {max(lost):.2f}). Circles: the first vector in the "
        "first (open) and the last view (full). Colour shows the view; a toy that is ever misclassified "
        "has its name in orange. "
        f"{'; '.join(f'{vary}: {_kept(vary)}' for vary in found)}. After figure 4 of Heinsen (2019)."
    )


def _first_toys(found: Tracks) -> list[int]:
    """Find the first toy of each category, in their order."""
    seen: dict[int, int] = {}
    for at, (category, _) in enumerate(found.toys):
        seen.setdefault(category, at)
    return list(seen.values())


def _trajectory(axes: Axes, poses: Float[Tensor, "v r e"]) -> float:
    from matplotlib import colormaps

    plane = scaled(rearrange(poses, "v r e -> (v r) e"))
    corners = rearrange(plane.points, "(v r) q -> v r q", v=len(poses))
    colours = colormaps["viridis"]([view / max(len(poses) - 1, 1) for view in range(len(poses))])
    for polygon, colour in zip(corners, colours, strict=True):
        axes.plot(
            polygon[:, 0].numpy(), polygon[:, 1].numpy(), "-o", color=colour, linewidth=0.9, markersize=2, alpha=0.85
        )
    for view, fill in ((0, "none"), (-1, "full")):
        axes.plot(*corners[view, 0].tolist(), "o", color=colours[view], fillstyle=fill, markersize=8)
    bare(axes).set_aspect("equal", adjustable="datalim")
    axes.spines[:].set(visible=True, color=FAINT)
    axes.margins(0.12)
    return plane.stress


def _colour_key(figure: Figure, row: Any, degrees: list[int], vary: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(
        ScalarMappable(Normalize(degrees[0], degrees[-1]), "viridis"), ax=list(row), pad=0.01, aspect=14
    )
    bar.set_label(f"{vary}, degrees")
    bar.outline.set_visible(False)


def _circle_key(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    shown = (("none", "first pose vector, first view"), ("full", "first pose vector, last view"))
    circles = [
        Line2D([], [], color=MUTED, marker="o", linestyle="", fillstyle=fill, markersize=8, label=words)
        for fill, words in shown
    ]
    figure.legend(handles=circles, loc="outside lower center", ncols=2)


def stereo_pairs(data: Labelled, factors: Factors) -> tuple[Figure, str]:
    """Draw figure 9: a toy of each category under every azimuth, the left camera's image above the right one's."""
    toys, degrees, indices = sequences(data.labels, factors, "azimuth")
    first = {category: at for at, (category, _) in reversed(list(enumerate(toys)))}
    tile = 0.46
    with canvas(tile * len(degrees) + 0.9, len(first) * (2 * tile + 0.14) + 0.5) as figure:
        rows = figure.subplots(len(first), 1, squeeze=False)[:, 0]
        for axes, at in zip(rows, sorted(first.values()), strict=True):
            sheet = rearrange(data.images[indices[at]], "v eye h w -> (eye h) (v w)")
            bare(axes).imshow(sheet.numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            category, instance = toys[at]
            axes.set_ylabel(f"{CATEGORIES[category]} {instance}", fontsize=8)
        width = data.images.shape[-1]
        rows[-1].set_xticks([width * (view + 0.5) for view in range(len(degrees))], map(str, degrees), fontsize=7)
        rows[-1].tick_params(length=0)
        rows[-1].set_xlabel("azimuth, degrees")
    return (
        figure,
        f"The first toy of each category of the test set, both cameras, {_kept('azimuth')}. "
        "After figure 9 of Heinsen (2019).",
    )

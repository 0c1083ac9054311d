"""Trade-off between pure capsules and linear probe accuracy, for every setting tried on held-out digits."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcaps.figures.canvas import INK, MUTED, PALE, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

MARKERS = "o", "D", "^"
SIZE = 5.5  # size of a marker, in points
SIZES = {"^": 1.7 * SIZE}  # visible below an overlapping dot
TEXT = 7.5
Box = tuple[float, float, float, float]  # left, low, right, high


class Setting(NamedTuple):
    """One dot: the force, its goal (fraction of images for which an expert should be on), and the results."""

    force: float
    goal: float
    n_pure: float
    probe_accuracy: float
    n_plain: int = 0  # pose dimensions off the sphere
    l2: float = 0.01  # the decoder's
    row: str = ""  # the row with this setting, if any

    @property
    def at(self) -> tuple[float, float]:
        return self.probe_accuracy, self.n_pure


class Wanted(NamedTuple):
    """Shaded corner of the plot: minimum number of pure capsules and minimum probe accuracy."""

    n_pure: int
    probe_accuracy: float
    n_capsules: int

    def met(self, setting: Setting) -> bool:
        return setting.n_pure >= self.n_pure and setting.probe_accuracy >= self.probe_accuracy


def purity_against_probe(settings: Sequence[Setting], wanted: Wanted) -> tuple[Figure, str]:
    """Draw one dot per setting: colour is the force, shape the decoder's l2; the wanted corner is shaded.

    The first panel holds settings with all dimensions on the sphere, labelled by goal; lines join those of one force.
    The second holds settings with dimensions off the sphere, labelled by their number and any unusual goal.
    Rows have a ring and their name.
    """
    forces, decays = sorted({setting.force for setting in settings}), sorted({setting.l2 for setting in settings})
    if not settings or len(decays) > len(MARKERS):
        raise ValueError(
            f"purity_against_probe draws settings of 1 to {len(MARKERS)} l2, "
            f"got {len(settings)} settings of {len(decays)}"
        )
    sphere, off = ([setting for setting in settings if bool(setting.n_plain) == plain] for plain in (False, True))
    panels = [those for those in (sphere, off) if those]
    with canvas(4.3 * len(panels) + 0.9, 3.9) as figure:
        from matplotlib import colormaps

        shades = colormaps["viridis_r"]
        colours = {force: shades(0.2 + 0.8 * n / max(1, len(forces) - 1)) for n, force in enumerate(forces)}
        markers = dict(zip(decays, MARKERS, strict=False))
        columns = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, those in zip(columns, panels, strict=True):
            _frame(axes, those, wanted)
            if those is off:
                _behind(axes, sphere)
            else:
                _joined(axes, those, colours)
            for setting in sorted(those, key=lambda setting: -setting.l2):  # large ones below
                _dot(axes, setting, markers[setting.l2], colours[setting.force])
            _label(axes, those)
        columns[0].set_ylabel(f"pure capsules (one class), of {wanted.n_capsules}")
        _legend(figure, colours, markers, wanted)
    return figure, _words(settings, wanted)


def _frame(axes: Axes, settings: Sequence[Setting], wanted: Wanted) -> None:
    """Set limits with room for labels, shade the corner, and title the panel."""
    probes = [wanted.probe_accuracy, *(setting.probe_accuracy for setting in settings)]
    room = 0.09 * (max(probes) - min(probes)) + 0.05
    left, right = min(probes) - room, max(probes) + room
    axes.fill_between(
        [wanted.probe_accuracy, right], wanted.n_pure, wanted.n_capsules, color=PALE, alpha=0.35, linewidth=0
    )
    axes.text(right, wanted.n_capsules - 0.3, "both high ", ha="right", va="top", fontsize=8, color=MUTED)
    axes.set(xlim=(left, right), ylim=(0, wanted.n_capsules), xlabel="linear probe on held-out digits, % correct")
    if any(setting.n_plain for setting in settings):
        axes.set_title("Some pose dimensions off the sphere\n(label: how many)")
    else:
        axes.set_title("All pose dimensions on the sphere\n(label: target fraction on)")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.grid()


def _dot(axes: Axes, setting: Setting, marker: str, colour: Any) -> None:
    axes.plot(
        *setting.at,
        marker,
        color=colour,
        markersize=SIZES.get(marker, SIZE),
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=4,
    )
    if setting.row:
        axes.plot(
            *setting.at, "o", color="none", markersize=2 * SIZE, markeredgecolor=INK, markeredgewidth=0.9, zorder=4
        )


def _joined(axes: Axes, settings: Sequence[Setting], colours: dict[float, Any]) -> None:
    """Draw a line through the settings of one force, in the order of their goals."""
    for force, colour in colours.items():
        those = sorted((setting for setting in settings if setting.force == force), key=lambda setting: setting.goal)
        if len(those) > 1:
            axes.plot(*zip(*(setting.at for setting in those), strict=True), color=colour, linewidth=1)


def _behind(axes: Axes, settings: Sequence[Setting]) -> None:
    """Draw the other panel's dots in grey where they fall into this panel."""
    shown = [setting for setting in settings if setting.probe_accuracy > axes.get_xlim()[0]]
    for setting in shown:
        axes.plot(*setting.at, "o", color=PALE, markersize=SIZE)
    if shown:
        low = min(shown, key=lambda setting: setting.n_pure)
        axes.annotate("on the sphere", low.at, (6, -3), textcoords="offset points", fontsize=TEXT, color=MUTED)


def _label(axes: Axes, settings: Sequence[Setting]) -> None:
    """Label each dot where the label covers no other dot or label; overlapping dots share one label."""
    goals = [setting.goal for setting in settings]
    usual = max(sorted(set(goals)), key=goals.count)
    words: dict[tuple[float, float], list[str]] = {}
    for setting in settings:
        words.setdefault(setting.at, []).append(_said(setting, usual))
    axes.figure.draw_without_rendering()  # the layout decides where dots are
    dots = {at: tuple(72 / axes.figure.dpi * axes.transData.transform(at)) for at in words}  # in points
    sizes = {setting.at: (2 * SIZE if setting.row else SIZE) for setting in settings}
    taken = [
        (x - sizes[at] / 2, y - sizes[at] / 2, x + sizes[at] / 2, y + sizes[at] / 2) for at, (x, y) in dots.items()
    ]
    edge = 72 / axes.figure.dpi * axes.transAxes.transform((1, 0))[0]
    taken.append((edge, -math.inf, math.inf, math.inf))  # no word leaves its panel to the right
    clear = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.2}  # lines pass below the words, dots above
    for at, those in words.items():
        text = " and ".join(dict.fromkeys(those))
        across, up, box = _free(dots[at], sizes[at], text, taken)
        taken.append(box)
        side = "left" if across > 0 else "right"
        words_at = {"xytext": (across, up), "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(text, at, fontsize=TEXT, color=INK, bbox=clear, zorder=3, **words_at)


def _said(setting: Setting, usual: float) -> str:
    """Format the label of a dot: dimensions off the sphere, or else the goal, or both if the goal is unusual."""
    about = f"{setting.goal:g}"
    if setting.n_plain:
        about = f"{setting.n_plain}" if setting.goal == usual else f"{setting.n_plain}, target {about}"
    return f"{about}: {setting.row}" if setting.row else about


def _free(dot: tuple[float, float], size: float, text: str, taken: Sequence[Box]) -> tuple[float, float, Box]:
    """Find the offset in points where a label covers least, and its box."""
    width, height = 0.62 * TEXT * len(text), TEXT
    tried = []
    for up in (0.5 * TEXT, 0, -0.5 * TEXT, TEXT, -TEXT):
        for across in (size / 2 + 1.5, -size / 2 - 1.5):
            x, y = dot[0] + across - (width if across < 0 else 0), dot[1] + up
            box = (x, y - height / 2, x + width, y + height / 2)
            tried.append((sum(_shared(box, other) for other in taken), across, up, box))
    return min(tried, key=lambda one: one[0])[1:]


def _shared(one: Box, other: Box) -> float:
    """Compute the overlap area of two boxes."""
    across, up = (min(one[side + 2], other[side + 2]) - max(one[side], other[side]) for side in (0, 1))
    return max(0.0, across) * max(0.0, up)


def _legend(figure: Figure, colours: dict[float, Any], markers: dict[float, str], wanted: Wanted) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    blank = {"linestyle": "none", "markersize": SIZE}
    lines = [Line2D([], [], marker="none", label="force towards\nsparse experts", **blank)]
    lines += [
        Line2D([], [], marker="s", color=colour, label=f"{force:g}", **blank) for force, colour in colours.items()
    ]
    lines += [
        Line2D([], [], marker="none", label=" ", **blank),
        Line2D([], [], marker="none", label="l2 of the decoder", **blank),
    ]
    lines += [Line2D([], [], marker=marker, color=MUTED, label=f"{l2:g}", **blank) for l2, marker in markers.items()]
    lines += [Line2D([], [], marker="none", label=" ", **blank)]
    lines += [Patch(color=PALE, alpha=0.35, label=f"at least {wanted.n_pure}\nand {wanted.probe_accuracy:g} %")]
    figure.legend(handles=lines, loc="outside right center")


def _words(settings: Sequence[Setting], wanted: Wanted) -> str:
    both = sum(map(wanted.met, settings))
    return (
        "Each dot is a setting on held-out digits. Colour: the force on the experts. Shape: the decoder's l2. Label: "
        "target fraction of images with an expert on, or the number of pose dimensions off the sphere. Rows have "
        f"a ring. {both or 'none'} of {len(settings)} settings {'have' if both > 1 else 'has'} {wanted.n_pure} "
        f"pure capsules and a probe accuracy of {wanted.probe_accuracy:g} %."
    )

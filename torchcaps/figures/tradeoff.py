"""Two things that are wanted at once, and what each setting has of them (Hauser 2019: capsules of one class, numbers a line can read)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcaps.figures.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PALE, SKY, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

COLOURS = SKY, BLUE, GREEN, ORANGE, INK, MUTED


class Setting(NamedTuple):
    """One dot: how strong the force is, towards being on for which share of the pictures, and what came of it."""

    force: float
    goal: float
    n_pure: float
    probe_accuracy: float
    n_plain: int = 0  # numbers of a capsule off the sphere


def purity_against_probe(settings: Sequence[Setting], *, n_pure: int, probe_accuracy: float, n_capsules: int) -> tuple[Figure, str]:
    """A dot for every setting, a colour for every force, the goal beside it; the corner where both are as wanted is shaded.

    Capsules with numbers off the sphere are diamonds, and no line joins them: they differ in more than the goal.
    """
    forces = sorted({setting.force for setting in settings})
    if not forces or len(forces) > len(COLOURS):
        raise ValueError(f"purity_against_probe has a colour for each of 1 to {len(COLOURS)} forces, got {len(forces)}")
    bare = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.3}  # lines pass below the words
    with canvas(6.2, 3.6) as figure:
        axes = figure.subplots(1, 1)
        right = max(probe_accuracy, *(setting.probe_accuracy for setting in settings)) + 1
        axes.fill_between([probe_accuracy, right], n_pure, n_capsules, color=PALE, alpha=0.5, linewidth=0)
        axes.text(right - 0.08, n_capsules - 0.4, "wanted", ha="right", va="top", fontsize=8, color=MUTED)
        for force, colour in zip(forces, COLOURS, strict=False):
            those = sorted((setting for setting in settings if setting.force == force), key=lambda setting: setting.goal)
            for plain, style in ((False, "o-"), (True, "D")):
                some = [setting for setting in those if bool(setting.n_plain) == plain]
                across, up = [setting.probe_accuracy for setting in some], [setting.n_pure for setting in some]
                label = f"{force:g}" + ", some numbers off the sphere" * plain
                if some:
                    axes.plot(across, up, style, color=colour, linewidth=1, markersize=5, label=label)
            for setting in those:
                at, words = (setting.probe_accuracy, setting.n_pure), f"{setting.goal:g}" + f", R^{setting.n_plain}" * bool(setting.n_plain)
                axes.annotate(words, at, (4, 4), textcoords="offset points", fontsize=7, color=colour, bbox=bare)
        axes.set(
            xlim=(None, right),
            ylim=(0, n_capsules),
            xlabel="linear probe, % right",
            ylabel=f"capsules of {n_capsules} that keep to one class",
        )
        axes.set_title("beside a dot: the share of pictures that the force pulls to")
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid()
        axes.legend(title="force", title_fontsize=8.5, loc="lower left")
    both = sum(setting.n_pure >= n_pure and setting.probe_accuracy >= probe_accuracy for setting in settings)
    words = (
        f"Each dot is a setting of the force on the experts, with the share of pictures that it pulls them to be on for. {n_pure} capsules "
        f"and {probe_accuracy:g} % are wanted at once; {both or 'none'} of {len(settings)} settings {'have' if both > 1 else 'has'} both"
    )
    return figure, f"{words}."

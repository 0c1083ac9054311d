"""One look for every figure: colours, sizes, and the little that all of them need from matplotlib."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
else:
    Axes = Colormap = Figure = Any  # matplotlib is imported when something is drawn

# Okabe and Ito's palette, told apart with any colour vision: blue is the truth or the whole, orange what went wrong
BLUE, ORANGE, GREEN, SKY = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
INK, MUTED, FAINT, PALE = "#1f2430", "#6b7280", "#e4e7ec", "#b8c4d4"
DPI = 160
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK,
    "axes.titlesize": 9.5, "axes.titlecolor": INK, "axes.titlelocation": "left", "axes.titlepad": 8,
    "axes.labelsize": 8.5, "axes.labelcolor": MUTED, "axes.edgecolor": PALE, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "grid.color": FAINT, "grid.linewidth": 0.8,
    "xtick.color": PALE, "ytick.color": PALE, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.frameon": False, "legend.fontsize": 8.5,
    "lines.linewidth": 1.8, "lines.solid_capstyle": "round", "figure.facecolor": "white", "axes.facecolor": "white",
}  # fmt: skip


@contextmanager
def canvas(width: float, height: float, layout: str = "constrained") -> Iterator[Figure]:
    """An empty figure of so many inches, in our style whatever the user's own settings are; layout "none" for `place`."""
    try:
        from matplotlib import style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("figures need matplotlib; pip install 'torchcaps[experiments]'") from error
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
        FigureCanvasAgg(figure)
        yield figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at so many inches from the top left corner, where an even layout would not group what belongs together."""
    full_width, full_height = figure.get_size_inches()
    return figure.add_axes((left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height))


def write(figure: Figure, left: float, top: float, words: str, **how: Any) -> None:
    """Text that starts at so many inches from the top left corner."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, words, **({"fontsize": 9.5, "va": "top"} | how))


def png(figure: Figure) -> bytes:
    """The figure as a PNG file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def bare(axes: Axes) -> Axes:
    """No frame, no ticks: for pictures."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes


def show(axes: Axes, picture: Float[Tensor, "c h w"]) -> None:
    """Three channels in colour; else the first as ink on paper, framed so that an empty one is seen too."""
    bare(axes)
    axes.spines[:].set(visible=True, color=FAINT)
    if picture.shape[0] == 3:
        axes.imshow(rearrange(picture, "c h w -> h w c").clamp(0, 1).numpy(), interpolation="nearest")
    else:
        axes.imshow(picture[0].numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")


def gains() -> Colormap:
    """Blue for more, orange for less, white for no change."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("gains", [ORANGE, "white", BLUE])


def montage(pictures: Float[Tensor, "r k c h w"], gap: int = 1) -> Float[Tensor, "c y x"]:
    """A sheet of r rows and k columns, each tile with `gap` pixels of white paper right of and below it."""
    paper = 1.0 if pictures.shape[2] == 3 else 0.0
    return rearrange(pad(pictures, (0, gap, 0, gap), value=paper), "r k c h w -> c (r h) (k w)")

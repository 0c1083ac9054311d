"""Common style of all figures: colours, sizes and small matplotlib helpers."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
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

# Okabe and Ito's palette, distinct with any colour vision: blue for the true class, orange for errors
BLUE, ORANGE, GREEN, SKY = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
INK, MUTED, FAINT, PALE = "#1f2430", "#6b7280", "#e4e7ec", "#b8c4d4"
DPI = 160
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK,
    "axes.titlesize": 9.5, "axes.titlecolor": INK, "axes.titlelocation": "left", "axes.titlepad": 8,
    "axes.labelsize": 8.5, "axes.labelcolor": MUTED, "axes.edgecolor": PALE, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "grid.color": FAINT, "grid.linewidth": 0.8,
    "xtick.color": PALE, "ytick.color": PALE, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.frameon": False, "legend.fontsize": 8.5,
    "lines.linewidth": 1.8, "lines.solid_capstyle": "round", "figure.facecolor": "white", "axes.facecolor": "white",
}  # fmt: skip


@contextmanager
def canvas(width: float, height: float, layout: str = "constrained") -> Iterator[Figure]:
    """Open an empty figure (size in inches) in our style, ignoring user settings; use layout "none" with `place`."""
    try:
        from matplotlib import style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ValueError("figures need matplotlib; pip install 'torchcaps[experiments]'") from error
    with style.context(["default", STYLE]):
        figure = _self_showing()(figsize=(width, height), dpi=DPI, layout=layout)
        FigureCanvasAgg(figure)
        yield figure


@cache
def _self_showing() -> type[Figure]:
    """Make the class of our figures: a notebook shows one that is the last line of a cell, whatever its backend."""
    from matplotlib.figure import Figure

    class SelfShowing(Figure):
        def _repr_png_(self) -> bytes:
            return png(self)

    return SelfShowing


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the top left corner, for layouts that a regular grid cannot express."""
    full_width, full_height = figure.get_size_inches()
    return figure.add_axes(
        (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    )


def write(figure: Figure, left: float, top: float, words: str, **how: Any) -> None:
    """Write text at a position in inches from the top left corner."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, words, **({"fontsize": 9.5, "va": "top"} | how))


def png(figure: Figure) -> bytes:
    """Render the figure as PNG bytes; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def bare(axes: Axes) -> Axes:
    """Remove frame and ticks, for images."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes


def show(axes: Axes, picture: Float[Tensor, "c h w"]) -> None:
    """Show an image: three channels in colour, else the first one in grey; a frame makes empty images visible."""
    bare(axes)
    axes.spines[:].set(visible=True, color=FAINT)
    if picture.shape[0] == 3:
        axes.imshow(rearrange(picture, "c h w -> h w c").clamp(0, 1).numpy(), interpolation="nearest")
    else:
        axes.imshow(picture[0].numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")


def gains() -> Colormap:
    """Make a colour map: blue for more, orange for less, white for no change."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("gains", [ORANGE, "white", BLUE])


def montage(pictures: Float[Tensor, "r k c h w"], gap: int = 1) -> Float[Tensor, "c y x"]:
    """Tile images in r rows and k columns, with `gap` white pixels right of and below each."""
    paper = 1.0 if pictures.shape[2] == 3 else 0.0
    return rearrange(pad(pictures, (0, gap, 0, gap), value=paper), "r k c h w -> c (r h) (k w)")

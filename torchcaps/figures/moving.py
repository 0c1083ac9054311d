"""Animated GIF of two overlapping digits that a trained network separates. Needs Pillow but not matplotlib.

Each frame shows one image, the lengths of the class capsules, and reconstructions from the two longest ones.
Letters beyond the usual: `t` frames, `k` the two digits.
"""

import io
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data.sets.pairs import Pairs, overlay
from torchcaps.figures.canvas import FAINT, INK, MUTED, PALE
from torchcaps.figures.overlap import GREEN, RED, answered
from torchcaps.train.tasks.classify_pairs import reconstruct_both

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageDraw import ImageDraw as Pen
else:
    Picture = Pen = Any  # Pillow is imported when something is drawn

TILE, GAP, TOP, FOOT = 180, 20, 84, 34  # pixels
TITLE = "A capsule network pulls two overlapping digits apart"
FOOTER = "The digits move. In every frame the network names both and draws each one from its own capsule alone."
SHADES = 40  # shades each of white, red and green


class Scene(NamedTuple):
    """One pair of digits that circle around each other, with the predictions for every frame."""

    images: Float[Tensor, "t c h w"]
    lengths: Float[Tensor, "t j"]
    answers: list[tuple[int, int]]  # the two longest capsules of each frame, in the order of the labels
    digits: Float[Tensor, "t 2 c h w"]  # reconstructed from these two


def orbit(n_frames: int, shift: int) -> Int64[Tensor, "t 2 2"]:
    """Compute shifts (down, right) of two digits on opposite sides of an ellipse, at most `shift` pixels."""
    angle = 2 * math.pi * torch.arange(n_frames) / n_frames
    first = torch.stack([shift / 2 * angle.sin(), shift * angle.cos()], dim=-1).round().long()
    return torch.stack([first, -first], dim=1)


def scenes(model: nn.Module, pairs: Pairs, n_pairs: int = 3, n_frames: int = 24, most: int = 200) -> list[Scene]:
    """Animate the first pairs that are classified correctly in every frame and share no class."""
    moves, found, seen = orbit(n_frames, pairs.shift), [], set()
    device = next(model.parameters()).device
    with evaluating(model):
        for pick, labels in zip(pairs.picks[:most], pairs.labels[:most].tolist(), strict=True):
            if len(found) == n_pairs or seen & set(labels):
                continue
            digits = pairs.digits[pick].expand(n_frames, -1, -1, -1, -1)
            images = overlay(digits, moves, pairs.shift)[0].to(device).float() / 255
            capsules = model(images)
            said = [answered((a, b), (labels[0], labels[1])) for a, b in capsules.activity.topk(2).indices.tolist()]
            if all(sorted(answer) == sorted(labels) for answer in said):
                drawn = reconstruct_both(model, capsules.poses, torch.tensor(said, device=device))
                found.append(Scene(images.cpu(), capsules.activity.cpu(), said, drawn.cpu()))
                seen |= set(labels)
    if not found:
        raise ValueError(f"none of the first {most} pairs is recognised in every frame; take a model trained on pairs")
    return found


def frames(found: list[Scene]) -> list[Picture]:
    """Render every frame of the scenes in turn, as RGB images of one size."""
    return [_frame(scene, t) for scene in found for t in range(len(scene.images))]


def gif(pictures: list[Picture], milliseconds: int = 90) -> bytes:
    """Encode the frames as an endless loop with one palette."""
    palette = _palette()
    shown = [picture.quantize(palette=palette, dither=0) for picture in pictures]
    buffer = io.BytesIO()
    shown[0].save(
        buffer, format="gif", save_all=True, append_images=shown[1:], duration=milliseconds, loop=0, optimize=False
    )
    return buffer.getvalue()


def _frame(scene: Scene, t: int) -> Picture:
    from PIL import Image, ImageDraw

    first, second = scene.answers[t]
    sheet = Image.new("RGB", (4 * TILE + 5 * GAP, TOP + TILE + FOOT), "white")
    draw = ImageDraw.Draw(sheet)
    _write(draw, GAP, 26, TITLE, 22, INK)
    columns = [GAP + n * (TILE + GAP) for n in range(4)]
    heads = (
        "One image, two digits",
        "Length of each capsule",
        f"Drawn from capsule {first}",
        f"Drawn from capsule {second}",
    )
    for left, head, colour in zip(columns, heads, (INK, INK, _hex(RED), _hex(GREEN, 0.75)), strict=True):
        _write(draw, left, TOP - 16, head, 15, colour)
    tiles = ((0, scene.images[t], (1.0, 1.0, 1.0)), (2, scene.digits[t, 0], RED), (3, scene.digits[t, 1], GREEN))
    for column, picture, light in tiles:
        sheet.paste(_tile(picture, light), (columns[column], TOP))
    _bars(draw, columns[1], scene.lengths[t], first, second)
    _write(draw, GAP, TOP + TILE + FOOT // 2, FOOTER, 13, MUTED)
    return sheet


def _tile(picture: Float[Tensor, "c h w"], light: tuple[float, float, float]) -> Picture:
    """Enlarge an image with sharp pixels; background is black."""
    from PIL import Image

    shade = (picture[0].clamp(0, 1) * (SHADES - 1)).round() / (SHADES - 1)
    pixels = (shade[..., None] * torch.tensor(light) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.numpy()).resize((TILE, TILE), Image.Resampling.NEAREST)


def _bars(draw: Pen, left: int, lengths: Float[Tensor, " j"], first: int, second: int) -> None:
    """Draw the length of each class capsule as a bar; the two predicted ones have the colours of their images."""
    foot, step = TOP + TILE - 22, TILE / len(lengths)
    draw.line([(left, foot - 150), (left + TILE, foot - 150)], fill=FAINT)
    for j, long in enumerate(lengths.tolist()):
        colour = _hex(RED) if j == first else _hex(GREEN) if j == second else PALE
        start = left + j * step
        draw.rectangle([round(start) + 2, round(foot - 150 * long), round(start + step) - 3, foot], fill=colour)
        _write(draw, start + step / 2, foot + 13, str(j), 15, INK if j in (first, second) else MUTED, anchor="mm")
    draw.line([(left, foot), (left + TILE, foot)], fill=MUTED)


def _write(draw: Pen, x: float, y: float, words: str, size: int, colour: str, anchor: str = "lm") -> None:
    from PIL import ImageFont

    draw.text((x, y), words, fill=colour, font=ImageFont.load_default(size=size), anchor=anchor)


def _hex(light: tuple[float, float, float], dim: float = 1.0) -> str:
    return "#" + "".join(f"{round(255 * dim * part):02x}" for part in light)


def _palette() -> Picture:
    """Make a palette: shades of three colours on black, and of the text colours on white."""
    from PIL import Image, ImageColor

    lights = torch.tensor([(1.0, 1.0, 1.0), RED, GREEN])
    inks = torch.tensor([ImageColor.getrgb(ink) for ink in (INK, MUTED, _hex(RED), _hex(GREEN, 0.75))]) / 255
    solid = torch.tensor([ImageColor.getrgb(ink) for ink in (PALE, FAINT)]) / 255
    dark = torch.linspace(0, 1, SHADES)[:, None] * lights[:, None]
    pale = 1 - torch.linspace(0, 1, 10)[:, None] * (1 - inks)[:, None]  # few shades: Pillow maps near-white to white
    colours = (
        (torch.cat([dark.flatten(0, 1), pale.flatten(0, 1), solid]) * 255).round().to(torch.uint8).flatten().tolist()
    )
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours)
    return palette

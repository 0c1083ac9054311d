"""Digits transformed by known factors: shift, rotation, scale, shear and stroke width.

Letters beyond the usual: `n` images, `k` factors.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from torchcaps.data import Labelled
from torchcaps.data.augment import Shift
from torchcaps.data.sets.affine import BRIGHT, ROTATION, SHEAR, transform

SHIFT = 2  # whole pixels, as in the training of MNIST models
# uniform and independent. One scale, not two: the horizontal scale of a 1 would be its stroke width under another name.
# It only shrinks, since a digit fills most of its frame. The shear is affNIST's: it moves the right side down, which a
# narrow digit hardly shows
RANGES = {
    "down": (-SHIFT, SHIFT),
    "right": (-SHIFT, SHIFT),
    "rotation": (-ROTATION, ROTATION),  # degrees, counter-clockwise
    "scale": (0.8, 1.0),
    "shear": (-SHEAR, SHEAR),
    "stroke width": (-1.0, 1.0),  # pixels, as `thickened` applies them
}
FACTORS = tuple(RANGES)
LARGEST = 28  # largest digit that stays inside the 40x40 canvas of `transform`


class KnownDigits(NamedTuple):
    """Transformed digits with the factors they were made by.

    Example:

        digits = Labelled(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), torch.tensor([4, 1, 7]))
        known = known_digits(digits, (28, 28), torch.Generator().manual_seed(0), copies=2)
        known.labels.tolist(), list(known.factors.shape)  # ([4, 1, 7, 4, 1, 7], [6, 6])
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    factors: Float[Tensor, "n k"]  # float64 on the host, named by FACTORS
    sources: Int64[Tensor, " n"]  # index of the original digit


def known_digits(
    digits: Labelled, frame: tuple[int, int], rng: torch.Generator, *, copies: int, chunk: int = 500
) -> KnownDigits:
    """Transform `copies` of each digit by random factors into a frame [h w], ordered (copy, digit), on their device.

    A copy is dropped if its ink (brighter than BRIGHT) would leave the frame under any shift, not only its own, so that
    shifts stay independent of the image. `rng` is on the host. Fewer `copies` give the first part of the same set;
    `chunk` bounds the memory.
    """
    images, labels = digits
    if max(images.shape[-2:]) > LARGEST:
        raise ValueError(
            f"known_digits expects digits of at most {LARGEST}x{LARGEST}, got {list(images.shape)}; give smaller ones"
        )
    sources, factors = torch.arange(len(labels)).repeat(copies), draw_factors(copies * len(labels), rng)
    made = [
        _make(images[which.to(images.device)], own, frame)
        for which, own in zip(sources.split(chunk), factors.split(chunk), strict=True)
    ]
    fits = torch.cat([fit for _, fit in made]).cpu()
    if fits.sum() * 2 < len(fits):
        raise ValueError(
            f"only {int(fits.sum()):,} of {len(fits):,} transformed digits fit into {frame[0]}x{frame[1]}; "
            "give digits with more empty space around them"
        )
    kept = sources[fits]
    return KnownDigits(torch.cat([pictures[fit] for pictures, fit in made]), labels.cpu()[kept], factors[fits], kept)


def draw_factors(n: int, rng: torch.Generator) -> Float[Tensor, "n k"]:
    """Draw random factors, ordered as FACTORS. Shifts are whole pixels.

    Stroke widths are multiples of 1/128, for which `thickened` is exact on every device.
    """
    low, high = torch.tensor(list(RANGES.values()), dtype=torch.float64).T
    chance = torch.rand(n, len(FACTORS), generator=rng, dtype=torch.float64)
    factors = low + (high - low) * chance
    factors[:, :2] = (low[:2] + (high[:2] - low[:2] + 1) * chance[:, :2]).floor()
    factors[:, -1] = (factors[:, -1] * 128).round() / 128
    return factors


def _make(
    images: UInt8[Tensor, "n c h w"], factors: Float[Tensor, "n k"], frame: tuple[int, int]
) -> tuple[Tensor, Bool[Tensor, " n"]]:
    """Transform images, and mark those whose ink stays in the frame under every shift."""
    down_right, (rotation, scale, shear, width) = factors[:, :2], factors[:, 2:].unbind(1)
    nil = torch.zeros_like(rotation)
    upright = transform(images, torch.stack([rotation, shear, scale, scale, nil, nil], dim=1))
    canvas = thickened(upright, width)  # after scaling, so that widths are in pixels of the result
    height, breadth = frame
    n_ink, n_inside = (
        (picture > BRIGHT).sum((1, 2, 3))
        for picture in (canvas, _middle(canvas, height - 2 * SHIFT, breadth - 2 * SHIFT))
    )
    # with a margin, so that a shift brings in the image's own border, not zeros
    wide = _middle(canvas, height + 2 * SHIFT, breadth + 2 * SHIFT)
    moved = Shift(SHIFT).apply(wide, down_right.long().to(wide.device))
    return _middle(moved, height, breadth), n_ink == n_inside


def _middle(images: UInt8[Tensor, "n c h w"], height: int, width: int) -> UInt8[Tensor, "n c h2 w2"]:
    """Crop images to the centre, or pad them with zeros."""
    down, right = height - images.shape[-2], width - images.shape[-1]
    return pad(images, [right // 2, right - right // 2, down // 2, down - down // 2])


def thickened(images: UInt8[Tensor, "n c h w"], widths: Float[Tensor, " n"]) -> UInt8[Tensor, "n c h w"]:
    """Widen strokes by `widths` pixels, both sides together; negative widths thin them. Range: -2 to 2.

    A grey dilation (or erosion) by one pixel changes a stroke by two pixels. For smaller changes the image is
    interpolated with its dilation: the profile across a saturated stroke gains `widths` pixels of ink as a grey rim.
    """
    share = (widths / 2).float().to(images.device)[:, None, None, None]
    ink = torch.where(share < 0, -1, 1) * images.float()  # thinning strokes dilates the background
    return (ink + share.abs() * (_dilated(ink) - ink)).abs().round().to(torch.uint8)


def _dilated(levels: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Average the dilations by a cross and by a square: along a diagonal one is below a pixel, the other above."""
    across = max_pool2d(levels, (1, 3), stride=1, padding=(0, 1))
    cross = torch.maximum(across, max_pool2d(levels, (3, 1), stride=1, padding=(1, 0)))
    square = max_pool2d(across, (3, 1), stride=1, padding=(1, 0))
    return (cross + square) / 2

"""Digits under small affine maps on 40x40, by the rule recovered from affNIST's images.

Old -> new place, in (row, column) about the image's centre: A = diag(v, h) · [[1, s], [0, 1]] · R(rotation), that is
rotate, then shear, then scale; bilinear. Then a whole number of pixels down and right, uniform over all offsets that
keep every pixel brighter than 85 inside the frame. It is calibrated against affNIST and is not affNIST: no table may
call it so.

All sampling places are rounded to 1/256 pixel. Every product and sum of the interpolation is then exact in float32,
so CPU, GPU and every machine make the same bytes, and a result's hash of its data can be checked anywhere.
"""

from math import cos, pi, sin
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn.functional import grid_sample, pad

FRAME = 40
BRIGHT = 85  # brighter pixels stay inside the frame; inferred, 80 to 90 fits
ROTATION, SHEAR, SCALE = 20.0, 0.2, (0.8, 1.2)  # uniform in ±degrees, in ±, in this range for each axis
FACTORS = (
    "rotation",
    "shear",
    "vertical scale",
    "horizontal scale",
    "down",
    "right",
)  # in the order of affNIST's own file
SEED = 40_2017  # draws the fixed test sets, and no run: every model is tested on the same images
PADDING = (FRAME - 28) // 2


class Warped(NamedTuple):
    images: UInt8[Tensor, "n c h w"]
    factors: Float[Tensor, "n 6"]  # float64 on the host, named by FACTORS; degrees counter-clockwise, and pixels


def warped(images: UInt8[Tensor, "m c h w"], rng: torch.Generator, n_each: int = 1, chunk: int = 500) -> Warped:
    """Draw `n_each` random transforms of every image: one of each, then the next of each, so a prefix is a fair sample.

    `rng` lies on the host. A smaller `n_each` gives the first part of the same images; `chunk` only bounds the memory.
    """
    if images.ndim != 4 or images.shape[-1] != images.shape[-2] or images.dtype != torch.uint8:
        raise ValueError(f"warped expects square uint8 images [n c h w], got {images.dtype} {list(images.shape)}")
    m = len(images)
    chance = torch.rand(n_each * m, len(FACTORS), generator=rng, dtype=torch.float64)
    made = torch.empty((n_each * m, images.shape[1], FRAME, FRAME), dtype=torch.uint8, device=images.device)
    factors = torch.empty_like(chance)
    for start in range(0, n_each * m, chunk):
        part = slice(start, start + chunk)
        which = torch.arange(start, min(start + chunk, n_each * m), device=images.device) % m
        made[part], factors[part] = _warp(images[which], chance[part])
    return Warped(made, factors)


def transform(images: UInt8[Tensor, "n c h w"], factors: Float[Tensor, "n 6"]) -> UInt8[Tensor, "n c 40 40"]:
    """Transform each image by its own six factors."""
    return _window(_render(images, factors), factors[:, 4:].long(), FRAME)


def matrices(factors: Float[Tensor, "n 6"]) -> Float[Tensor, "n 2 2"]:
    """Make A, which maps a place about the old centre to one about the new centre, both (row, column)."""
    angle = factors[:, 0] * (pi / 180)
    c, s, one, nil = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    rotate = torch.stack([c, -s, s, c], -1).unflatten(-1, (2, 2))
    shear = torch.stack([one, factors[:, 1], nil, one], -1).unflatten(-1, (2, 2))
    return factors[:, 2:4].unsqueeze(-1) * (shear @ rotate)


def placed(images: UInt8[Tensor, "n c h w"], rng: torch.Generator, padding: int = PADDING) -> UInt8[Tensor, "n c f f"]:
    """Put each image at a random place in a frame that is larger by `padding` on each side."""
    frame = images.shape[-1] + 2 * padding
    moves = torch.randint(-padding, padding + 1, (len(images), 2), generator=rng).to(images.device)
    return _window(pad(images, [2 * padding] * 4), moves, frame)


def _warp(images: UInt8[Tensor, "n c h w"], chance: Float[Tensor, "n 6"]) -> Warped:
    """Transform by six numbers in [0, 1): four are factors, two choose among the offsets that the image allows."""
    low, high = torch.tensor(
        [[-ROTATION, -SHEAR, SCALE[0], SCALE[0]], [ROTATION, SHEAR, SCALE[1], SCALE[1]]], dtype=torch.float64
    )
    factors = torch.cat([low + (high - low) * chance[:, :4], torch.zeros_like(chance[:, 4:])], dim=1)
    whole = _render(images, factors)
    least, most = allowed_offsets(whole)
    offsets = least + (chance[:, 4:] * (most - least + 1)).floor().long()
    factors[:, 4:] = offsets.double()
    return Warped(_window(whole, offsets, FRAME), factors)


def allowed_offsets(canvas: UInt8[Tensor, "n c h w"]) -> tuple[Int64[Tensor, "n 2"], Int64[Tensor, "n 2"]]:
    """Find how far each image may move down and right within the frame: (least, most), on the host."""
    size = canvas.shape[-1]
    margin = (size - FRAME) // 2
    along = (
        torch.stack([canvas.amax((1, 3)), canvas.amax((1, 2))], dim=1) > BRIGHT
    ).byte()  # [n 2 size]: rows, columns
    first, last = along.argmax(-1), size - 1 - along.flip(-1).argmax(-1)
    least, most = margin - first, margin + FRAME - 1 - last
    dark = along.amax(-1) == 0  # nothing to keep inside: it stays in the middle
    least, most = least.masked_fill(dark, 0).cpu(), most.masked_fill(dark, 0).cpu()
    if (least > most).any():
        raise ValueError(f"a transformed image does not fit into {FRAME}x{FRAME}; give smaller images")
    return least, most


def _canvas(size: int) -> int:
    """Give an even size, large enough that no transform of an image of this size leaves it."""
    c, s = cos(ROTATION * pi / 180), sin(ROTATION * pi / 180)
    half = SCALE[1] * (c - SHEAR * s + s + SHEAR * c) * size / 2  # a corner, turned and sheared the same way
    return max(2 * int(half + 2), FRAME)


def _render(images: UInt8[Tensor, "n c h w"], factors: Float[Tensor, "n 6"]) -> UInt8[Tensor, "n c k k"]:
    """Transform every image by its factors but the offsets, about the centre of a canvas that holds them all."""
    canvas = _canvas(images.shape[-1])
    # multiples of 2^-15, so that the sums below are exact, and a last bit of the host's cosine does not matter
    back = (torch.linalg.inv_ex(matrices(factors)).inverse * 2**15).round().div(2**15 / 256).float().to(images.device)
    axis = torch.arange(canvas, device=images.device, dtype=torch.float32) - (canvas - 1) / 2
    # a side of a power of two keeps grid_sample's own arithmetic exact; zeros lie around the image anyway
    side = 1 << (images.shape[-1] - 1).bit_length()
    around = side - images.shape[-1]
    source = pad(images, [around // 2, around - around // 2] * 2).float()
    centre = (2 * (around // 2) + images.shape[-1]) / side - 1  # grid_sample wants (column, row) in -1..1
    # in 1/256 of a pixel about the old centre until it is rounded
    places = ((back[:, n, 0, None, None] * axis[:, None] + back[:, n, 1, None, None] * axis).round_() for n in (1, 0))
    grid = torch.stack([place.mul_(2 / (256 * side)).add_(centre) for place in places], dim=-1)  # [n k k 2]
    return (
        grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False).round_().to(torch.uint8)
    )


def _window(images: UInt8[Tensor, "n c h w"], moves: Int64[Tensor, "n 2"], frame: int) -> UInt8[Tensor, "n c f f"]:
    """Move each image down and right by whole pixels and cut out the middle frame x frame; zeros come in."""
    margin = (images.shape[-1] - frame) // 2
    moves = moves.to(images.device)
    reach = max(0, int(moves.abs().max()) - margin) if len(moves) else 0
    images = pad(images, [reach] * 4)
    which = torch.arange(len(images), device=images.device)[:, None, None]
    rows, columns = (
        torch.arange(frame, device=images.device) + margin + reach - moves[:, axis, None] for axis in (0, 1)
    )
    return rearrange(images[which, :, rows[:, :, None], columns[:, None, :]], "n h w c -> n c h w")

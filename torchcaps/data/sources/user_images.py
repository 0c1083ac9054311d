"""Single pictures as users have them, opened by one rule: see `own`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import UInt8

from torchcaps.data.sources.files import DataError
from torchcaps.data.sources.image_archives import image_module


class Look(NamedTuple):
    size: tuple[int, int]  # width and height, as Pillow has them
    grey: bool  # also of a colour file whose channels are the same everywhere


def open_picture(path: Path):
    """As Pillow has it, in mode L or RGB, upright."""
    from PIL import ImageOps

    image = image_module()
    try:
        with image.open(path) as opened:
            if opened.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
                deep = np.asarray(opened).astype(np.int64)
                return image.fromarray((deep >> 8 if deep.max(initial=0) > 255 else deep).clip(0, 255).astype(np.uint8))
            upright = ImageOps.exif_transpose(opened)
            if upright.has_transparency_data:
                clear = upright.convert("RGBA")
                upright = image.alpha_composite(image.new("RGBA", clear.size, "white"), clear)
            return upright.convert("L" if upright.mode in ("1", "L") else "RGB")
    # a broken PNG is a SyntaxError to Pillow
    except (OSError, ValueError, SyntaxError, EOFError, image.DecompressionBombError) as error:
        raise DataError(f"not a picture that Pillow can read ({error})") from error


def look_at(path: Path) -> Look:
    picture = open_picture(path)
    pixels = np.asarray(picture)
    return Look(picture.size, picture.mode == "L" or bool((pixels == pixels[..., :1]).all()))


def read_picture(path: Path, size: int, channels: int) -> UInt8[np.ndarray, "c h w"]:
    """The whole picture, its proportions kept, in the middle of a black square."""
    image = image_module()
    picture = open_picture(path).convert("L" if channels == 1 else "RGB")
    share = size / max(picture.size)
    inner = tuple(max(1, round(side * share)) for side in picture.size)
    if inner != picture.size:
        picture = picture.resize(inner, image.Resampling.BILINEAR)  # Pillow's looks at every pixel that a new one covers
    square = image.new(picture.mode, (size, size))
    square.paste(picture, ((size - inner[0]) // 2, (size - inner[1]) // 2))
    pixels = np.asarray(square)
    return pixels[None] if channels == 1 else rearrange(pixels, "h w c -> c h w")
